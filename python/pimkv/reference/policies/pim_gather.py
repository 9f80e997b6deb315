"""`pim-gather`: what the planner of relocations stands on."""

from __future__ import annotations

import heapq

from pimkv.errors import InvalidArgument
from pimkv.reference.policies.pim_aware import PimAware


class PimGather(PimAware):
    """`pim-aware` whose blocks a planner may choose; what it gathers is planned from the manager's tables."""

    kind = "pim-gather"

    def take_at(self, block: int) -> None:
        """Hand out that free block."""
        region = self.free_in[block // self.blocks_per_region]
        region.remove(block)
        heapq.heapify(region)
        self.in_use.add(block)

    def compact(self, most_used: int) -> list[tuple[int, int]]:
        """Refused: a planner that gathers sequences has no use for it."""
        raise InvalidArgument(f"kind = {self.kind!r}: compact needs 'pim-aware'")

    def plan(self, owner: int, blocks: int) -> None:
        """Nothing: best-fit planning is an option of `pim-aware`."""
