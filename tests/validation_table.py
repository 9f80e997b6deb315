"""Prints how far the models are from every measured run, by family: the tables of docs/validation.md.

python tests/validation_table.py, with PIMKV_SHARED naming the folder of measured data.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from attacc_data import FOLDER, preset_name, rows_of, table, trace_of

from pimkv.controller import Controller
from pimkv.reference.controller import RefreshClock
from pimkv.reference.row_model import block_reads, count_rows
from pimkv.timing import preset

Record = dict[str, str]


def row(*cells: object) -> None:
    """One line of a Markdown table."""
    print("|", " | ".join(map(str, cells)), "|")


def head(*cells: str) -> None:
    """The head of one."""
    print()
    row(*cells)
    row("---", *["---:"] * (len(cells) - 1))


def by(records: Iterable[Record], family: Callable[[Record], str]) -> dict[str, list[Record]]:
    """Records by family, in the order of the file."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(family(record), []).append(record)
    return found


def cycle_errors(records: Iterable[Record], trace: Callable[[Record], object]) -> list[int]:
    """Cycles of each run, less what was measured."""
    return [
        Controller(preset_name(r["preset"]), refresh=r["refresh"] == "1")
        .run(trace(r), channels=int(r.get("channels", "1")))
        .cycles
        - int(r["measured_cycles"])
        for r in records
    ]


def cycles() -> None:
    """AttAcc's simulator: cycles by family."""
    head(
        "runs of AttAcc's simulator", "runs", "MACs", "runs with another cycle count", "largest error, cycles"
    )
    single = by(table("attacc_mac_ab_single_channel.csv"), lambda r: f"one channel, {r['set']}")
    several = by(table("attacc_mac_ab_multi_channel.csv"), lambda r: f"several channels, {r['order']}")
    everything: tuple[list[int], int] = ([], 0)
    for families, trace in ((single, lambda r: rows_of(r["rows_rle"])), (several, trace_of)):
        for family, records in families.items():
            errors = cycle_errors(records, trace)
            macs = sum(int(r["n_mac"]) for r in records)
            cycle_row(family, errors, macs)
            everything = (everything[0] + errors, everything[1] + macs)
    cycle_row("all", *everything)


def cycle_row(family: str, errors: list[int], macs: int) -> None:
    """One line of that table."""
    row(family, len(errors), f"{macs:,}", sum(map(bool, errors)), max(map(abs, errors)))


def logs() -> None:
    """AttAcc's simulator: every command of the logs."""
    head("command logs of AttAcc's simulator", "logs", "commands", "commands at another clock or row")
    measured = by(table("attacc_command_logs.csv"), lambda r: r["trace_id"])
    runs = table("attacc_command_logs_traces.csv")
    commands = wrong = 0
    for r in runs:
        controller = Controller(preset_name(r["preset"]), refresh=r["refresh"] == "1")
        mine = [(c.clk, c.name, c.row) for c in controller.run(rows_of(r["rows_rle"]), log=True).log or ()]
        theirs = [(int(c["clk"]), c["command"], int(c["row"])) for c in measured[r["trace_id"]]]
        commands += len(theirs)
        wrong += len(set(mine) ^ set(theirs))
    row("all", len(runs), f"{commands:,}", wrong)


def charged() -> None:
    """Refresh charged on top of a run without it, against the measured run with it."""
    head(
        "refresh charged, one channel",
        "runs",
        "exact",
        "median error",
        "largest error",
        "left out: all row hits",
    )
    records = table("attacc_mac_ab_single_channel.csv")
    families: dict[str, tuple[list[float], list[Record]]] = {}
    for plain, refreshed in zip(records[::2], records[1::2], strict=True):
        errors, left_out = families.setdefault(plain["set"], ([], []))
        measured = int(refreshed["measured_cycles"])
        if measured > int(refreshed["last_mac_clk"]):
            left_out.append(plain)
            continue
        alone = int(plain["measured_cycles"])
        total = alone + RefreshClock(preset(preset_name(plain["preset"]))).advance(alone)
        errors.append(abs(total - measured) / measured)
    families["all"] = (
        [e for own, _ in families.values() for e in own],
        [r for _, own in families.values() for r in own],
    )
    for family, (errors, left_out) in families.items():
        median, largest = sorted(errors)[len(errors) // 2], max(errors)
        row(family, len(errors), errors.count(0), f"{median:.4%}", f"{largest:.4%}", len(left_out))


def reads() -> None:
    """Ramulator 2.1: row hits of plain reads."""
    head(
        "reads on Ramulator 2.1, refresh off",
        "runs",
        "reads",
        "row visits that differ",
        "largest error of the hit rate",
    )
    records = [r for r in table("ramulator21_hbm3_reads.csv") if r["refresh"] == "0"]
    families = by(records, lambda r: f"{r['order']} order, {r['scheduler']}")
    for family, own in families.items():
        errors, differ, total = [], 0, 0
        for r in own:
            ids = [int(block) for block in r["block_ids"].split()]
            counts = count_rows(block_reads(ids, "burst" if r["order"] == "burst" else "bank"))
            errors.append(abs(counts.hit_rate - float(r["hit_rate"])))
            visits = int(r["row_misses"]) + int(r["row_conflicts"])
            differ += abs(counts.misses + counts.conflicts - visits)
            total += int(r["n_reads_accepted"])
        row(family, len(own), f"{total:,}", differ, f"{max(errors):.6f}")


def published() -> None:
    """The published runs: the closed form of commands that are issued twice."""
    head("published runs, commands issued twice", "runs", "runs with another cycle count")
    records = table("published_attacc.csv")
    wrong = 0
    for r in records:
        commands = int(r["n_cmds"]) // 32
        visits = round(commands * (1 - float(r["m1"])))
        wrong += 14 + 12 * commands + 40 * (visits - 1) != int(r["attacc_cycles"])
    row("14 + 12 m + 40 (visits - 1)", len(records), wrong)


if __name__ == "__main__":
    if not FOLDER.is_dir():
        sys.exit(f"no measured data at {FOLDER} (set PIMKV_SHARED)")
    for part in (cycles, logs, charged, reads, published):
        part()
