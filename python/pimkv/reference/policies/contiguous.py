"""`contiguous`: one span per owner, first fit at the lowest address; spans merge when they are freed."""

from __future__ import annotations

from itertools import pairwise

from pimkv.errors import BrokenInvariant, InvalidArgument
from pimkv.reference.policy import Policy


class Contiguous(Policy):
    """One span per owner, first fit at the lowest address; takes are the span's ids in order.

    A block given back is free at once and merges with its neighbours; `forget` frees what the owner never
    took.
    """

    kind = "contiguous"
    reserves = True

    def __init__(self, blocks: int, blocks_per_region: int) -> None:
        super().__init__(blocks, blocks_per_region)
        # Free extents [start, end), ascending, never adjacent.
        self.extents = [(0, blocks)]
        # owner: (next id to take, end of the ids to take, end of the span); scratch lies between the ends.
        self.spans: dict[int, tuple[int, int, int]] = {}

    def reserve(self, owner: int, blocks: int, scratch: int) -> bool:
        if owner in self.spans:
            raise InvalidArgument(f"owner = {owner}: already holds a span, must hold none to reserve")
        size = blocks + scratch
        for place, (start, end) in enumerate(self.extents):
            if end - start >= size:
                rest = [(start + size, end)] if end - start > size else []
                self.extents[place : place + 1] = rest
                self.spans[owner] = (start, start + blocks, start + size)
                return True
        return False

    def _pick(self, owner: int) -> int | None:
        if owner not in self.spans:
            return None
        block, takable_end, span_end = self.spans[owner]
        if block == takable_end:
            return None
        self.spans[owner] = (block + 1, takable_end, span_end)
        return block

    def _put_back(self, block: int) -> None:
        self._free_extent(block, block + 1)

    def forget(self, owner: int) -> None:
        if owner in self.spans:
            untaken, _, span_end = self.spans.pop(owner)
            if untaken < span_end:
                self._free_extent(untaken, span_end)

    def _free_extent(self, start: int, end: int) -> None:
        merged: list[tuple[int, int]] = []
        for extent in sorted([*self.extents, (start, end)]):
            if merged and merged[-1][1] == extent[0]:
                merged[-1] = (merged[-1][0], extent[1])
            else:
                merged.append(extent)
        self.extents = merged

    @property
    def free_blocks(self) -> int:
        return sum(end - start for start, end in self.extents)

    def check(self) -> None:
        free = [block for start, end in self.extents for block in range(start, end)]
        reserved = [block for start, _, end in self.spans.values() for block in range(start, end)]
        self._check_partition(free, reserved)
        if any(start >= end for start, end in self.extents):
            raise BrokenInvariant(f"contiguous: an extent is empty: {self.extents}")
        if any(low[1] >= high[0] for low, high in pairwise(self.extents)):
            raise BrokenInvariant(f"contiguous: extents are out of order or not merged: {self.extents}")
        for owner, (untaken, takable_end, span_end) in self.spans.items():
            if not untaken <= takable_end <= span_end:
                raise BrokenInvariant(f"contiguous: span of owner {owner} is out of order")
