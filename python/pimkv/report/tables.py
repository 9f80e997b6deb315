"""Text tables for the terminal, and the JSON of a comparison. Every figure is defined in docs/model.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pimkv.config import Config, explicit_map, geometry, passes_of
from pimkv.report.cache import cache_row, cache_rows
from pimkv.result import SCHEMA_VERSION, Result, dumps

Row = Sequence[str]


def aligned(rows: Sequence[Row], *, left: int = 1, indent: str = "  ") -> list[str]:
    """Lines of a table whose first `left` columns are flush left and the others flush right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        (
            indent
            + "  ".join(
                cell.ljust(width) if i < left else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        ).rstrip()
        for row in rows
    ]


def figure(value: float | None, digits: int) -> str:
    """A number with so many decimals; a dash where it is not defined."""
    return "-" if value is None else f"{value:,.{digits}f}"


def size(bytes_: int) -> str:
    """Bytes in the largest binary unit that keeps the number exact enough to read."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if bytes_ >= factor:
            return f"{bytes_ / factor:.4g} {unit}"
    return f"{bytes_} B"


def scene(config: Config, summary: dict[str, Any]) -> str:
    """What was run, in two lines."""
    source = config.workload.trace or config.workload.kind
    passes = "1 pass" if passes_of(config) == 1 else f"{passes_of(config)} passes"
    shape = geometry(config)
    layout: str = config.layout.kv_layout
    blocks = f"({config.layout.addrmap}), {shape.block_tokens}-token blocks"
    if shape.row_groups:
        # Neither the map nor the layout has a say.
        k, v = (tokens for tokens, _ in shape.row_groups.pages)
        layout, blocks = "K and V pages", f"in row groups, pages of {k} tokens of K and {v} of V"
    return (
        f"{source}, {summary['completed'] + summary['dropped']} requests, seed {config.seed}: "
        f"{config.model.preset} on {config.dram.preset} {blocks}\n"
        f"{config.experiment} experiment: {layout}, {passes}, "
        f"{config.scheduler.admission} admission, writes {'charged' if config.traffic.writes else 'not charged'}"
    )


def details(config: Config, summary: dict[str, Any]) -> list[Row]:
    """Figures beside the reads of one layer: units, all layers and stacks, sliding windows, row-batch, the pins."""
    model, unit = summary["model"], summary["unit"]
    words = unit_words({"unit": unit["kind"], "unit_blocks": unit["blocks"], "unit_regions": unit["regions"],
                        "waste": unit["waste"]})  # fmt: skip
    if groups := geometry(config).row_groups:
        k, v = (rows for _, rows in groups.pages)
        words = f"row groups of {size(groups.bytes)}: {k} to a K page, {v} to a V page"
    held = f"{size(model['pool_bytes_per_stack'])} of {size(model['stack_bytes'])}"
    if model["pool_bytes_per_stack"] > model["stack_bytes"]:
        held += ": MORE THAN THE STACK HOLDS"
    rows: list[Row] = [
        ("blocks lie in units", words),
        (f"{model['layers']} layers, {model['stacks']} stack{'s' if model['stacks'] > 1 else ''}",
         f"{size(model['bytes_per_token'])} per token, {size(model['read_bytes'])} read in "
         f"{figure(model['read_time_ns'] / 1e9, 3)} s"),
        ("  read, GB/s (per stack)", f"{plain(model['read_gbps'])} ({plain(model['read_gbps_per_stack'])})"),
        ("  pool of the full layers per stack", held),
    ]  # fmt: skip
    if len(summary["passes"]) > 1:
        for name, one in zip(("K", "V"), summary["passes"], strict=True):
            rows.append((f"{name} pass", f"M1 {figure(one['m1'], 4)}, M2 {figure(one['m2'], 4)}"))
    if (window := summary["sliding"]) is not None:
        rows.append((f"{window['layers']} layers slide over {window['window']:,} tokens",
                     f"M1 {figure(window['m1'], 4)}, M3 {plain(window['m3_gbps'])}, "
                     f"controller {plain(window['controller_gbps'])} GB/s"))  # fmt: skip
    if (batch := summary["row_batch"]) is not None:
        rows.append(
            (
                "row-batch bound",
                f"M3 {plain(batch['m3_gbps'])} GB/s with {size(batch['query_bytes'])} of queries",
            )
        )
    rows += cache_row(summary)
    if (t := summary["traffic"]) is not None:
        for name in ("write", "copy"):
            opened = f", {t['write_activations']:,} rows opened" if name == "write" else ""
            rows.append((f"{name}, over the pins",
                         f"{size(t[f'{name}_bytes'])}{opened}, {figure(t[f'{name}_time_ns'] / 1e6, 3)} ms, "
                         f"{100 * t[f'{name}_share']:.2f} % of the step"))  # fmt: skip
    return rows


def ideal(config: Config) -> float:
    """Bandwidth of full commands to open rows over the channels of one KV shard, GB/s."""
    return config.dram.ideal_gbps / config.layout.kv_shards


def run_table(result: Result) -> str:
    """The figures of one run."""
    s, published, exact, placement = (
        result.summary,
        result.summary["published"],
        result.summary["exact"],
        result.summary["placement"],
    )
    rows = [
        ("", "published", "exact"),
        ("row-hit rate M1", figure(published["m1"], 4), figure(exact["m1"], 4)),
        ("bank use M2", figure(published["m2"], 4), figure(exact["m2"], 4)),
        ("bandwidth M3, GB/s", figure(published["m3_gbps"], 1), figure(exact["m3_gbps"], 1)),
        (
            "  of the ideal",
            percent(published["m3_gbps"], result.config),
            percent(exact["m3_gbps"], result.config),
        ),
        ("  of the placement limit", "", share(exact["m3_gbps"], exact["m3_limit_gbps"])),
        ("controller, GB/s", "", figure(exact["controller_gbps"], 1)),
        ("  of its ideal", "", share(exact["controller_gbps"], exact["controller_ideal_gbps"])),
        ("  without refresh", "", figure(exact["controller_gbps_no_refresh"], 1)),
        (
            "  of the placement limit",
            "",
            share(exact["controller_gbps_no_refresh"], exact["controller_limit_gbps_no_refresh"]),
        ),
        ("time per sequence M4, ns", figure(published["m4_ns"], 1), ""),
        ("region spread", figure(placement["region_spread"], 2), ""),
        ("adjacent blocks", figure(placement["adjacent"], 4), ""),
        ("same region", figure(placement["same_region"], 4), ""),
        ("runs of ids", figure(placement["runs"], 2), ""),
    ]
    counts = [
        ("decode steps", s["decode_steps"], "requests completed", s["completed"]),
        ("samples", s["samples"], "dropped", s["dropped"]),
        ("pool blocks", s["pool_blocks"], "skipped in the trace", s["skipped_requests"]),
        ("peak live blocks", s["peak_live_blocks"], "preemptions", s["preemptions"]),
        ("blocks allocated", s["blocks_allocated"], "admission failures", s["admission_failures"]),
    ]
    lines = [f"{result.config.allocator.kind}: {scene(result.config, s)}", "", *aligned(rows), ""]
    room = s["capacity"]
    cells = [(a, f"{b:,}", f"   {c}", f"{d:,}") for a, b, c, d in counts]
    cells += [
        ("makespan, steps", f"{room['makespan']:,}", "   mean batch", figure(room["mean_batch"], 2)),
        (
            "steps stalled for blocks",
            f"{room['stalls']:,}",
            "   waste, empty / used",
            figure(room["waste"], 4),
        ),
    ]
    lines += aligned(cells)
    lines += ["", *aligned(details(result.config, s), left=2)]
    return "\n".join([*lines, "", *LEGEND])


LEGEND = (
    "published: the study's estimator, mean over sampled sequences. exact: total bytes / total time over every",
    "decode step of every sequence, by the published formula and on the cycle-exact controller. limit: contiguous",
    "placement, the fewest row visits. M1..M4 and the rest: docs/model.md.",
)


def share(value: float | None, of: float | None) -> str:
    """A value as a percentage of another."""
    part = ratio(value, of)
    return "-" if part is None else f"{100 * part:.1f} %"


def percent(gbps: float | None, config: Config) -> str:
    """A bandwidth of the formula as a share of the ideal."""
    return share(gbps, ideal(config))


def ratio(value: float | None, base: float | None) -> float | None:
    """value / base where both are known."""
    return None if value is None or not base else value / base


def compare_table(
    results: Sequence[Result], one_query: Sequence[Result] = (), realistic: Sequence[Result] = ()
) -> str:
    """Allocators side by side; gains are bandwidth over the first one's.

    `one_query`: the same runs with one query head per command, if they differ. `realistic`: the same
    comparison under the other experiment.
    """
    base = results[0].summary
    rows = headline(results)
    counts: list[Row] = [
        (
            "allocator",
            "steps",
            "pool",
            "peak live",
            "allocated",
            "adjacent",
            "runs",
            "M4 ns",
            "preempted",
            "dropped",
        )
    ]
    for result in results:
        s, where = result.summary, result.summary["placement"]
        counts.append((
            result.config.allocator.kind,
            *(f"{s[k]:,}" for k in ("decode_steps", "pool_blocks", "peak_live_blocks", "blocks_allocated")),
            figure(where["adjacent"], 4), figure(where["runs"], 2), figure(s["published"]["m4_ns"], 1),
            f"{s['preemptions']:,}", f"{s['dropped']:,}",
        ))  # fmt: skip
    lines = [scene(results[0].config, base), "", *aligned(counts), ""]
    ends: list[Row] = [
        (
            "controller, query heads per command",
            "M3 GB/s",
            "gain",
            "GB/s",
            "gain",
            "no refresh",
            "gain",
            "of limit",
        )
    ]
    for label, group in (("all of a KV head", results), ("one", one_query)):
        for result in group:
            e, first = result.summary["exact"], group[0].summary["exact"]
            cells = (plain(e["m3_gbps"]), gain(e, first, "m3_gbps"), *controller_cells(e, first))
            ends.append((f"{result.config.allocator.kind}, {label}", *cells))
    lines += [*aligned(ends), ""]
    if any(result.summary["traffic"] for result in (*results, *realistic)):
        lines += [*aligned(traffic_rows([*results, *realistic])), ""]
    caches = [
        (f"{r.config.allocator.kind}, {r.config.experiment}", r.summary["prefix_cache"])
        for r in (*results, *realistic)
    ]
    if any(cache for _, cache in caches):
        lines += [*aligned(cache_rows(caches)), ""]
    lines += [*LEGEND, ""]
    if realistic:
        lines += ["realistic:", *scene(realistic[0].config, realistic[0].summary).splitlines()[1:], ""]
        lines += [*aligned(headline(realistic)), "", f"{results[0].config.experiment}:", ""]
    return "\n".join([*lines, *aligned(rows)])


def traffic_rows(results: Sequence[Result]) -> list[Row]:
    """Writes and copies over the pins, beside the reads they slow down."""
    rows: list[Row] = [
        (
            "over the pins, one layer",
            "written",
            "activations",
            "time ms",
            "of the step",
            "copied",
            "time ms",
            "of the step",
        )
    ]
    for result in results:
        if (t := result.summary["traffic"]) is not None:
            rows.append((
                f"{result.config.allocator.kind}, {result.config.experiment}",
                size(t["write_bytes"]), f"{t['write_activations']:,}", figure(t["write_time_ns"] / 1e6, 2),
                f"{100 * t['write_share']:.2f} %", size(t["copy_bytes"]), figure(t["copy_time_ns"] / 1e6, 2),
                f"{100 * t['copy_share']:.2f} %",
            ))  # fmt: skip
    return rows


def headline(results: Sequence[Result]) -> list[Row]:
    """The table of figures: published estimator, exact aggregate by the formula, and on the controller."""
    base = results[0].summary
    rows: list[Row] = [
        ("", "published", *[""] * 4, "exact", *[""] * 5, "controller", *[""] * 3),
        ("allocator", "M1", "M2", "M3 GB/s", "gain", "spread", "M1", "M2", "M3 GB/s", "gain", "of ideal",
         "of limit", "GB/s", "gain", "of ideal", "of limit"),
    ]  # fmt: skip
    for result in results:
        p, e, where = (result.summary[k] for k in ("published", "exact", "placement"))
        rows.append((
            result.config.allocator.kind,
            figure(p["m1"], 4), figure(p["m2"], 4), plain(p["m3_gbps"]),
            times(ratio(p["m3_gbps"], base["published"]["m3_gbps"])), figure(where["region_spread"], 2),
            figure(e["m1"], 4), figure(e["m2"], 4), plain(e["m3_gbps"]), gain(e, base["exact"], "m3_gbps"),
            percent(e["m3_gbps"], result.config), share(e["m3_gbps"], e["m3_limit_gbps"]),
            plain(e["controller_gbps"]), gain(e, base["exact"], "controller_gbps"),
            share(e["controller_gbps"], e["controller_ideal_gbps"]),
            share(e["controller_gbps_no_refresh"], e["controller_limit_gbps_no_refresh"]),
        ))  # fmt: skip
    return rows


def controller_cells(exact: dict[str, Any], base: dict[str, Any]) -> Row:
    """Controller bandwidth with refresh and its gain, without refresh and its gain, share of the limit."""
    with_refresh, without = "controller_gbps", "controller_gbps_no_refresh"
    limit = share(exact[without], exact["controller_limit_gbps_no_refresh"])
    cells = (plain(exact[with_refresh]), gain(exact, base, with_refresh))
    return (*cells, plain(exact[without]), gain(exact, base, without), limit)


def gain(exact: dict[str, Any], base: dict[str, Any], name: str) -> str:
    """A figure over the base's."""
    return times(ratio(exact[name], base[name]))


def plain(gbps: float | None) -> str:
    """A bandwidth without a thousands separator, as the study prints it."""
    return "-" if gbps is None else f"{gbps:.1f}"


def times(value: float | None) -> str:
    """A ratio."""
    return "-" if value is None else f"{value:.2f}x"


def compare_json(
    results: Sequence[Result], one_query: Sequence[Result] = (), realistic: Sequence[Result] = ()
) -> str:
    """Runs and their ratios to the first, as one JSON object."""
    base = results[0].summary
    reports = [result.report() for result in results]
    ratios = {
        result.config.allocator.kind: {
            f"{part}_{name}": ratio(result.summary[part][name], base[part][name])
            for part, name in (
                ("published", "m1"), ("published", "m3_gbps"), ("published", "m4_ns"),
                ("exact", "m1"), ("exact", "m3_gbps"), ("exact", "controller_gbps"),
                ("exact", "controller_gbps_no_refresh"),
            )
        }
        for result in results
    }  # fmt: skip
    return dumps({
        "schema_version": SCHEMA_VERSION,
        "versions": reports[0]["versions"],
        "base": results[0].config.allocator.kind,
        "runs": [{"config": r["config"], "summary": r["summary"]} for r in reports],
        "realistic": [{k: r.report()[k] for k in ("config", "summary")} for r in realistic],
        "ratios": ratios,
        "one_query_per_command": {r.config.allocator.kind: r.summary["exact"] for r in one_query},
        "timing": {result.config.allocator.kind: result.timing for result in results},
    })  # fmt: skip


def derived(config: Config) -> dict[str, Any]:
    """What `pimkv derive` tells, by name."""
    shape = geometry(config)
    return {
        "model": config.model.preset,
        "dram": config.dram.preset,
        "kv_shards": config.layout.kv_shards,
        "kv_layout": config.layout.kv_layout,
        "addrmap": explicit_map(config),
        "bytes_per_token": shape.token_bytes,
        "block_tokens": shape.block_tokens,
        "block_bytes": shape.block_bytes,
        "region_bytes": shape.region_bytes,
        "region_tokens": shape.region_bytes // shape.token_bytes,
        "tensors": shape.tensors,
        "passes": passes_of(config),
        "blocks_per_region": shape.region_bytes * shape.tensors / shape.block_bytes,
        "unit": shape.unit.kind,
        "unit_regions": shape.unit.regions,
        "unit_blocks": shape.unit.blocks,
        "waste": shape.unit.waste,
        "regions": config.dram.rows,
        "capacity_blocks": shape.capacity_blocks,
        "ideal_gbps": ideal(config),
    }


def unit_words(d: dict[str, Any]) -> str:
    """What whole blocks fill, in words."""
    regions = "1 region" if d["unit_regions"] == 1 else f"{d['unit_regions']:,} regions"
    blocks = "1 block" if d["unit_blocks"] == 1 else f"{d['unit_blocks']:,} blocks"
    words = f"{d['unit']}: {blocks} in {regions}"
    return f"{words}, {100 * d['waste']:.1f} % waste" if d["unit"] == "padded" else words


def derive_one(config: Config, layouts: Sequence[dict[str, Any]]) -> str:
    """Region and block sizes of a model on a DRAM, and the block sizes that fit it."""
    d = derived(config)
    rows = [
        ("bytes per token, one layer", f"{d['bytes_per_token']:,} B"),
        ("block", f"{d['block_tokens']} tokens = {size(d['block_bytes'])}"),
        (
            "region (one row index in every bank)",
            f"{size(d['region_bytes'])} = {d['region_tokens']:,} tokens",
        ),
        ("blocks per region", f"{d['blocks_per_region']:.4g}"),
        ("unit", unit_words(d)),
        ("regions in the DRAM", f"{d['regions']:,}"),
        ("blocks in the DRAM", f"{d['capacity_blocks']:,}"),
        ("ideal bandwidth", f"{d['ideal_gbps']:,.1f} GB/s"),
    ]
    head = f"{d['model']} on {d['dram']}" + (f", {d['kv_shards']} KV shards" if d["kv_shards"] > 1 else "")
    table: list[Row] = [("layout, two passes", "M1 K", "M1 V", "M2 K", "M2 V", "M3 GB/s", "controller", "")]
    for entry in layouts:
        if "refused" in entry:
            table.append((entry["kv_layout"], *["-"] * 6, "refused"))
        else:
            cells = (figure(value, 4) for value in (*entry["m1"], *entry["m2"]))
            table.append(
                (
                    entry["kv_layout"],
                    *cells,
                    plain(entry["m3_gbps"]),
                    plain(entry["controller_gbps"]),
                    "fits best" if entry["best"] else "",
                )
            )
    tail = [
        f"  address map  {d['addrmap']}",
        "",
        "  contiguous sequence, by the address map alone:",
        *aligned(table),
    ]
    return "\n".join([head, "", *aligned(rows, left=2), "", *tail])


def derive_table(entries: Sequence[dict[str, Any]]) -> str:
    """One line per model, DRAM and block size; what is refused says why below."""
    rows: list[Row] = [
        ("model", "DRAM", "block", "bytes", "region", "blocks/region", "unit", "waste", "blocks in the DRAM")
    ]
    notes: dict[str, None] = {}
    for e in entries:
        names = (str(e["model"]), str(e["dram"]), str(e["block_tokens"] or "-"))
        if "refused" in e:
            rows.append((*names, "-", "-", "refused", "-", "-", "-"))
            notes |= dict.fromkeys(e["refused"].splitlines())
        else:
            unit = f"{e['unit']} {e['unit_blocks']:,} in {e['unit_regions']:,}"
            numbers = (
                f"{e['blocks_per_region']:.4g}",
                unit,
                f"{100 * e['waste']:.1f} %",
                f"{e['capacity_blocks']:,}",
            )
            rows.append((*names, size(e["block_bytes"]), size(e["region_bytes"]), *numbers))
    return "\n".join([*aligned(rows, left=2), *([""] if notes else []), *(f"  {note}" for note in notes)])


def presets_table(chosen: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Presets of each kind with their values."""
    lines: list[str] = []
    for kind, entries in chosen.items():
        lines += [kind, ""]
        for name, values in entries.items():
            shown = ", ".join(f"{k} {v}" for k, v in values.items() if k != "note")
            lines += [f"  {name}", f"      {values.get('note', '')}", f"      {shown}"]
        lines.append("")
    return "\n".join(lines).rstrip()
