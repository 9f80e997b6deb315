"""Recorded placements as the row map of the page reads them: the records as they are, and figures per step."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pimkv.placement import Placement
from pimkv.report.commands import run_command
from pimkv.report.palette import HUES, TONES

GATHERING = ("pim-gather", "pim-aware")
"""What the right map shows at first, if it was recorded; the left one shows `paged`."""


@dataclass(frozen=True)
class Recording:
    """A placement and the name of the file it came from, without its folder."""

    file: str
    placement: Placement

    @cached_property
    def figures(self) -> dict[str, list[int]]:
        """What `figures_of` counts; once, for a long recording takes seconds."""
        return figures_of(self.placement)


def figures_of(placement: Placement) -> dict[str, list[int]]:
    """Per recorded step: running sequences, blocks they hold (a shared one once), regions opened and the fewest.

    Regions opened are the distinct (sequence, region) pairs, for reading one sequence after the other opens a
    region for each; the fewest are ceil(blocks / blocks per region), summed over the sequences.
    """
    regions = -(-placement.blocks // placement.blocks_per_region)
    rows: list[tuple[int, int, int, int]] = []
    for _, table in placement.frames():
        sequences, held = np.unique(table["sequence"], return_counts=True)
        pairs = np.unique(table["sequence"] * regions + table["block"] // placement.blocks_per_region)
        fewest = -(-held // placement.blocks_per_region)
        rows.append((len(sequences), len(np.unique(table["block"])), len(pairs), int(fewest.sum())))
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    return dict(zip(("running", "held", "pairs", "fewest"), columns, strict=True))


def named(recordings: Sequence[Recording]) -> list[str]:
    """A name for each, without two alike: the allocator, with the file where that is not enough."""
    kinds = [r.placement.config["allocator"]["kind"] for r in recordings]
    names = [
        kind if kinds.count(kind) == 1 else f"{kind} ({r.file})"
        for kind, r in zip(kinds, recordings, strict=True)
    ]
    return [
        name if names.count(name) == 1 else f"{name} no. {names[: i + 1].count(name)}"
        for i, name in enumerate(names)
    ]


def page_data(recordings: Sequence[Recording]) -> dict[str, Any]:
    """All recordings as the script of the page wants them, and which two it shows first."""
    return {
        "recordings": [
            {
                "name": name,
                "blocks": r.placement.blocks,
                "perRegion": r.placement.blocks_per_region,
                "blockTokens": r.placement.block_tokens,
                "steps": r.placement.steps.tolist(),
                **r.figures,
                "records": base64.b64encode(r.placement.records.tobytes()).decode(),
            }
            for name, r in zip(named(recordings), recordings, strict=True)
        ],
        **first_two(recordings),
        "palette": {"hues": HUES, "tones": TONES},
    }


def first_two(recordings: Sequence[Recording]) -> dict[str, int]:
    """Which two are shown first: `paged` on the left, what gathers a sequence on the right."""
    kinds = [r.placement.config["allocator"]["kind"] for r in recordings]
    left = kinds.index("paged") if "paged" in kinds else 0
    others = [i for i in range(len(kinds)) if i != left] or [0]
    right = next((i for kind in GATHERING for i in others if kinds[i] == kind), others[0])
    return {"left": left, "right": right}


def origin(recording: Recording) -> str:
    """The command that records this placement."""
    placement = recording.placement
    every = f" --record-every {placement.every}" if placement.every > 1 else ""
    return f"{run_command(placement.config)} --record-placement {recording.file}{every}"
