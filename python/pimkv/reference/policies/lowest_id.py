"""`lowest-id`: the smallest free id first, the one-line change to vLLM; with chunks for blocks, `pimphony`."""

from __future__ import annotations

import heapq

from pimkv.reference.policy import Policy


class LowestId(Policy):
    """A min-heap of the free ids."""

    kind = "lowest-id"

    def __init__(self, blocks: int, blocks_per_region: int) -> None:
        super().__init__(blocks, blocks_per_region)
        self.heap = list(range(blocks))  # a sorted list is a heap

    def _pick(self, owner: int) -> int | None:
        return heapq.heappop(self.heap) if self.heap else None

    def _put_back(self, block: int) -> None:
        heapq.heappush(self.heap, block)

    def check(self) -> None:
        self._check_partition(self.heap)
