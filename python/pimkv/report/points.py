"""The points of a store as figures want them: what may stand in one figure together, and the sweep that makes it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pimkv.config import geometry, load
from pimkv.report.commands import brought, given, nested
from pimkv.result import flat, resolved
from pimkv.sweep.store import Row
from pimkv.toml_io import write_toml

VARIANT = ("allocator.kind", "allocator.options.", "layout.traversal")
"""What makes a series: fields, or the beginning of their names."""

_HEADS = "controller.queries_per_command"


@dataclass(frozen=True)
class Point:
    """One finished row of a store; `series` says which allocator it is, in words."""

    config: dict[str, Any]
    values: dict[str, Any]
    summary: dict[str, Any]
    series: str
    plain: bool
    """Whether the allocator's options are its defaults."""

    @property
    def kind(self) -> str:
        return str(self.values["allocator.kind"])

    @property
    def copies(self) -> float:
        """Blocks that moves read and write over blocks that attention reads."""
        read = self.summary["blocks_read"]
        return 2 * self.summary["relocated_blocks"] / read if read else 0.0


@dataclass(frozen=True)
class Axis:
    """What a figure is drawn against: fields that may differ, and where on the axis a point stands."""

    fields: tuple[str, ...]
    place: Callable[[Point], Any]


@dataclass(frozen=True)
class Slice:
    """Points that differ in the axis, in the series and in the seed alone."""

    points: tuple[Point, ...]
    axis: Axis
    others: int
    """How many other slices, with points that are not in this one, the store has for the same figure."""

    @property
    def places(self) -> list[Any]:
        """The positions on the axis, ascending."""
        return sorted({self.axis.place(p) for p in self.points})

    @property
    def series(self) -> list[str]:
        """The series in order: allocators by name, each first with its defaults."""
        found = {(p.kind != "paged", p.kind, not p.plain, _natural(p.series), p.series) for p in self.points}
        return [name for *_, name in sorted(found)]

    def at(self, series: str, place: Any = None) -> list[Point]:
        """The points of a series at a position, one per seed."""
        return [
            p for p in self.points if p.series == series and (place is None or self.axis.place(p) == place)
        ]

    @property
    def seeds(self) -> list[int]:
        """Every seed that some point was run with."""
        return sorted({p.values["seed"] for p in self.points})


def _natural(text: str) -> tuple[tuple[int, str], ...]:
    """For sorting: "repair 8" before "repair 16"."""
    return tuple((int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", text))


NO_AXIS = Axis((), lambda _: None)
BLOCK_TOKENS = Axis(
    ("layout.block_tokens",),
    lambda p: p.values["layout.block_tokens"] or geometry(load(p.config)).block_tokens,
)
HEADROOM = Axis(("scheduler.headroom",), lambda p: p.values["scheduler.headroom"])
MODEL = Axis(("model.preset", "model."), lambda p: p.values["model.preset"])


def points(rows: Iterable[Row]) -> list[Point]:
    """The finished rows that attention was read in; failed ones have nothing to show."""
    return [
        _point(row.config, row.summary)
        for row in rows
        if row.summary is not None and row.summary["exact"]["m3_gbps"]
    ]


def _point(config: dict[str, Any], summary: dict[str, Any]) -> Point:
    values = flat(config)
    if values[_HEADS] == values["model.query_heads"] // values["model.kv_heads"]:
        # All heads of a KV head, which is another number for another model.
        values[_HEADS] = "all"
    kind = values["allocator.kind"]
    usual = _usual_options(kind)
    options = flat(config["allocator"]["options"])
    unusual = [
        f"{name} {_word(value)}" for name, value in sorted(options.items()) if value != usual.get(name)
    ]
    if values["layout.traversal"] != "token":
        unusual.append(f"{values['layout.traversal']} order")
    return Point(config, values, summary, ", ".join((kind, *unusual)), not unusual)


@cache
def _usual_options(kind: str) -> dict[str, Any]:
    return flat(resolved(load({"allocator": {"kind": kind}}))["allocator"]["options"])


def _word(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def best_slice(
    found: Sequence[Point],
    axis: Axis = NO_AXIS,
    *,
    variants: bool = False,
    places: int = 1,
    series: int = 1,
) -> Slice | None:
    """The slice that fills a figure best: most places on the axis times series, then nearest to the defaults.

    An allocator whose options are not its defaults is left out, or with `variants` every other one but for
    `paged`, to compare with. One with a unit of its own stands beside those that take what the slice has.
    None if no slice has so many series, and one of them so many places.
    """
    groups = _groups([point for point in found if point.plain or variants], ("seed", *VARIANT, *axis.fields))
    if variants:
        groups = [_with_variants(group) for group in groups]
    slices = [Slice(tuple(group), axis, 0) for group in groups]
    slices = [s for s in slices if _longest(s) >= places and len(s.series) >= series]
    if not slices:
        return None
    chosen = max(slices, key=lambda s: (len(_cells(s)), -len(_common(s))))
    # A mean over other seeds would compare other requests.
    shared = set.intersection(*_cells(chosen).values())
    kept = tuple(p for p in chosen.points if not shared or p.values["seed"] in shared)
    shown = {id(p) for p in chosen.points}
    return Slice(kept, axis, sum(any(id(p) not in shown for p in s.points) for s in slices))


def _groups(found: Sequence[Point], free: tuple[str, ...]) -> list[list[Point]]:
    """Points that agree in all fields but the free ones, and those that differ in what their allocator brings."""
    groups: dict[str, list[Point]] = {}
    guests: dict[str, list[Point]] = {}
    for point in found:
        usual = brought(point.config)
        groups.setdefault(_setting(point.values, free), []).append(point)
        if any(not name.startswith(free) for name in usual):
            guests.setdefault(_setting(point.values | usual, free), []).append(point)
    whole, guesting = [], set()
    for key, group in sorted(groups.items()):
        # Where an allocator was run with the setting itself, its own unit is another matter.
        own = {point.series for point in group}
        more = [point for point in guests.get(key, ()) if point.series not in own]
        guesting |= {id(point) for point in more}
        whole.append(group + more)
    # What stands beside the others is no set of its own as well.
    return [group for group in whole if any(id(point) not in guesting for point in group)]


def _setting(values: dict[str, Any], free: tuple[str, ...]) -> str:
    return json.dumps({n: v for n, v in values.items() if not n.startswith(free)}, sort_keys=True)


def _longest(chosen: Slice) -> int:
    """Places of the series that has most of them: points of one place each make no curve."""
    return max((len({chosen.axis.place(p) for p in chosen.at(s)}) for s in chosen.series), default=0)


def _with_variants(group: list[Point]) -> list[Point]:
    unusual = {p.kind for p in group if not p.plain}
    return [p for p in group if p.kind in unusual or (unusual and p.series == "paged")]


def _cells(chosen: Slice) -> dict[tuple[str, Any], set[int]]:
    """The seeds of each series at each place."""
    cells: dict[tuple[str, Any], set[int]] = {}
    for p in chosen.points:
        cells.setdefault((p.series, chosen.axis.place(p)), set()).add(p.values["seed"])
    return cells


def _common(chosen: Slice) -> dict[str, Any]:
    """The fields in which all points agree and differ from a plain run, by dotted name."""
    named = [given(p.config) for p in chosen.points]
    first = named[0]
    free = ("seed", "allocator.", *chosen.axis.fields)
    return {
        name: value
        for name, value in first.items()
        if not name.startswith(free) and all(other.get(name) == value for other in named)
    }


def fixed(chosen: Slice) -> str:
    """What all points of a slice share, in words: requests, model, DRAM, and what differs from a plain run."""
    # Not one that comes with a setting of its own, where there is another.
    values = min(chosen.points, key=lambda p: len(_brought(p, chosen.axis))).values
    source = values["workload.trace"] or values["workload.kind"]
    words = [f"{source}, {values['workload.requests'] or 'all'} requests"]
    for name in ("model.preset", "dram.preset"):
        if not name.startswith(chosen.axis.fields):
            words.append(str(values[name]))
    if not "layout.block_tokens".startswith(chosen.axis.fields):
        words.append(f"{values['layout.block_tokens'] or 'one region of'} tokens per block")
    if "scheduler.headroom" not in chosen.axis.fields:
        words.append(f"headroom {values['scheduler.headroom']:g}")
    words.append(f"{values['scheduler.admission']} admission, {values['layout.kv_layout']}")
    told = ("workload.", "model.preset", "dram.preset", "layout.block_tokens", "layout.kv_layout",
            "scheduler.headroom", "scheduler.admission")  # fmt: skip
    words += [f"{n} {_word(v)}" for n, v in sorted(_common(chosen).items()) if not n.startswith(told)]
    for name in chosen.series:
        if own := _brought(chosen.at(name)[0], chosen.axis):
            words.append(f"{name} with its own {' and '.join(own)}")
    seeds = chosen.seeds
    words.append(
        f"seed {seeds[0]}" if len(seeds) == 1 else f"mean of {len(seeds)} seeds, bars from least to most"
    )
    return "; ".join(words)


def _brought(point: Point, axis: Axis) -> list[str]:
    """What the allocator brings, in words, but for what the axis shows."""
    names = (n for n in sorted(brought(point.config)) if not n.startswith(axis.fields))
    return [f"{n.rpartition('.')[2].replace('_', ' ')} {_word(point.values[n])}" for n in names]


def spec_of(chosen: Slice, title: str) -> str:
    """A sweep spec that makes the points of a slice, as TOML."""
    common = _common(chosen)
    cells: dict[str, dict[str, Any]] = {}
    for point in chosen.points:
        cell = {"allocator.kind": point.kind}
        cell |= {name: point.values[name] for name in chosen.axis.fields if name in point.values}
        cell |= {n: v for n, v in given(point.config).items() if n not in common and n != "seed"}
        cells.setdefault(json.dumps(cell, sort_keys=True), cell)
    entries = "\n".join(
        "[[list]]\n" + "".join(f"{json.dumps(n)} = {json.dumps(v)}\n" for n, v in cell.items())
        for _, cell in sorted(cells.items())
    )
    base = write_toml({"base": nested(common)}).strip()
    head = f"# {title}: the sweep that makes its data.\nseeds = {json.dumps(chosen.seeds)}\n"
    return "\n".join([head, base, "", entries]) if base else "\n".join([head, entries])


def varying(found: Sequence[Point]) -> list[str]:
    """The fields, but for those that make the series, that were asked for and in which points differ."""
    asked = sorted({name for point in found for name in given(point.config) if not name.startswith(VARIANT)})
    return [name for name in asked if len({json.dumps(p.values.get(name)) for p in found}) > 1]
