"""A whole report, from what it is given to the bytes of its files; nothing is read or written here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pimkv.report.cost_figure import cost_table, draw_cost
from pimkv.report.drawn import Drawn, Table
from pimkv.report.figures import draw_all
from pimkv.report.page import page
from pimkv.report.points import Point, points, varying
from pimkv.report.rowmap import Recording
from pimkv.report.rowmap_figure import NAME as ROW_MAP
from pimkv.report.rowmap_figure import draw_row_map
from pimkv.report.style import FORMATS, check_matplotlib, has_matplotlib
from pimkv.report.tables import figure
from pimkv.sweep.store import Row

PAGE = "report.html"
FOLDER = "figures"
MOST_ROWS = 1000
COST_MISSING = "CPU time of the allocator: times are in no store; pimkv bench cost --json > cost.json, then --cost cost.json"


@dataclass(frozen=True)
class Report:
    """The files of a report by their names within its folder, and a line for each figure that is not among them."""

    files: dict[str, bytes]
    left_out: list[str]


def build(
    *,
    store: str | None = None,
    rows: Sequence[Row] = (),
    recordings: Sequence[Recording] = (),
    cost: dict[str, Any] | None = None,
) -> Report:
    """The report: a page, and each figure as PDF and PNG with the sweep that makes its data.

    `store` is the name of the store that `rows` came from, None without one. Equal arguments give equal bytes.
    Raises `MissingExtra` where there are figures to draw and matplotlib is not installed.
    """
    drawn: list[Drawn] = []
    left_out: list[str] = []
    tables: list[Table] = []
    if store is not None or cost is not None:
        check_matplotlib()
    left_out += [
        f"row map of {r.file}: it holds no decode step" for r in recordings if not len(r.placement.steps)
    ]
    recordings = [r for r in recordings if len(r.placement.steps)]
    if recordings and has_matplotlib():
        drawn.append(draw_row_map(recordings))
    elif recordings:
        left_out.append("row map as a figure: matplotlib is not installed; pip install 'pimkv[report]'")
    found = points(rows)
    if store is not None:
        more, missing = draw_all(found)
        drawn += more
        left_out += missing
        if found:
            tables.append(_all_points(found, store))
        if cost is None:
            left_out.append(COST_MISSING)
    if cost is not None:
        drawn.append(draw_cost(cost))
        tables.append(cost_table(cost))
    text = page(
        title="KV-PIMple report",
        sources=_sources(store, rows, recordings, cost),
        recordings=recordings,
        tables=tables,
        plots=[one for one in drawn if one.name != ROW_MAP],
        left_out=left_out,
    )
    files = {PAGE: text.encode()}
    for one in drawn:
        files |= {f"{FOLDER}/{one.name}.{kind}": one.files[kind] for kind in FORMATS}
        if one.spec:
            files[f"{FOLDER}/{one.name}.toml"] = one.spec.encode()
    return Report(files, left_out)


def _sources(
    store: str | None, rows: Sequence[Row], recordings: Sequence[Recording], cost: dict[str, Any] | None
) -> str:
    parts = []
    if store is not None:
        failed = sum(row.error is not None for row in rows)
        parts.append(f"{store}: {len(rows):,} points" + (f", {failed:,} of them failed" if failed else ""))
    parts += [f"placement {recording.file}" for recording in recordings]
    if cost is not None:
        parts.append(f"cost measured on {cost['host']['cpu']}")
    return "; ".join(parts)


def _all_points(found: Sequence[Point], store: str) -> Table:
    """Every point with the fields that vary and its figures."""
    names = varying(found)
    head = (
        "allocator", *map(_short, names), "M1", "M2", "formula GB/s", "controller GB/s", "copies %", "region spread", "preempted",
    )  # fmt: skip
    rows = []
    for point in found[:MOST_ROWS]:
        exact, spread = point.summary["exact"], point.summary["placement"]["region_spread"]
        rows.append((
            point.series, *(_cell(point.values.get(name)) for name in names),
            figure(exact["m1"], 4), figure(exact["m2"], 4), figure(exact["m3_gbps"], 1),
            figure(exact["controller_gbps"], 1), figure(100 * point.copies, 3), figure(spread, 2),
            f"{point.summary['preemptions']:,}",
        ))  # fmt: skip
    note = "Exact aggregate over every decode step of every sequence. docs/model.md defines every figure."
    if len(found) > MOST_ROWS:
        note += f" The first {MOST_ROWS:,} of {len(found):,} points; the others: pimkv results ls --store {store}."
    return Table("All points", note, head, rows, words=1 + len(names))


def _short(name: str) -> str:
    """A field without its section; of a preset the section."""
    section, _, field = name.rpartition(".")
    return section if field in ("preset", "kind") else field.replace("_", " ")


def _cell(value: object) -> str:
    return "-" if value is None else str(value)
