"""`random`: any free block; the indices are drawn outside and fed in, one per coming take."""

from __future__ import annotations

from collections import deque

from pimkv.errors import InvalidArgument
from pimkv.reference.policy import Policy


class Random(Policy):
    """A free list 0..blocks - 1; a take picks an index drawn outside, swaps it with the last and pops.

    The draws come from outside (`feed`) so that all randomness stays with numpy.
    """

    kind = "random"

    def __init__(self, blocks: int, blocks_per_region: int) -> None:
        super().__init__(blocks, blocks_per_region)
        self.free = list(range(blocks))
        self.indices: deque[int] = deque()

    def feed(self, indices: list[int]) -> None:
        self.indices.extend(indices)

    def _pick(self, owner: int) -> int | None:
        if not self.free:
            return None
        if not self.indices:
            raise InvalidArgument("indices: none left for this take, must be fed one per take")
        index = self.indices.popleft()
        if index >= len(self.free):
            raise InvalidArgument(f"indices: {index} came for this take, must be in 0..{len(self.free) - 1}")
        self.free[index], self.free[-1] = self.free[-1], self.free[index]
        return self.free.pop()

    def _put_back(self, block: int) -> None:
        self.free.append(block)

    def check(self) -> None:
        self._check_partition(self.free)
