"""`pim-aware`: the writeup's allocator in its published structures, with its two options."""

from __future__ import annotations

import heapq

from pimkv.errors import BrokenInvariant, InvalidArgument
from pimkv.reference.policy import Policy


class PimAware(Policy):
    """Owners fill regions: region r is ids [r * G, (r + 1) * G), and an owner has at most one current region.

    A take serves (1) the lowest free id of the current region; else (2) the lowest-numbered wholly free
    region becomes current; else (3) the region with the most free ids does, the lowest index on ties. The
    current region stays current when it empties, even if another owner then gets it by (2). Earlier regions
    are not looked at.
    """

    kind = "pim-aware"

    def __init__(self, blocks: int, blocks_per_region: int) -> None:
        super().__init__(blocks, blocks_per_region)
        self.best_fit = False
        if blocks % blocks_per_region:
            raise InvalidArgument(
                f"blocks = {blocks}: must be a multiple of blocks_per_region ({blocks_per_region})"
                " for 'pim-aware'"
            )
        regions = range(blocks // blocks_per_region)
        # A sorted list is a heap, so all of these are min-heaps from the start.
        self.free_in = [list(range(r * blocks_per_region, (r + 1) * blocks_per_region)) for r in regions]
        # Every wholly free region is in here; one that is not wholly free (any more) is a stale entry.
        self.empty = list(regions)
        self.current: dict[int, int] = {}

    def _pick(self, owner: int) -> int | None:
        region = self.current.get(owner)
        if region is None or not self.free_in[region]:
            region = self._lowest_empty_region()
            if region is None:
                region = self._region_with_most_free()
            if region is None:
                return None
            self.current[owner] = region
        return heapq.heappop(self.free_in[region])

    def _lowest_empty_region(self) -> int | None:
        while self.empty:
            region = heapq.heappop(self.empty)
            if self._wholly_free(region):
                return region
        return None

    def _region_with_most_free(self) -> int | None:
        # max() keeps the first of equals, which is the lowest index
        region = max(range(len(self.free_in)), key=lambda r: len(self.free_in[r]))
        return region if self.free_in[region] else None

    def plan(self, owner: int, blocks: int) -> None:
        """Best-fit planning: with no wholly free region, start in the tightest one that holds the blocks."""
        regions = range(len(self.free_in))
        if not self.best_fit or any(self._wholly_free(r) for r in regions):
            return
        fitting = [(len(self.free_in[r]), r) for r in regions if len(self.free_in[r]) >= max(1, blocks)]
        if fitting:
            self.current[owner] = min(fitting)[1]

    def compact(self, most_used: int) -> list[tuple[int, int]]:
        """Empty every region of 1 to `most_used` taken blocks, the least used first (lowest number on ties).

        Each of its blocks, lowest id first, goes to the lowest free id of the fullest other region that has
        one and is not wholly free (lowest number on ties). A region that has received a block stays as it
        is, so that no block moves twice. Ends when a block finds no such region.
        """
        regions = range(len(self.free_in))
        used = {r: self.blocks_per_region - len(self.free_in[r]) for r in regions}
        received: set[int] = set()
        moves: list[tuple[int, int]] = []
        for _, victim in sorted((used[r], r) for r in regions if 1 <= used[r] <= most_used):
            if victim in received:
                continue
            first = victim * self.blocks_per_region
            for block in range(first, first + self.blocks_per_region):
                if block in self.in_use:
                    room = [
                        (len(self.free_in[r]), r)
                        for r in regions
                        if r != victim and self.free_in[r] and not self._wholly_free(r)
                    ]
                    if not room:
                        return moves
                    region = min(room)[1]
                    received.add(region)
                    target = heapq.heappop(self.free_in[region])
                    self.in_use.remove(block)
                    self.in_use.add(target)
                    self._put_back(block)
                    moves.append((block, target))
        return moves

    def _put_back(self, block: int) -> None:
        region = block // self.blocks_per_region
        heapq.heappush(self.free_in[region], block)
        if self._wholly_free(region):
            heapq.heappush(self.empty, region)

    def _wholly_free(self, region: int) -> bool:
        return len(self.free_in[region]) == self.blocks_per_region

    def forget(self, owner: int) -> None:
        self.current.pop(owner, None)

    def check(self) -> None:
        self._check_partition(*self.free_in)
        for region, ids in enumerate(self.free_in):
            if any(block // self.blocks_per_region != region for block in ids):
                raise BrokenInvariant(f"pim-aware: region {region} lists a foreign block: {sorted(ids)}")
            if self._wholly_free(region) and region not in self.empty:
                raise BrokenInvariant(
                    f"pim-aware: wholly free region {region} is not in the heap of empty regions"
                )
        for name, heap in [
            ("empty regions", self.empty),
            *((f"region {r}", h) for r, h in enumerate(self.free_in)),
        ]:
            if any(heap[(child - 1) // 2] > heap[child] for child in range(1, len(heap))):
                raise BrokenInvariant(f"pim-aware: heap of {name} is out of order: {heap}")
        for owner, region in self.current.items():
            if not 0 <= region < len(self.free_in):
                raise BrokenInvariant(
                    f"pim-aware: owner {owner} has current region {region}, which does not exist"
                )
