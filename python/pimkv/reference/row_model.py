"""Row hits of plain reads: banks with an open-row policy, served in order bank by bank.

For checks against simulators of ordinary DRAM, where each bank has its own row. FR-FCFS reorders reads within
a queue of some tens, but reads of a block table come row visit by row visit in every bank, so it changes no
bank's order of visits and in-order is exact on the activations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Bank = tuple[int, int]
"""A pseudo-channel and a bank of it."""


@dataclass(frozen=True)
class RowCounts:
    """What reads found: their row open (hit), no row open (miss) or another row open (conflict)."""

    hits: int
    misses: int
    conflicts: int

    @property
    def hit_rate(self) -> float:
        """Hits per read; 0 without reads."""
        reads = self.hits + self.misses + self.conflicts
        return self.hits / reads if reads else 0.0


def count_rows(reads: Iterable[tuple[Bank, int]]) -> RowCounts:
    """Counts hits, misses and conflicts of (bank, row) reads in order."""
    open_rows: dict[Bank, int] = {}
    hits = misses = conflicts = 0
    for bank, row in reads:
        if bank not in open_rows:
            misses += 1
        elif open_rows[bank] == row:
            hits += 1
        else:
            conflicts += 1
        open_rows[bank] = row
    return RowCounts(hits, misses, conflicts)


def block_reads(
    block_ids: Iterable[int],
    order: Literal["burst", "bank"] = "burst",
    *,
    blocks_per_row: int = 8,
    columns: int = 4,
    banks: int = 16,
    pseudo_channels: int = 2,
) -> Iterable[tuple[Bank, int]]:
    """The reads of a block table: every block has `columns` bursts in each bank, all of one row index.

    `burst`: all banks' first burst, then all banks' second, and so on; `bank`: all of a bank, then the next.
    """
    places = [(pch, bank) for bank in range(banks) for pch in range(pseudo_channels)]
    for block in block_ids:
        row = block // blocks_per_row
        if order == "burst":
            yield from ((place, row) for _ in range(columns) for place in places)
        else:
            yield from ((place, row) for place in places for _ in range(columns))
