"""The free-block policies in their published structures, and Pool, a policy by itself.

A policy knows block ids and owners (sequences, a prefix, the scratch), never block tables or reference
counts. It hands out one block at a time; a block handed out is in use until it is given back.
"""

from __future__ import annotations

import copy
import difflib
import heapq
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from pimkv.errors import BrokenInvariant, DoubleFree, ForeignBlock, InvalidArgument
from pimkv.reference.arguments import Ints, integer, vector


class Policy:
    """What every policy has: ids 0..blocks - 1, of which `in_use` are handed out.

    A subclass says which block comes next (`_pick`), how one returns (`_put_back`) and what must hold
    (`check`).
    """

    kind = ""

    def __init__(self, blocks: int, blocks_per_region: int) -> None:
        self.blocks = blocks
        self.blocks_per_region = blocks_per_region
        self.in_use: set[int] = set()

    def take(self, owner: int) -> int | None:
        """The next block for `owner`, or None when there is none."""
        block = self._pick(owner)
        if block is not None:
            self.in_use.add(block)
        return block

    def give(self, block: int) -> None:
        """Take back a block that is in use."""
        self.in_use.remove(block)
        self._put_back(block)

    def forget(self, owner: int) -> None:
        """Drop what is remembered about `owner`; its blocks stay in use. Nothing by default."""

    def reserve(self, owner: int, blocks: int, scratch: int) -> bool:
        """Set aside a span for `owner`; only for policies that reserve."""
        raise InvalidArgument(f"kind = {self.kind!r}: reserve needs 'contiguous'")

    def plan(self, owner: int, blocks: int) -> None:
        """Hear that `owner` is about to take so many blocks at once. Nothing by default."""

    def compact(self, most_used: int) -> list[tuple[int, int]]:
        """Empty a region of at most `most_used` blocks and return the moves; only for regions."""
        raise InvalidArgument(f"kind = {self.kind!r}: compact needs 'pim-aware'")

    def feed(self, indices: list[int]) -> None:
        """Queue the indices drawn for the coming takes; only for policies that draw."""
        raise InvalidArgument(f"kind = {self.kind!r}: feed needs 'random'")

    @property
    def free_blocks(self) -> int:
        """Blocks neither in use nor reserved."""
        return self.blocks - len(self.in_use)

    def check(self) -> None:
        """Raise BrokenInvariant unless the structures agree with each other and with `in_use`."""
        raise NotImplementedError

    def _pick(self, owner: int) -> int | None:
        raise NotImplementedError

    def _put_back(self, block: int) -> None:
        raise NotImplementedError

    def _check_partition(self, *parts: list[int]) -> None:
        """The parts and the blocks in use hold every id of the pool exactly once."""
        everything = sorted([*self.in_use, *(block for part in parts for block in part)])
        if everything != list(range(self.blocks)):
            raise BrokenInvariant(
                f"{self.kind}: in use and free blocks are not ids 0..{self.blocks - 1} once each"
            )


class Paged(Policy):
    """A stack filled with ids 0..blocks - 1, so a fresh pool hands out descending ids, last freed first."""

    kind = "paged"

    def __init__(self, blocks: int, blocks_per_region: int) -> None:
        super().__init__(blocks, blocks_per_region)
        self.stack = list(range(blocks))

    def _pick(self, owner: int) -> int | None:
        return self.stack.pop() if self.stack else None

    def _put_back(self, block: int) -> None:
        self.stack.append(block)

    def check(self) -> None:
        self._check_partition(self.stack)


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


class Contiguous(Policy):
    """One span per owner, first fit at the lowest address; takes are the span's ids in order.

    A block given back is free at once and merges with its neighbours; `forget` frees what the owner never
    took.
    """

    kind = "contiguous"

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


# Registration: one line per kind.
POLICIES: dict[str, type[Policy]] = {
    "paged": Paged,
    "pim-aware": PimAware,
    "contiguous": Contiguous,
    "random": Random,
    "pim-gather": PimGather,
}


def check_region_impl(name: str) -> None:
    """InvalidArgument for an unknown one. The twin keeps the published heaps under either: the ids are the same."""
    if name not in ("indexed", "heaps"):
        raise InvalidArgument(f"region_impl = {name!r}: must be indexed or heaps")


def make_policy(kind: str, blocks: int, blocks_per_region: int) -> Policy:
    """A fresh policy of that kind with all blocks free; InvalidArgument for an unknown kind or a bad size."""
    if kind not in POLICIES:
        near = difflib.get_close_matches(str(kind), POLICIES, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise InvalidArgument(f"kind = {kind!r}: must be one of {', '.join(POLICIES)}{hint}")
    return POLICIES[kind](integer("blocks", blocks, 1), integer("blocks_per_region", blocks_per_region, 1))


@contextmanager
def undone_on_error(holder: Any, policy: Policy) -> Iterator[None]:
    """Put the attributes of `holder`, which owns `policy`, back if the body raises InvalidArgument.

    Only drawn indices can prove wrong half-way through a call, so only `random` pays for the copy.
    """
    saved = copy.deepcopy(holder.__dict__) if isinstance(policy, Random) else {}
    try:
        yield
    except InvalidArgument:
        holder.__dict__.update(saved)
        raise


class Pool:
    """A policy by itself: `blocks` block ids handed out to owners (ints, 0 or more).

    `kind` is one of POLICIES; `blocks_per_region` (G) is the number of consecutive ids that fill one DRAM
    region, of which `blocks` must be a multiple for `pim-aware`. A failed call changes nothing.
    """

    def __init__(
        self, kind: str, blocks: int, *, blocks_per_region: int = 1, region_impl: str = "indexed"
    ) -> None:
        check_region_impl(region_impl)
        self._policy = make_policy(kind, blocks, blocks_per_region)

    def take(self, owner: int, n: int) -> Ints:
        """The ids of `n` blocks taken for `owner` one by one, int64; fewer when the pool runs out.

        For `contiguous` it runs out at the end of the owner's span. Raises InvalidArgument for a negative
        number or (`random`) for a missing or too large index.
        """
        owner = integer("owner", owner, 0)
        taken: list[int] = []
        with undone_on_error(self, self._policy):
            for _ in range(integer("n", n, 0)):
                block = self._policy.take(owner)
                if block is None:
                    break
                taken.append(block)
        return np.array(taken, dtype=np.int64)

    def give(self, ids: Ints) -> None:
        """Give back the blocks `ids` (int64, one-dimensional) in that order, all or none.

        Raises ForeignBlock for an id outside the pool and DoubleFree for one that is not in use or comes
        twice; the first such id counts.
        """
        blocks = vector("ids", ids, -(2**63))
        seen: set[int] = set()
        for block in blocks:
            if not 0 <= block < self._policy.blocks:
                raise ForeignBlock(f"ids contains {block}: the pool has blocks 0..{self._policy.blocks - 1}")
            if block in seen:
                raise DoubleFree(f"ids contains {block} twice: a block can be given back once")
            if block not in self._policy.in_use:
                raise DoubleFree(f"ids contains {block}: that block is not in use")
            seen.add(block)
        for block in blocks:
            self._policy.give(block)

    def forget(self, owner: int) -> None:
        """Drop what the policy remembers about `owner` (its current region, the untaken rest of its span)."""
        self._policy.forget(integer("owner", owner, 0))

    def reserve(self, owner: int, n: int) -> bool:
        """Reserve `n` blocks (1 or more) in a row for `owner`, first fit; False if no extent is long enough.

        `contiguous` only: InvalidArgument otherwise, and when the owner already holds a span.
        """
        return self._policy.reserve(integer("owner", owner, 0), integer("n", n, 1), 0)

    def feed(self, indices: Ints) -> None:
        """Queue the indices numpy drew, one per coming take (`random` only: InvalidArgument otherwise)."""
        self._policy.feed(vector("indices", indices, 0, self._policy.blocks - 1))

    @property
    def free_blocks(self) -> int:
        """Blocks neither in use nor reserved."""
        return self._policy.free_blocks

    def check(self) -> None:
        """Raise BrokenInvariant unless free, reserved and used blocks are every id once and all agrees."""
        self._policy.check()
