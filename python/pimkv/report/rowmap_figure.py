"""The row map as a figure: two recorded placements side by side at the step that costs the left one most."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pimkv.placement import Records
from pimkv.report.drawn import Drawn
from pimkv.report.palette import colour_of
from pimkv.report.rowmap import Recording, first_two, named, origin
from pimkv.report.style import NEUTRAL, new_figure, rendered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "row-map"
TITLE = "Row map: which sequence holds which slot of which region"
ACROSS, DOWN = 1.8, 1.3
"""Room that a column takes beyond its slots, and a region from top to top, in slots."""

Tile = tuple[float, float, float, str, float]
"""x, y, width, colour and opacity of a rectangle one slot high."""


def draw_row_map(recordings: Sequence[Recording]) -> Drawn:
    """The two recordings that the page shows first. Equal recordings give equal bytes."""
    names = named(recordings)
    shown = [(names[i], recordings[i]) for i in dict.fromkeys(first_two(recordings).values())]
    pairs = shown[0][1].figures["pairs"]
    step = int(shown[0][1].placement.steps[pairs.index(max(pairs))])
    panels = [_panel(name, recording, step) for name, recording in shown]
    command = " ; ".join(origin(recording) for _, recording in shown)
    caption = (
        f"Decode step {step:,}, where {shown[0][0]} opens most regions. Every strip is a region: one row index in every "
        "bank of every channel. A colour is a sequence; slots side by side of one sequence join into a bar. Grey: "
        "shared by several sequences; pale: no running sequence, or the empty part of a block."
    )
    files = rendered(functools.partial(_draw, panels), title=TITLE, command=command, page=False)
    return Drawn(NAME, TITLE, caption, command, "", files)


def _panel(name: str, recording: Recording, step: int) -> tuple[str, list[Tile], tuple[float, float]]:
    """Title, tiles and size of one map, in slots."""
    placement = recording.placement
    frame = int(np.searchsorted(placement.steps, step, side="right")) - 1
    per_region = placement.blocks_per_region
    regions = -(-placement.blocks // per_region)
    columns = _columns(regions, per_region)
    rows = -(-regions // columns)
    size = (columns * (per_region + ACROSS) - ACROSS, rows * DOWN)

    def corner(block: int) -> tuple[float, float]:
        region, slot = divmod(block, per_region)
        return region // rows * (per_region + ACROSS) + slot, region % rows * DOWN

    tiles: list[Tile] = []
    for region in range(regions):
        first = region * per_region
        width = min(per_region, placement.blocks - first)
        tiles.append((*corner(first), width, NEUTRAL, 0.22))
    if frame < 0:
        return f"{name}\nnothing has run yet", tiles, size
    at = int(placement.steps[frame])
    for block, width, filled, colour in _runs(placement.at(at), per_region, placement.block_tokens):
        x, y = corner(block)
        tiles += [(x, y, width - 0.12, colour, 0.35), (x, y, min(filled, width - 0.12), colour, 1.0)]
    told = {key: values[frame] for key, values in recording.figures.items()}
    opened = f"{told['pairs']:,} regions opened (fewest {told['fewest']:,})"
    return f"{name}\n{told['running']} sequences, {opened}", tiles, size


def _columns(regions: int, per_region: int) -> int:
    """The number of columns that makes a map about as high as wide."""
    return min(
        range(1, regions + 1),
        key=lambda n: abs(-(-regions // n) * DOWN - 0.9 * n * (per_region + ACROSS)),
    )


def _runs(table: Records, per_region: int, block_tokens: int) -> list[tuple[int, int, float, str]]:
    """(first block, blocks, filled blocks, colour) of blocks of one region that the same sequences hold."""
    holders: dict[int, tuple[list[int], int]] = {}
    for block, sequence, _, tokens in table.tolist():
        holders.setdefault(block, ([], tokens))[0].append(sequence)
    runs: list[tuple[int, int, float, str]] = []
    last: tuple[int, list[int]] | None = None
    for block, (sequences, tokens) in holders.items():
        part = tokens / block_tokens
        if last == (block - 1, sequences) and block % per_region:
            first, width, _, colour = runs[-1]
            runs[-1] = (first, width + 1, width + part, colour)
        else:
            runs.append((block, 1, part, colour_of(sequences[0]) if len(sequences) == 1 else "#6b7078"))
        last = (block, sequences)
    return runs


def _draw(panels: Sequence[tuple[str, list[Tile], tuple[float, float]]]) -> Figure:
    from matplotlib.collections import PolyCollection

    figure, axes = new_figure(3.5 if len(panels) > 1 else 6.6, len(panels))
    # The two maps must not look like one.
    figure.set_layout_engine("constrained", wspace=0.1)
    for ax, (title, tiles, (width, height)) in zip(axes, panels, strict=True):
        corners = [[(x, y), (x + w, y), (x + w, y + 1), (x, y + 1)] for x, y, w, *_ in tiles]
        colours: Any = [(colour, opacity) for *_, colour, opacity in tiles]
        ax.add_collection(PolyCollection(corners, facecolors=colours, linewidths=0))
        ax.set_xlim(0, width)
        ax.set_ylim(height, 0)
        ax.set_aspect("equal")
        ax.set_axis_off()
        ax.set_title(title, fontsize=8)
    return figure
