"""One look for all figures, and files that are the same bytes whenever they are drawn from the same data."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pimkv.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("pdf", "png")

# Okabe and Ito's palette, told apart with any colour vision. What has a colour keeps it in every figure.
ORANGE, SKY, GREEN, BLUE, VERMILLION, PURPLE = (
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
FORMULA, CONTROLLER, NEUTRAL = BLUE, ORANGE, "#8d949d"
PAIR = (GREEN, PURPLE)
"""Two kinds that are neither formula nor controller."""

_OF_KIND = {
    "paged": VERMILLION,
    "pim-aware": BLUE,
    "pim-gather": GREEN,
    "contiguous": PURPLE,
    "random": ORANGE,
}
_CYCLE = (SKY, ORANGE, PURPLE, GREEN, BLUE, VERMILLION)
_MARKERS = "os^Dvp*XP<>h"
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (6, 2, 1.2, 2)))

WIDTH = 7.2
"""Inches: two columns of a paper."""

_BASE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "errorbar.capsize": 2.5,
    "legend.frameon": False,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
    # Ids inside an SVG come from this instead of a random number.
    "svg.hashsalt": "pimkv",
    "svg.fonttype": "path",
}


def _settings(*, dark: bool, background: str = "none") -> Any:
    """Settings of matplotlib, whose own type for them is a literal of every name there is."""
    text, muted, grid = ("#e6e9ec", "#9ba5b0", "#363d46") if dark else ("#1b1f24", "#59636e", "#e1e4e8")
    inks = dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), text)
    lines = dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), muted)
    return {**_BASE, **inks, **lines, "grid.color": grid, "savefig.facecolor": background, "axes.facecolor": "none",
            "figure.facecolor": "none", "xtick.labelcolor": text, "ytick.labelcolor": text}  # fmt: skip


@dataclass(frozen=True)
class Look:
    """How a series is drawn: its colour, marker and dashes differ from every other's in the figure."""

    colour: str
    marker: str
    dashes: Any


def looks(series: list[str]) -> dict[str, Look]:
    """A look for each series; the first word is its allocator. No two look alike, up to two dozen."""
    # Colours that have an owner in this figure are the last to be given to others.
    used = Counter({_OF_KIND[kind] for kind in (name.split(",")[0] for name in series) if kind in _OF_KIND})
    found: dict[str, Look] = {}
    for number, name in enumerate(series):
        kind = name.split(",")[0]
        colour = _OF_KIND.get(kind) or min(_CYCLE, key=lambda one: used[one])
        if kind not in _OF_KIND:
            used[colour] += 1
        same = sum(look.colour == colour for look in found.values())
        found[name] = Look(colour, _MARKERS[number % len(_MARKERS)], _DASHES[same % len(_DASHES)])
    return found


def new_figure(height: float, columns: int = 1, **subplots: Any) -> tuple[Figure, list[Any]]:
    """A figure of the common width with a row of axes; drawn without a window and without global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False, **subplots)
    return figure, list(axes[0])


def rendered(draw: Callable[[], Figure], *, title: str, command: str, page: bool = True) -> dict[str, bytes]:
    """A figure as "pdf" and "png", and for a page as "light" and "dark" SVG.

    Title and command go into the files as metadata.
    """
    import matplotlib

    files: dict[str, bytes] = {}
    with matplotlib.rc_context(_settings(dark=False, background="white")):
        figure = draw()
        about = {"Title": title, "Subject": command, "Creator": "pimkv", "CreationDate": None}
        files["pdf"] = _saved(figure, "pdf", about)
        files["png"] = _saved(figure, "png", {"Title": title, "Description": command, "Software": "pimkv"})
    for name, dark in (("light", False), ("dark", True)) if page else ():
        with matplotlib.rc_context(_settings(dark=dark)):
            files[name] = _saved(
                draw(), "svg", {"Title": title, "Description": command, "Creator": "pimkv", "Date": None}
            )
    return files


def _saved(figure: Figure, kind: str, about: dict[str, str | None]) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format=kind, metadata=about)
    return out.getvalue()


def has_matplotlib() -> bool:
    """Whether figures can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def check_matplotlib() -> None:
    """`MissingExtra` unless figures can be drawn."""
    if not has_matplotlib():
        raise MissingExtra("figures need matplotlib, which is not installed: pip install 'pimkv[report]'")
