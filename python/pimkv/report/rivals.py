"""Every allocator in one table per workload and ground: rows, who is beaten, and what a rival gains at home.

A *ground* is a model on a DRAM. Bandwidth is the controller's with refresh charged; its product with the mean batch
is the attention throughput that a pool of one size gives. Figures are defined in docs/model.md.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from pimkv.config import Config
from pimkv.report.tables import Row, aligned, figure, ratio, scene, times
from pimkv.result import SCHEMA_VERSION, dumps, resolved

Summary = dict[str, Any]

BASE = "paged"

HOME: Mapping[str, str] = {
    "attacc": "hbm3-pim",
    "blockpim": "gddr6-aim",
    "neupims": "hbm2-neupims",
    "patton": "gddr6-aim",
    "pimphony": "gddr6-aim",
}
"""The DRAM whose device each rival was designed for. The others name no device of their own."""

WIDTH = 150
LEGEND_WIDTH = 120

HEADS: Sequence[Row] = (
    ("", "block", "publ.", "", "", "exact", "", "", "contr.", "", "make-", "mean", "", "pre-", "", "", "", "ns/",
     "GB/s", ""),
    ("allocator", "tok.", "M1", "M2", "M3", "M1", "M2", "M3", "GB/s", "x", "span", "batch", "waste", "empt", "stalls",
     "copies", "runs", "tok.", "x batch", "x"),
)  # fmt: skip
CLOCK = HEADS[0].index("ns/")
"""The column that only a timed comparison has."""


@dataclass(frozen=True)
class Entry:
    """One allocator in one table: the run's config and summary, or why there is none (`failed`: by our fault).

    `ns_per_token` is the policy's time in Rust over the tokens generated: wall-clock, so it enters no file.
    """

    allocator: str
    config: Config | None = None
    summary: Summary | None = None
    refused: str = ""
    failed: bool = False
    ns_per_token: float | None = None

    @property
    def gbps(self) -> float | None:
        """Controller bandwidth with refresh, GB/s."""
        return None if self.summary is None else self.summary["exact"]["controller_gbps"]

    @property
    def batch(self) -> float | None:
        """Mean batch, sequences."""
        return None if self.summary is None else self.summary["capacity"]["mean_batch"]

    @property
    def dropped(self) -> int:
        """Requests that never fit."""
        return 0 if self.summary is None else int(self.summary["dropped"])

    @property
    def throughput(self) -> float | None:
        """Bandwidth x mean batch, GB/s x sequences."""
        gbps, batch = self.gbps, self.batch
        return None if gbps is None or batch is None else gbps * batch


@dataclass(frozen=True)
class Table:
    """All allocators on one model, DRAM and workload, in the order asked for."""

    model: str
    dram: str
    workload: str
    entries: Sequence[Entry] = field(default_factory=tuple)

    @property
    def base(self) -> Entry | None:
        """What gains are over: `paged` if it ran, else the first that did."""
        ran = [entry for entry in self.entries if entry.summary is not None]
        return next((entry for entry in ran if entry.allocator == BASE), ran[0] if ran else None)

    def ranked(self) -> list[Entry]:
        """By throughput, best first; those without one last, in the order asked for."""
        return sorted(self.entries, key=lambda e: (e.throughput is None, -(e.throughput or 0.0)))

    def unbeaten(self) -> set[str]:
        """The allocators that no other reaches in both bandwidth and mean batch while passing in one.

        Only those compete that dropped the fewest requests: who leaves out the longest has easier work.
        """
        ran = [e for e in self.entries if e.throughput is not None]
        fewest = min((e.dropped for e in ran), default=0)
        points = {e.allocator: (e.gbps or 0.0, e.batch or 0.0) for e in ran if e.dropped == fewest}
        return {
            name
            for name, (gbps, batch) in points.items()
            if not any(g >= gbps and b >= batch and (g, b) != (gbps, batch) for g, b in points.values())
        }

    def gains(self, entry: Entry) -> tuple[float | None, float | None]:
        """Bandwidth and throughput of a row over the base's."""
        base = self.base
        if base is None:
            return None, None
        return ratio(entry.gbps, base.gbps), ratio(entry.throughput, base.throughput)


def rivals_text(tables: Sequence[Table], *, pareto: bool) -> str:
    """Every table, what the columns mean, and the home grounds where there is more than one ground."""
    timed = any(entry.ns_per_token is not None for table in tables for entry in table.entries)
    lines: list[str] = []
    for table in tables:
        lines += [*_table(table, pareto=pareto, timed=timed), ""]
    if len({(t.model, t.dram) for t in tables}) > 1 and (home := home_rows(tables)):
        lines += ["home ground: what a rival gains over paged where its authors built it, and where it gains most", "",
                  *aligned(home_cells(home), left=4), ""]  # fmt: skip
    return "\n".join([*lines, *legend(pareto=pareto, timed=timed)])


def legend(*, pareto: bool, timed: bool) -> list[str]:
    """What the columns mean."""
    mark = (
        "*: no other allocator that drops as few requests reaches it in both GB/s and mean batch and passes it in one. "
        if pareto
        else ""
    )
    clock = (
        "ns/tok.: CPU time of the policy in Rust per generated token, without what plans moves around it (pim-gather). "
        if timed
        else ""
    )
    text = (
        f"{mark}Sorted by GB/s x batch, the attention throughput of a pool of so many bytes: bandwidth of the controller "
        "(contr.), refresh charged where the timing has figures for it, times the mean batch. x: over paged. publ.: the "
        "study's estimator, mean over samples. exact: totals over every step. M1: row-hit rate. M2: bank use. M3: published "
        "formula, GB/s. makespan: steps from the first arrival to the end. mean batch: running sequences. waste: memory held "
        "empty / used. preempted: sequences that lost their blocks. stalls: steps in which a request waited for blocks. "
        "copies: blocks relocated, staged or copied on write. runs: of ascending ids per sequence. "
        f"{clock}An allocator with a unit of its own keeps it. Defined in docs/model.md; the rivals are in docs/rivals.md."
    )
    return textwrap.wrap(text, LEGEND_WIDTH, break_long_words=False, break_on_hyphens=False)


def _table(table: Table, *, pareto: bool, timed: bool) -> list[str]:
    base, best = table.base, table.unbeaten() if pareto else set()
    if base is not None and base.config is not None and base.summary is not None:
        head = scene(base.config, base.summary).splitlines()
    else:
        head = [f"{table.workload}: {table.model} on {table.dram}"]
    ranked = table.ranked()
    rows = [
        *HEADS,
        *(_cells(table, entry, mark=entry.allocator in best) for entry in ranked if entry.summary),
    ]
    if not timed:
        rows = [[*row[:CLOCK], *row[CLOCK + 1 :]] for row in rows]
    lines = [*head, "", *aligned(rows)] if len(rows) > len(HEADS) else head
    for entry in ranked:
        if said := _remark(entry):
            lines += textwrap.wrap(said, WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines


def _remark(entry: Entry) -> str:
    """Why a row is missing, or why its work was less than the others'."""
    if entry.summary is None:
        return f"{entry.allocator}: {entry.refused}"
    dropped, completed = entry.summary["dropped"], entry.summary["completed"]
    if dropped:
        return (
            f"{entry.allocator}: {dropped:,} of {dropped + completed:,} requests never fit and were dropped"
        )
    return ""


def _cells(table: Table, entry: Entry, *, mark: bool) -> Row:
    s = entry.summary or {}
    p, e, room = s["published"], s["exact"], s["capacity"]
    gbps, throughput = table.gains(entry)
    return (
        f"{entry.allocator}{' *' if mark else ''}",
        f"{s['block_tokens']:,}", figure(p["m1"], 3), figure(p["m2"], 3), _whole(p["m3_gbps"]),
        figure(e["m1"], 3), figure(e["m2"], 3), _whole(e["m3_gbps"]),
        _whole(e["controller_gbps"]), times(gbps),
        f"{room['makespan']:,}", figure(room["mean_batch"], 2), figure(room["waste"], 3),
        f"{s['preemptions']:,}", f"{room['stalls']:,}", f"{room['copied_blocks']:,}",
        _short(s["placement"]["runs"]), _short(entry.ns_per_token),
        figure(entry.throughput, 0), times(throughput),
    )  # fmt: skip


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _short(value: float | None) -> str:
    # A policy's time below a tenth of a nanosecond is noise of the loop subtracted from it.
    if value is None or value < 0.05:
        return "-" if value is None else "<0.1"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def home_rows(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """Per rival with a device of its own, model and workload: its gain there, and on the ground of its best gain.

    Gains are throughput (GB/s x mean batch) over `paged` on the same ground; None where the home ground was not run
    or the rival is not defined on it.
    """
    rows = []
    for rival, home in HOME.items():
        if not any(entry.allocator == rival for table in tables for entry in table.entries):
            continue
        for model, workload in dict.fromkeys((t.model, t.workload) for t in tables):
            grounds = [t for t in tables if (t.model, t.workload) == (model, workload)]
            gains = {
                t.dram: t.gains(entry) for t in grounds for entry in t.entries if entry.allocator == rival
            }
            known = {dram: both[1] for dram, both in gains.items() if both[1] is not None}
            best = max(known, key=lambda dram: known[dram], default=None)
            bandwidth, throughput = gains.get(home, (None, None))
            rows.append(
                {
                    "allocator": rival,
                    "home": home,
                    "model": model,
                    "workload": workload,
                    "home_bandwidth_gain": bandwidth,
                    "home_throughput_gain": throughput,
                    "best": best,
                    "best_throughput_gain": None if best is None else known[best],
                }
            )
    return rows


def home_cells(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The rows of `home_rows` as cells, under a head."""
    cells: list[Row] = [
        ("rival", "designed for", "model", "workload", "GB/s", "GB/s x batch", "best ground", "GB/s x batch")
    ]
    for row in rows:
        cells.append((
            row["allocator"], row["home"], row["model"], row["workload"],
            times(row["home_bandwidth_gain"]), times(row["home_throughput_gain"]),
            row["best"] or "-", times(row["best_throughput_gain"]),
        ))  # fmt: skip
    return cells


def rivals_json(tables: Sequence[Table], *, wall_clock: bool) -> str:
    """The same for machines: every run's config and summary, ranks and gains. `wall_clock` adds the timing."""
    return dumps(
        {
            "schema_version": SCHEMA_VERSION,
            "versions": {"pimkv": version("pimkv")},
            "tables": [_table_json(table, wall_clock=wall_clock) for table in tables],
            "home_ground": home_rows(tables),
        }
    )


def _table_json(table: Table, *, wall_clock: bool) -> dict[str, Any]:
    best = table.unbeaten()
    rows: list[dict[str, Any]] = []
    for entry in table.ranked():
        if entry.summary is None or entry.config is None:
            rows.append({"allocator": entry.allocator, "refused": entry.refused})
            continue
        bandwidth, throughput = table.gains(entry)
        row = {
            "allocator": entry.allocator,
            "throughput_gbps_sequences": entry.throughput,
            "bandwidth_gain": bandwidth,
            "throughput_gain": throughput,
            "unbeaten": entry.allocator in best,
            "config": resolved(entry.config),
            "summary": entry.summary,
        }
        if wall_clock:
            row["timing"] = {"policy_ns_per_token": entry.ns_per_token}
        rows.append(row)
    base = table.base
    return {
        "model": table.model,
        "dram": table.dram,
        "workload": table.workload,
        "base": None if base is None else base.allocator,
        "rows": rows,
    }
