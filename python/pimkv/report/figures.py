"""The figures of `pimkv report`. Formula and controller always stand side by side, copies beside the gain."""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pimkv.report.drawn import Drawn
from pimkv.report.points import (
    BLOCK_TOKENS,
    HEADROOM,
    MODEL,
    NO_AXIS,
    Axis,
    Point,
    Slice,
    best_slice,
    fixed,
    spec_of,
)
from pimkv.report.style import CONTROLLER, FORMULA, NEUTRAL, looks, new_figure, rendered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BANDWIDTHS = (
    ("m3_gbps", "published formula", FORMULA),
    ("controller_gbps", "PIM controller", CONTROLLER),
)
GBPS = "bandwidth of KV reads (GB/s)"


@dataclass(frozen=True)
class _Kind:
    name: str
    title: str
    axis: Axis
    draw: Callable[[Slice], Figure]
    needs: dict[str, Any]
    missing: str


def draw_all(found: Sequence[Point]) -> tuple[list[Drawn], list[str]]:
    """Every figure that the points give, and a line for each they do not: what is missing and how to get it."""
    drawn, missing = [], []
    for kind in _KINDS:
        chosen = best_slice(found, kind.axis, **kind.needs)
        if chosen is None:
            missing.append(f"{kind.title}: {kind.missing}")
        else:
            drawn.append(_draw(kind, chosen))
    return drawn, missing


def _draw(kind: _Kind, chosen: Slice) -> Drawn:
    command = f"pimkv sweep figures/{kind.name}.toml"
    files = rendered(functools.partial(kind.draw, chosen), title=kind.title, command=command)
    more = "1 other set" if chosen.others == 1 else f"{chosen.others} other sets"
    others = f" {more} of points would do; this one is the fullest." if chosen.others else ""
    copies = " Copies: blocks that moves read and write over blocks that attention reads, the largest share."
    caption = f"{fixed(chosen)}.{copies * any(p.copies for p in chosen.points)}{others}"
    return Drawn(kind.name, kind.title, caption, command, spec_of(chosen, kind.title), files)


def _spread(points: Sequence[Point], name: str) -> tuple[float, float, float]:
    """Mean over seeds, and how far below and above it the extremes are."""
    values = [p.summary["exact"][name] for p in points]
    # The mean of equal values may be off by a rounding; no mean is beyond its values.
    mean = min(max(math.fsum(values) / len(values), min(values)), max(values))
    return mean, mean - min(values), max(values) - mean


def _with_copies(name: str, points: Sequence[Point], gap: str = "\n") -> str:
    """A series' name; where it moves blocks, with the largest share that its copies have."""
    most = max(p.copies for p in points)
    return f"{name}{gap}(copies {100 * most:.2g} %)" if most else name


def _lines(chosen: Slice, label: str, *, log: bool) -> Figure:
    figure, axes = new_figure(2.8 + 0.2 * -(-len(chosen.series) // 4), 2, sharey=True)
    styles = looks(chosen.series)
    for ax, (field, title, _) in zip(axes, BANDWIDTHS, strict=True):
        for series in chosen.series:
            places = [place for place in chosen.places if chosen.at(series, place)]
            cells = [_spread(chosen.at(series, place), field) for place in places]
            means, below, above = (list(column) for column in zip(*cells, strict=True))
            look = styles[series]
            ax.errorbar(
                places, means, yerr=[below, above], color=look.colour, marker=look.marker,
                linestyle=look.dashes, elinewidth=1, markerfacecolor="none", markeredgewidth=1.4, label=_with_copies(series, chosen.at(series), " "),
            )  # fmt: skip
        if log:
            ax.set_xscale("log", base=2)
        ax.set_xticks(chosen.places, [f"{place:g}" for place in chosen.places])
        ax.minorticks_off()
        ax.set_title(title)
        ax.set_xlabel(label)
    # From zero, with room for the markers of the highest line; the axes share it.
    axes[0].set_ylim(0, 1.04 * axes[0].get_ylim()[1])
    axes[0].set_ylabel(GBPS)
    _thousands(axes[0].yaxis)
    _legend(figure, axes[0])
    return figure


def _models(chosen: Slice) -> Figure:
    names, series = chosen.places, chosen.series
    figure, axes = new_figure(
        1.2 + 0.5 * len(names) * max(1, 0.35 * len(series)), 2, sharey=True, sharex=True
    )
    styles = looks(series)
    thick = 0.8 / len(series)
    for ax, (field, title, _) in zip(axes, BANDWIDTHS, strict=True):
        for number, name in enumerate(series):
            cells = [(y, chosen.at(name, place)) for y, place in enumerate(names) if chosen.at(name, place)]
            _bar_row(
                ax, [y + (number - (len(series) - 1) / 2) * thick for y, _ in cells],
                [_spread(points, field) for _, points in cells], height=0.9 * thick, color=styles[name].colour,
                label=_with_copies(name, chosen.at(name), " "),
            )  # fmt: skip
        ax.set_title(title)
        ax.set_xlabel(GBPS)
        _thousands(ax.xaxis)
    _rows(axes, names)
    _legend(figure, axes[0])
    return figure


def _bars(chosen: Slice) -> Figure:
    series = chosen.series
    figure, axes = new_figure(1.2 + 0.36 * len(series), 3, sharey=True, width_ratios=(1, 1, 1.7))
    for ax, field, title in ((axes[0], "m1", "M1: row-hit rate"), (axes[1], "m2", "M2: bank use")):
        spread = [_spread(chosen.at(s), field) for s in series]
        _bar_row(ax, range(len(series)), spread, height=0.6, color=NEUTRAL, values="{:.3f}")
        ax.set_xlim(0, 1.3)
        ax.set_xticks([0, 0.5, 1])
        ax.set_title(title)
    _two_bandwidths(axes[2], chosen)
    _rows(axes, [_with_copies(s, chosen.at(s)) for s in series])
    _legend(figure, axes[2])
    return figure


def _ablation(chosen: Slice) -> Figure:
    series = chosen.series
    figure, axes = new_figure(1.2 + 0.3 * len(series), 2, sharey=True, width_ratios=(2, 1))
    _two_bandwidths(axes[0], chosen)
    shares = [100 * sum(p.copies for p in chosen.at(s)) / len(chosen.at(s)) for s in series]
    _bar_row(
        axes[1], range(len(series)), [(s, 0, 0) for s in shares], height=0.6, color=NEUTRAL, values="{:.2g}"
    )
    axes[1].set_xlim(0, 1.3 * max(shares) or 1)
    axes[1].set_title("copies (% of reads)")
    _rows(axes, [_variant(s, chosen.at(s), known=s.split(",")[0] in series) for s in series])
    _legend(figure, axes[0])
    return figure


def _variant(series: str, points: Sequence[Point], *, known: bool) -> str:
    """What is special about a series; with the allocator's name where no row above has it, or nothing is."""
    return series if points[0].plain or not known else "\n".join(textwrap.wrap(series.partition(", ")[2], 34))


def _two_bandwidths(ax: Any, chosen: Slice) -> None:
    """Formula and controller of each series, one below the other."""
    for shift, (field, label, colour) in zip((-0.19, 0.19), BANDWIDTHS, strict=True):
        places = [y + shift for y in range(len(chosen.series))]
        spread = [_spread(chosen.at(s), field) for s in chosen.series]
        _bar_row(ax, places, spread, height=0.35, color=colour, label=label, values="{:,.0f}")
    ax.set_xlim(0, 1.2 * ax.get_xlim()[1])
    ax.set_title("bandwidth (GB/s)")
    _thousands(ax.xaxis)


def _bar_row(
    ax: Any,
    places: Sequence[float],
    spread: Sequence[tuple[float, float, float]],
    *,
    values: str = "",
    **how: Any,
) -> None:
    """Horizontal bars from 0; error bars where there are several seeds; the mean beside each if `values` says how."""
    below, above = [b for _, b, _ in spread], [a for *_, a in spread]
    errors = [below, above] if any(below) or any(above) else None
    # The labels' colour is the scheme's; matplotlib's error bars are black in both.
    ink = ax.xaxis.label.get_color()
    bars = ax.barh(
        places, [m for m, *_ in spread], xerr=errors, error_kw={"elinewidth": 0.8, "ecolor": ink}, **how
    )
    if values:
        ax.bar_label(bars, [values.format(m) for m, *_ in spread], padding=3, fontsize=7.5)


def _rows(axes: Sequence[Any], labels: Sequence[str]) -> None:
    """One row per label, the first one on top."""
    axes[0].set_yticks(range(len(labels)), labels)
    axes[0].set_ylim(len(labels) - 0.5, -0.5)
    for ax in axes:
        ax.tick_params(axis="y", left=False)
        ax.grid(visible=False, axis="y")
        ax.grid(visible=True, axis="x")


def _thousands(axis: Any) -> None:
    axis.set_major_formatter("{x:,.0f}")


def _legend(figure: Figure, ax: Any) -> None:
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))


_KINDS = (
    _Kind(
        "allocators", "Row hits, bank use and bandwidth by allocator", NO_AXIS, _bars, {"series": 2},
        "the store has no two allocators under one setting; pimkv sweep headline",
    ),
    _Kind(
        "bandwidth-block-size", "Bandwidth against block size", BLOCK_TOKENS,
        functools.partial(_lines, label="tokens per block", log=True), {"places": 2},
        "the store has no two block sizes under one setting; pimkv sweep block-size",
    ),
    _Kind(
        "bandwidth-headroom", "Bandwidth against headroom", HEADROOM,
        functools.partial(_lines, label="headroom (pool / what the batch needs)", log=False), {"places": 2},
        "the store has no two headrooms under one setting; pimkv sweep headroom",
    ),
    _Kind(
        "bandwidth-model", "Bandwidth by model", MODEL, _models, {"places": 2},
        "the store has no two models under one setting; pimkv sweep models",
    ),
    _Kind(
        "ablation", "What each option of an allocator is worth", NO_AXIS, _ablation, {"variants": True, "series": 3},
        "the store has no allocator with several settings of its options; vary allocator.options.* in a sweep",
    ),
)  # fmt: skip
