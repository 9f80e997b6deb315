"""Text tables of allocator costs. Every figure is defined in docs/cost.md."""

from __future__ import annotations

from typing import Any

from pimkv.report.tables import aligned, figure


def ops_table(figures: list[dict[str, Any]]) -> str:
    """The figures of one log, replayed against each policy."""
    lines = []
    for f in figures:
        agreed = (
            "every id as recorded"
            if f["ids_checked"]
            else f"{f['takes_with_recorded_id']:,} of {f['takes']:,} ids as recorded"
        )
        lines += [
            f"{f['policy']}, log of {f['recorded_policy']}: {f['operations']:,} operations on {f['blocks']:,} blocks "
            f"in regions of {f['blocks_per_region']}, {agreed}",
            f"  {figure(_millions(f['operations_per_s']), 1)} million operations/s with the replay loop, "
            f"bookkeeping {f['bookkeeping_bytes'] / 1024:,.1f} KiB, {f['repeats']} repetitions",
        ]
        rows: list[tuple[str, ...]] = [
            ("ns per operation", "operations", "mean", "median", "p99", "median, no empty region")
        ]
        rows += [_kind(name, kind) for name, kind in (("all", f["all"]), *f["kinds"].items())]
        rows.append(("the loop, subtracted", "", figure(f["loop_ns"], 2), "", "", ""))
        lines += [*aligned(rows), ""]
    lines.append("median and p99 over batches of 256 operations between two clock reads.")
    return "\n".join(lines)


def _kind(name: str, kind: dict[str, Any]) -> tuple[str, ...]:
    ns = (figure(kind[key], 2) for key in ("mean_ns", "median_ns", "p99_ns", "worst_state_median_ns"))
    return (name, f"{kind['operations']:,}", *ns)


def _millions(value: float | None) -> float | None:
    return None if value is None else value / 1e6


def cost_report(table: dict[str, Any]) -> str:
    """`pimkv bench cost` for the terminal."""
    host = table["host"]
    lines = [
        f"{host['cpu']}, {host['cores']} cores, load {figure(host['load_1min'], 1)}; {table['requests']} requests, "
        f"medians of {table['repeats']} repetitions",
        "",
    ]
    for name, rows in table["workloads"].items():
        lines += [name, *_workload(rows), ""]
    lines += ["worst case: a full pool without an empty region, ns per block", *_worst(table), ""]
    lines += [
        f"the mix: {table['mix']['blocks']:,} blocks, {table['mix']['sequences']} sequences, 80 % full; ns per operation",
        *_mix(table),
        "",
    ]
    lines += [f"Python twins, steady, {table['twin_requests']} requests", *_twins(table), ""]
    lines += ["a batch through Python, ns per block, Rust alone beside it", *_batches(table)]
    return "\n".join(lines)


def _workload(rows: dict[str, Any]) -> list[str]:
    cells: list[tuple[str, ...]] = [
        (
            "",
            "ops/step",
            "policy us/step",
            "calls us/step",
            "KiB",
            "added us/step",
            "saved us/step",
            "controller",
            "benefit/cost",
            "controller",
            "twin us/step",
            "benefit/cost",
        )
    ]
    for name, row in rows.items():
        if "refused" in row or "skipped" in row:
            cells.append((name, "refused" if "refused" in row else "skipped", *("",) * 10))
            continue
        if "calls_us_per_step" not in row:
            cells.append((name, *("",) * 9, figure(row["twin_us_per_step"], 3), ""))
            continue
        cells.append(
            (
                name,
                figure(row["operations_per_step"], 1),
                figure(row["policy_us_per_step"], 4),
                figure(row["calls_us_per_step"], 3),
                figure(row["bookkeeping_kib"], 1),
                figure(row["added_us_per_step"], 4),
                figure(row["saved_us_per_step"], 1),
                figure(row["saved_us_per_step_controller"], 1),
                figure(row["benefit_cost"], 0),
                figure(row["benefit_cost_controller"], 0),
                figure(row["twin_us_per_step"], 3),
                figure(row["twin_benefit_cost"], 0),
            )
        )
    return aligned(cells)


def _worst(table: dict[str, Any]) -> list[str]:
    cells: list[tuple[str, ...]] = [("", "regions", "policy", "mean", "median", "p99", "give")]
    for row in table["worst_case"]:
        ns = (figure(row[key], 1) for key in ("mean_ns", "median_ns", "p99_ns", "give_median_ns"))
        cells.append((row["what"], f"{row['regions']:,}", row["policy"], *ns))
    return aligned(cells, left=3)


def _mix(table: dict[str, Any]) -> list[str]:
    cells: list[tuple[str, ...]] = [("", "take", "take p99", "give", "give p99", "with the loop")]
    for name, got in table["mix"]["policies"].items():
        take, give = got["kinds"]["take"], got["kinds"]["give"]
        ns = (take["median_ns"], take["p99_ns"], give["median_ns"], give["p99_ns"], got["with_loop_ns"])
        cells.append((name, *(figure(value, 2) for value in ns)))
    return aligned(cells)


def _twins(table: dict[str, Any]) -> list[str]:
    cells: list[tuple[str, ...]] = [
        ("", "operations", "Rust ns", "with loop", "twin ns", "with loop", "times slower")
    ]
    notes = []
    for name, row in table["twins"].items():
        if "skipped" in row:
            notes.append(f"  {name}: skipped; {row['skipped']}")
        elif "rust_ns" in row:
            ns = (row["rust_ns"], row["rust_with_loop_ns"], row["twin_ns"], row["twin_with_loop_ns"])
            slower = figure(row["times_slower_with_loop"], 0)
            cells.append((name, f"{row['operations']:,}", *(figure(value, 2) for value in ns), slower))
        else:
            vllm = (figure(row["mean_ns"], 2), figure(row["with_loop_ns"], 2))
            cells.append((name, f"{row['operations']:,}", "", "", *vllm, ""))
    return [*aligned(cells), *notes]


def _batches(table: dict[str, Any]) -> list[str]:
    cells: list[tuple[str, ...]] = [("", "batch", "take", "give", "Rust with its loop")]
    for kind, row in table["batch_calls"]["kinds"].items():
        for size, ns in row["batch"].items():
            rust = figure(row["rust_with_loop_ns"], 2)
            cells.append((kind, size, figure(ns["take_ns"], 2), figure(ns["give_ns"], 2), rust))
    return aligned(cells, left=2)
