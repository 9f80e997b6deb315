"""`pim-gather` by the rules: every plan is made by looking at all tables and all regions.

A pair is a sequence and a region in which it has blocks; the fewer pairs, the fewer activations. A group is
the blocks of one pair. It is pinned if one of its blocks is held more than once; pinned groups, groups that
fill their region and blocks outside tables (prefixes, branches) never move.

Copies come in sets that are performed in parallel: a block that a copy of the present set reads or writes is
neither moved nor a target until the set is handed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from pimkv.reference.policies.pim_aware import PimAware

Move = tuple[int, int, int]
"""(sequence, block it leaves, block it goes to)."""

TABLE, COPY, BRANCH = "table", "copy", "branch"
"""What a claimed block is for: to join the table, to be a copy on write in it, to be a speculation branch."""

LOOKED_AT = 64
"""Sequences that one repair looks at."""


class HasBlocks(Protocol):
    """A sequence, as far as a planner looks at it."""

    blocks: list[int]


@dataclass
class Claim:
    """A block for a sequence will come from `region`, after the moves."""

    region: int
    moves: list[Move] = field(default_factory=list)
    split: bool = False


class Gather:
    """Plans for the tables `sequences` over `policy`; moves nothing itself."""

    def __init__(
        self,
        policy: PimAware,
        sequences: Mapping[int, HasBlocks],
        references: Counter[int],
        *,
        own_first: bool,
        relocate_tail: bool,
    ) -> None:
        self.policy = policy
        self.sequences = sequences
        self.references = references
        self.own_first = own_first
        self.relocate_tail = relocate_tail
        self.size = policy.blocks_per_region
        self.regions = range(policy.blocks // self.size)
        # The present set of copies: all blocks in it, and the source of each target.
        self.touched: set[int] = set()
        self.origins: dict[int, int] = {}
        # The sequence from which the next repair looks on.
        self.cursor = 0

    def note(self, source: int, target: int) -> None:
        """A copy joins the present set."""
        self.touched |= {source, target}
        self.origins[target] = source

    def begin_set(self) -> None:
        """The copies so far have been handed over."""
        self.touched.clear()
        self.origins.clear()

    # ---- what there is ----

    def group(self, seq: int, region: int) -> list[int]:
        """The sequence's blocks in the region, ascending."""
        return sorted(b for b in self.sequences[seq].blocks if b // self.size == region)

    def own(self, seq: int, region: int) -> int:
        """How many of them nothing else holds."""
        return sum(self.references[b] == 1 for b in self.group(seq, region))

    def pinned(self, seq: int, region: int) -> bool:
        """Whether something else holds one of them."""
        return self.own(seq, region) < len(self.group(seq, region))

    def partial(self, seq: int) -> list[int]:
        """Regions with blocks of the sequence that it does not fill."""
        counts = Counter(b // self.size for b in self.sequences[seq].blocks)
        return sorted(r for r, n in counts.items() if n < self.size)

    def movable(self, seq: int, region: int) -> bool:
        """Whether the group may go elsewhere in the present set."""
        group = self.group(seq, region)
        whole = len(group) == self.size
        return bool(group) and not whole and not self.pinned(seq, region) and not self.touched & set(group)

    def fragments(self, seq: int) -> list[tuple[int, int]]:
        """The movable groups, the smallest first: (size, region)."""
        return sorted((self.own(seq, r), r) for r in self.partial(seq) if self.movable(seq, r))

    def free(self, region: int) -> list[int]:
        """Free ids, ascending."""
        return sorted(self.policy.free_in[region])

    def targets(self, region: int) -> list[int]:
        """Free ids that are in no copy of the present set, ascending."""
        return [b for b in self.free(region) if b not in self.touched]

    def largest(self, seq: int, suits: Callable[[int], bool]) -> int | None:
        """Of the partial regions that suit, the one with most blocks of the sequence, the lowest on ties."""
        regions = [r for r in self.partial(seq) if suits(r)]
        return min(regions, key=lambda r: (-len(self.group(seq, r)), r), default=None)

    def roomiest(self, suits: Callable[[int], bool]) -> int | None:
        """Of the regions that suit, the one with most free ids, the lowest on ties."""
        return min(filter(suits, self.regions), key=lambda r: (-len(self.free(r)), r), default=None)

    def tightest(self, suits: Callable[[int], bool]) -> int | None:
        """Of the regions that suit, the one with fewest free ids, the lowest on ties."""
        return min(filter(suits, self.regions), key=lambda r: (len(self.free(r)), r), default=None)

    def shift(self, seq: int, source: int, targets: list[int]) -> list[Move]:
        """Moves of a whole group to the first of the targets."""
        return [(seq, *pair) for pair in zip(self.group(seq, source), targets, strict=False)]

    # ---- growth ----

    def claim(self, seq: int, purpose: str) -> Claim | None:
        """Where the sequence's next block comes from; None if no block is free."""

        def has_room(region: int) -> bool:
            return bool(self.targets(region) if purpose == COPY else self.free(region))

        def owns(region: int) -> bool:
            return self.own(seq, region) > 0

        current = self.policy.current.get(seq)
        if current is not None and not has_room(current):
            current = None
        if self.own_first:
            region = self.largest(seq, lambda r: owns(r) and has_room(r))
            if current is not None and owns(current):
                region = current
            if region is not None:
                return Claim(region)
        crowded = any(owns(r) for r in self.partial(seq))
        region = current
        if region is None:
            region = self.tightest(lambda r: len(self.free(r)) == self.size and has_room(r))
        if region is None and crowded and self.relocate_tail and purpose != BRANCH:
            claim = self.move_tail(seq, purpose)
            if claim is None and purpose == TABLE:
                claim = self.move_foreign(seq) or self.empty_region()
            if claim is not None:
                return claim
        if region is None:
            region = self.roomiest(has_room)
        if region is None:
            region = self.roomiest(lambda r: bool(self.free(r)))
        if region is None:
            return None
        return Claim(region, split=crowded and not owns(region) and purpose != BRANCH)

    def move_tail(self, seq: int, purpose: str) -> Claim | None:
        """The smallest group goes into the roomiest region that holds it and the new block."""
        fragments = self.fragments(seq)
        if not fragments:
            return None
        size, source = fragments[0]
        needed = size + (purpose == COPY)
        region = self.roomiest(
            lambda r: r != source and len(self.free(r)) > size and len(self.targets(r)) >= needed
        )
        if region is None:
            return None
        return Claim(region, self.shift(seq, source, self.targets(region)))

    def move_foreign(self, seq: int) -> Claim | None:
        """The smallest group that shares a full region with the sequence goes to more of its own, or where it
        fits best."""
        full = [r for r in self.partial(seq) if self.own(seq, r) and not self.free(r)]
        foreign = [
            (len(self.group(other, r)), r, other)
            for r in full
            for other in self.sequences
            if other != seq and self.movable(other, r)
        ]
        for _, source, other in sorted(foreign)[:1]:
            targets = self.home_for(other, source, set())
            if targets is not None:
                return Claim(source, self.shift(other, source, targets))
        return None

    def empty_region(self) -> Claim | None:
        """All groups of the roomiest region go elsewhere, the largest first."""
        region = self.roomiest(lambda r: bool(self.free(r)))
        if region is None:
            return None
        groups = [(-len(self.group(s, region)), s) for s in self.sequences if self.group(s, region)]
        used = self.size - len(self.free(region))
        if -sum(size for size, _ in groups) != used or not all(self.movable(s, region) for _, s in groups):
            return None
        moves: list[Move] = []
        for _, seq in sorted(groups):
            targets = self.home_for(seq, region, {target for _, _, target in moves})
            if targets is None:
                return None
            moves += self.shift(seq, region, targets)
        return Claim(region, moves, split=True)

    def home_for(self, seq: int, source: int, given: set[int]) -> list[int] | None:
        """Targets outside `given` for a group: where more of the sequence is, else where it fits best."""
        size = len(self.group(seq, source))

        def left(region: int) -> list[int]:
            return [b for b in self.targets(region) if b not in given]

        def fits(region: int) -> bool:
            return region != source and len(left(region)) >= size

        home = self.largest(seq, lambda r: not self.pinned(seq, r) and fits(r))
        if home is None:
            home = self.tightest(fits)
        return None if home is None else left(home)

    # ---- repair ----

    def next_scattered(self) -> list[int]:
        """The scattered sequences that one repair looks at: 64 at most, from where the last one stopped."""
        ascending = [seq for seq in sorted(self.sequences) if self.scattered(seq)]
        later = [seq for seq in ascending if seq >= self.cursor]
        seqs = [*later, *ascending[: len(ascending) - len(later)]][:LOOKED_AT]
        self.cursor = (seqs[-1] + 1) % 2**32 if seqs else 0
        return seqs

    def repair(self, seqs: list[int], budget: int) -> tuple[int, list[Move]] | None:
        """The repair of at most `budget` moves with most pairs removed per move, then most pairs, then the
        earliest of the sequences: (pairs removed, moves); None if none removes a pair."""
        best: tuple[int, list[Move]] | None = None
        for seq in seqs:
            if not self.scattered(seq):
                continue
            for gain, moves in [*self.fill_own(seq), *self.merge(seq, budget)]:
                if len(moves) <= budget:
                    # Cross-multiplied, so that all stays exact.
                    mine, theirs = (gain * len(best[1]), best[0] * len(moves)) if best else (1, 0)
                    if best is None or (mine, gain) > (theirs, best[0]):
                        best = gain, moves
        return best

    def scattered(self, seq: int) -> bool:
        """Whether the sequence's groups that are not pinned are more than their blocks need."""
        counts = Counter(b // self.size for b in self.sequences[seq].blocks)
        loose = {r: n for r, n in counts.items() if not self.pinned(seq, r)}
        return len(loose) > -(-sum(loose.values()) // self.size)

    def fill_own(self, seq: int) -> list[tuple[int, list[Move]]]:
        """The smallest group that the free ids of the sequence's other unpinned regions can take goes there:
        all into one, if one can take it, else spread; the largest groups are filled first."""
        homes = [r for r in self.partial(seq) if not self.pinned(seq, r)]
        homes.sort(key=lambda r: (-len(self.group(seq, r)), r))
        for size, source in self.fragments(seq):
            others = [self.targets(r) for r in homes if r != source]
            one = [targets for targets in others if len(targets) >= size]
            targets = one[0] if one else list(chain(*others))
            if len(targets) >= size:
                return [(1, self.shift(seq, source, targets))]
        return []

    def merge(self, seq: int, budget: int) -> list[tuple[int, list[Move]]]:
        """The smallest two or more groups go into the roomiest region without blocks of the sequence that can
        take them all; as many groups as removes most pairs per move, the fewest on ties."""
        best: tuple[int, list[Move]] | None = None
        fragments = self.fragments(seq)
        for n in range(2, len(fragments) + 1):
            size = sum(own for own, _ in fragments[:n])
            if size > min(budget, self.size):
                break
            fitting = (r for r in self.regions if len(self.targets(r)) >= size and not self.group(seq, r))
            region = min(fitting, key=lambda r: (-len(self.free(r)), r), default=None)
            if region is None:
                break
            blocks = [b for _, r in fragments[:n] for b in self.group(seq, r)]
            moves = [(seq, *pair) for pair in zip(blocks, self.targets(region), strict=False)]
            if best is None or (n - 1) * len(best[1]) > best[0] * size:
                best = n - 1, moves
        return [best] if best else []
