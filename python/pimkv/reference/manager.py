"""Block tables over a policy: reference counts, prefix sharing, fork, copy-on-write and speculation.

The manager owns the blocks and asks the policy for ids. A block is given back when its last reference goes:
references are held by tables, by pinned prefixes, by a prefix cache and by the branches of an unfinished
speculation round.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pimkv.errors import BrokenInvariant, DuplicateSequence, ForeignBlock, InvalidArgument, UnknownSequence
from pimkv.reference.arguments import INT64_MAX, Ints, integer, vector
from pimkv.reference.gather import BRANCH, COPY, TABLE, Gather, Move
from pimkv.reference.policies import make_policy
from pimkv.reference.policies.contiguous import Contiguous
from pimkv.reference.policies.neupims import Neupims
from pimkv.reference.policies.pim_aware import PimAware
from pimkv.reference.policies.pim_gather import PimGather
from pimkv.reference.pool import check_region_impl, undone_on_error

MAX_SEQUENCE = 2**32 - 1
PREFIX_OWNER = 2**40  # prefix key k takes its blocks as owner 2**40 + k
SCRATCH_OWNER = 2**41
MAX_PREFIX = SCRATCH_OWNER - PREFIX_OWNER - 1


@dataclass
class _Pending:
    """A speculation turn that found no block: `tokens` still to append, `branches` held (none in a stall)."""

    tokens: int
    branches: list[list[int]]


@dataclass
class _Sequence:
    """The tokens 0..length - 1 of one sequence lie in `blocks` in order.

    `blocks` is longer than the length asks for only while a growth waits for more. `scratch` counts the
    blocks it has reserved that stay out of use, `inherited` the tokens that were there before the table,
    `trimmed` those that have left it in front.
    """

    length: int
    blocks: list[int]
    scratch: int = 0
    pending: _Pending | None = None
    inherited: int = 0
    trimmed: int = 0


class BlockManager:
    """The block tables of many sequences over one pool.

    `kind`, `blocks` and `blocks_per_region` are those of Pool; a block holds `block_tokens` tokens. With
    `pages`, (tokens, blocks) of a K page and of a V page, tokens take pages of both instead; a table then
    holds blocks in the order of the claims, those of K before those of V claimed at once, and `block_tokens`
    is that of a K page. Only policies that reserve have pages.
    Sequences are ints in 0..2**32 - 1. A failed call changes nothing; a full pool is an answer, not a
    failure.
    """

    def __init__(
        self,
        kind: str,
        blocks: int,
        *,
        block_tokens: int,
        blocks_per_region: int = 1,
        best_fit: bool = False,
        region_impl: str = "indexed",
        own_first: bool = False,
        relocate_tail: bool = False,
        pages: tuple[tuple[int, int], tuple[int, int]] | None = None,
    ) -> None:
        check_region_impl(region_impl)
        self._policy = make_policy(kind, blocks, blocks_per_region)
        if isinstance(self._policy, PimAware):
            self._policy.best_fit = best_fit
        self._block_tokens = integer("block_tokens", block_tokens, 1)
        # (tokens, blocks) of each kind of page that tokens fill; a block is a page of K and V together.
        self.pages = [(self._block_tokens, 1)] if pages is None else _checked_pages(pages)
        if pages is not None and not self._policy.reserves:
            raise InvalidArgument(f"kind = {kind!r}: pages of K and V apart need a policy that reserves")
        if self.pages[0][0] != self._block_tokens:
            raise InvalidArgument(
                f"block_tokens = {block_tokens}: must be those of a K page, {self.pages[0][0]}"
            )
        self._blocks_per_region = blocks_per_region
        self._sequences: dict[int, _Sequence] = {}
        self._prefixes: dict[int, list[int]] = {}
        self._held: set[int] = set()  # blocks that a prefix cache holds
        self._prefixes_written: set[int] = set()  # those that a sequence has been admitted with
        self._references: Counter[int] = Counter()  # of the blocks in use; never a zero
        self._copies: list[tuple[int, int]] = []
        self._blocks_allocated = 0
        self._cow_copies = 0
        self._gather: Gather | None = None
        if isinstance(self._policy, PimGather):
            levers = {"own_first": own_first, "relocate_tail": relocate_tail}
            self._gather = Gather(self._policy, self._sequences, self._references, **levers)
        self._relocations = dict.fromkeys(("growth", "repair", "splits", "pairs_removed"), 0)

    # ---- counters ----

    @property
    def blocks(self) -> int:
        """Blocks of the pool."""
        return self._policy.blocks

    @property
    def free_blocks(self) -> int:
        """Blocks neither in use nor reserved."""
        return self._policy.free_blocks

    @property
    def live_blocks(self) -> int:
        """Blocks in use, a shared one once; of what is reserved those taken and the scratch."""
        return len(self._references) + sum(s.scratch for s in self._sequences.values())

    @property
    def blocks_allocated(self) -> int:
        """Blocks handed out so far, branches and scratch included, every time anew."""
        return self._blocks_allocated

    @property
    def cow_copies(self) -> int:
        """Copies on write so far, one for every spliced round that replaced a partial tail block included."""
        return self._cow_copies

    @property
    def relocations(self) -> tuple[int, int, int, int]:
        """(moves of growth, moves of repair, splits, pairs that repair removed) so far (`pim-gather` only)."""
        growth, repair, splits, pairs_removed = self._relocations.values()
        return growth, repair, splits, pairs_removed

    # ---- admission ----

    def admit(
        self,
        seq: int,
        tokens: int,
        *,
        prefix: int | None = None,
        reserve_tokens: int = 0,
        scratch_blocks: int = 0,
        shared: Ints | None = None,
    ) -> bool:
        """Give a new sequence a table for `tokens` tokens (1 or more); False, and no change, if none fits.

        With `shared` the first blocks are those, full of tokens that others have written, one reference more
        on each; they must be in use and `tokens` must reach into or past the last of them. With `prefix` the
        first blocks are those of that pinned prefix, one reference more on each; `tokens` must reach into or
        past the last of them. Policies that reserve first set aside the blocks of `reserve_tokens`, which must
        hold the tokens, and `scratch_blocks` more; the other kinds reserve nothing and leave both numbers
        unused. Raises DuplicateSequence for a known sequence, InvalidArgument for a
        bad number.
        """
        seq = integer("seq", seq, 0, MAX_SEQUENCE)
        wanted = self._blocks_for(integer("tokens", tokens, 1))
        span = self._blocks_for(integer("reserve_tokens", reserve_tokens, 0))
        scratch = integer("scratch_blocks", scratch_blocks, 0)
        first = self._shareable(shared)
        if prefix is not None:
            self._refuse_reserving("prefix")
            if first:
                raise InvalidArgument(f"prefix = {prefix}: must be left out where blocks are shared")
            first = self._known_prefix(prefix)
        if wanted < len(first):
            raise InvalidArgument(f"tokens = {tokens}: must need at least the {len(first)} shared blocks")
        reserves = self._policy.reserves
        if reserves and span < wanted:
            raise InvalidArgument(
                f"reserve_tokens = {reserve_tokens}: must give the {wanted} blocks of {tokens} tokens"
            )
        if seq in self._sequences:
            raise DuplicateSequence(f"seq = {seq}: already has a table")

        with undone_on_error(self, self._policy):
            if reserves:
                if not self._policy.reserve(seq, span, scratch):
                    return False
                self._blocks_allocated += scratch
            elif self._policy.free_blocks < wanted - len(first):
                return False
            self._policy.plan(seq, wanted - len(first))
            self._references.update(first)
            sequence = _Sequence(tokens, list(first), scratch if reserves else 0)
            # The first sequence with a prefix computes it, the later ones find it.
            if prefix is None or prefix in self._prefixes_written:
                sequence.inherited = min(tokens, len(first) * self._block_tokens)
            if prefix is not None:
                self._prefixes_written.add(prefix)
            self._sequences[seq] = sequence
            if not self._fill(seq, wanted):
                raise BrokenInvariant(f"seq {seq} found fewer blocks than were counted free")
        return True

    def pin_prefix(self, key: int, blocks: int) -> bool:
        """Take `blocks` blocks (0 or more) under the prefix's own owner for good; False if they do not fit.

        Raises InvalidArgument for a key that is already pinned, and for policies that reserve: they cannot share.
        """
        key = integer("key", key, 0, MAX_PREFIX)
        wanted = integer("blocks", blocks, 0)
        self._refuse_reserving("pin_prefix")
        if key in self._prefixes:
            raise InvalidArgument(f"key = {key}: already pinned, must be a prefix that is not")
        if self._policy.free_blocks < wanted:
            return False
        with undone_on_error(self, self._policy):
            self._prefixes[key] = self._take_all(PREFIX_OWNER + key, wanted)
        return True

    def prefix_blocks(self, key: int) -> int:
        """The number of blocks pinned for that prefix, 0 if it is not pinned."""
        return len(self._prefixes.get(integer("key", key, 0, MAX_PREFIX), []))

    # ---- a prefix cache ----

    def hold(self, seq: int, places: Ints) -> None:
        """Take one reference more on the blocks at these places of the table, for a prefix cache.

        Raises UnknownSequence, and InvalidArgument for a place outside the table, for a block that is held
        already and for policies that reserve, which cannot share.
        """
        table = self._known(seq).blocks
        self._refuse_reserving("hold")
        blocks = [table[place] for place in vector("places", places, 0, len(table) - 1)]
        for i, block in enumerate(blocks):
            if block in self._held or block in blocks[:i]:
                raise InvalidArgument(f"places contains that of block {block}: is held already")
        self._references.update(blocks)
        self._held.update(blocks)

    def let_go(self, blocks: Ints) -> None:
        """Drop the reference that `hold` took on each of these blocks, in this order.

        Raises ForeignBlock, and InvalidArgument for a block that is not held or named twice.
        """
        leaving = vector("blocks", blocks, -(2**63))
        for i, block in enumerate(leaving):
            self.refcount(block)
            if block not in self._held or block in leaving[:i]:
                raise InvalidArgument(f"blocks contains {block}: must be held, and named once")
        for block in leaving:
            self._held.remove(block)
            self._drop(block)

    def _shareable(self, shared: Ints | None) -> list[int]:
        """The blocks that a new sequence is to start with."""
        blocks = [] if shared is None else vector("shared", shared, -(2**63))
        if blocks:
            self._refuse_reserving("shared")
        for i, block in enumerate(blocks):
            if self.refcount(block) == 0 or block in blocks[:i]:
                raise InvalidArgument(f"shared contains {block}: must be a block in use, named once")
        return blocks

    # ---- growth ----

    def grow(self, seqs: Ints, tokens: Ints, start: int = 0) -> int:
        """Append tokens[i] tokens (1 or more) to seqs[i] for i = start, start + 1, ...; int64 of one length.

        Blocks are taken one at a time. If the first position written lies in a shared block, that block is
        copied on write first. Stops at the first sequence that finds no block and returns its index: its
        length is unchanged, the blocks it did get stay, and a call with that start resumes. Returns
        len(seqs) when all are done. Raises UnknownSequence or InvalidArgument for what stands at `start` and
        after.
        """
        seqs_list, start = self._known_batch(seqs, start)
        amounts = vector("tokens", tokens, -(2**63), length=len(seqs_list))
        _check_from("tokens", amounts, start, 1, INT64_MAX)
        with undone_on_error(self, self._policy):
            for i in range(start, len(seqs_list)):
                if not self._grow_one(seqs_list[i], amounts[i]):
                    return i
        return len(seqs_list)

    def write(self, seq: int, position: int) -> bool:
        """Make the block of token `position` (0..length - 1) private; False if its copy finds no block."""
        sequence = self._known(seq)
        index = integer("position", position, 0, sequence.length - 1) // self._block_tokens
        with undone_on_error(self, self._policy):
            return self._make_private(seq, index)

    def pending_copies(self) -> int:
        """Number of block copies recorded since the last call of `copies`."""
        return len(self._copies)

    def copies(self) -> Ints:
        """The block copies (src, dst) of copy-on-write since the last call, in order: int64, shape (n, 2)."""
        recorded = np.array(self._copies, dtype=np.int64).reshape(-1, 2)
        self._copies = []
        if self._gather is not None:
            self._gather.begin_set()
        return recorded

    def fork(self, parent: int, child: int) -> None:
        """Give `child` the table and the length of `parent`: one reference more on each block.

        Raises UnknownSequence, DuplicateSequence, and InvalidArgument for policies that reserve, which cannot share, and
        for a parent whose growth or speculation turn waits for blocks: both would write what it already took.
        """
        child = integer("child", child, 0, MAX_SEQUENCE)
        source = self._known(parent, "parent")
        self._refuse_reserving("fork")
        if child in self._sequences:
            raise DuplicateSequence(f"child = {child}: already has a table")
        if self._waits(source):
            raise InvalidArgument(
                f"parent = {parent}: its growth waits for blocks; allowed: a sequence at rest"
            )
        self._references.update(source.blocks)
        self._sequences[child] = _Sequence(source.length, list(source.blocks), inherited=source.length)

    # ---- compaction ----

    def compact(self, most_used: int) -> int:
        """Empty regions of at most `most_used` blocks, block by block, as the policy does.

        Every table, pin and branch that holds a moved block holds its target afterwards; the copies are
        recorded. Returns the number of moves. Raises InvalidArgument for policies without regions.
        """
        moves = self._policy.compact(integer("most_used", most_used, 0))
        for source, target in moves:
            self._references[target] = self._references.pop(source)
        moved = dict(moves)
        branches = [b for s in self._sequences.values() if s.pending is not None for b in s.pending.branches]
        for blocks in [*(s.blocks for s in self._sequences.values()), *self._prefixes.values(), *branches]:
            blocks[:] = [moved.get(block, block) for block in blocks]
        self._held = {moved.get(block, block) for block in self._held}
        self._copies += moves
        return len(moves)

    # ---- relocation ----

    def repair(self, budget: int) -> int:
        """Move at most `budget` blocks so that sequences lie in fewer regions; the number of moves.

        Raises InvalidArgument for policies other than `pim-gather`.
        """
        budget = integer("budget", budget, 0, 2**32 - 1)
        if self._gather is None:
            raise InvalidArgument(f"kind = {self._policy.kind!r}: repair needs 'pim-gather'")
        left, seqs = budget, self._gather.next_scattered()
        while (repair := self._gather.repair(seqs, left)) is not None:
            gain, moves = repair
            self._relocate(moves)
            self._relocations["pairs_removed"] += gain
            left -= len(moves)
        self._relocations["repair"] += budget - left
        return budget - left

    def _relocate(self, moves: list[Move]) -> None:
        policy, gather = self._policy, self._gather
        if gather is None or not isinstance(policy, PimGather):
            raise BrokenInvariant("only pim-gather moves blocks")
        for seq, source, target in moves:
            policy.take_at(target)
            policy.give(source)
            blocks = self._sequences[seq].blocks
            blocks[blocks.index(source)] = target
            self._references[target] = self._references.pop(source)
            self._copies.append((source, target))
            gather.note(source, target)
            if policy.current.get(seq) == source // policy.blocks_per_region:
                policy.current[seq] = target // policy.blocks_per_region

    def _claim(self, seq: int, purpose: str) -> int | None:
        """A block for a sequence, where the planner of `pim-gather` or else the policy wants it."""
        policy, gather = self._policy, self._gather
        if gather is None or not isinstance(policy, PimGather):
            return self._take(seq)
        claim = gather.claim(seq, purpose)
        if claim is None:
            return None
        self._relocate(claim.moves)
        self._relocations["growth"] += len(claim.moves)
        self._relocations["splits"] += claim.split
        policy.current[seq] = claim.region
        block = gather.free(claim.region)[0]
        if purpose == COPY and gather.targets(claim.region):
            block = gather.targets(claim.region)[0]
        policy.take_at(block)
        self._references[block] = 1
        self._blocks_allocated += 1
        return block

    # ---- release ----

    def release(self, seqs: Ints, order: Ints | None = None) -> None:
        """Drop the sequences in turn: pending branches, then the blocks of the table in table order.

        `order` holds one permutation of its table's places per sequence, one after the other: the blocks are
        dropped in that order instead. A block whose last reference goes is given to the policy, which then
        forgets the owner. Raises UnknownSequence (also for a sequence named twice) and InvalidArgument.
        """
        seqs_list, _ = self._known_batch(seqs, 0)
        _refuse_repeated(seqs_list)
        orders = [list(range(len(self._sequences[seq].blocks))) for seq in seqs_list]
        if order is not None:
            places = vector("order", order, 0, length=sum(len(o) for o in orders))
            for i, seq in enumerate(seqs_list):
                size = len(orders[i])
                orders[i], places = places[:size], places[size:]
                if sorted(orders[i]) != list(range(size)):
                    raise InvalidArgument(
                        f"order of seq {seq} is {orders[i]}: must be a permutation of 0..{size - 1}"
                    )
        for seq, places in zip(seqs_list, orders, strict=True):
            sequence = self._sequences.pop(seq)
            if sequence.pending is not None:
                self._drop_branches(sequence.pending.branches)
            for place in places:
                self._drop(sequence.blocks[place])
            self._policy.forget(seq)

    def trim(self, seqs: Ints, window: int) -> int:
        """Let go of the first blocks of each sequence that its last `window` tokens (1 or more) do not need.

        While a sequence would keep `window` tokens or more without its first block, that block leaves its
        table and loses a reference, and the sequence is a block of tokens shorter. Returns the number of
        blocks dropped. Raises UnknownSequence (also for a sequence named twice), and InvalidArgument for
        policies that reserve and for a sequence whose growth or speculation turn waits for blocks.
        """
        window = integer("window", window, 1)
        self._refuse_reserving("trim")
        seqs_list, _ = self._known_batch(seqs, 0)
        _refuse_repeated(seqs_list)
        for seq in seqs_list:
            if self._waits(self._sequences[seq]):
                raise InvalidArgument(
                    f"seqs contains {seq}: its growth waits for blocks; allowed: a sequence at rest"
                )
        dropped = 0
        for seq in seqs_list:
            sequence = self._sequences[seq]
            while sequence.length - self._block_tokens >= window:
                self._drop(sequence.blocks.pop(0))
                sequence.length -= self._block_tokens
                sequence.trimmed += self._block_tokens
                dropped += 1
        return dropped

    # ---- speculation ----

    def speculate(
        self,
        seqs: Ints,
        advances: Ints,
        picks: Ints,
        *,
        width: int,
        depth: int,
        adopt: str,
        separate: bool,
        start: int = 0,
    ) -> tuple[int, Ints, int, int]:
        """One speculation round for seqs[start:], one sequence after the other.

        advances[i] in 1..depth + 1 tokens are appended to seqs[i] out of branch picks[i] in 0..width - 1;
        `adopt` is "splice" or "copyback"; `separate` takes the branches under the scratch owner instead of
        the sequence's own. With fewer free blocks than all branches need, the sequence stalls: it appends
        one token instead.

        Returns (done, advanced, stalls, copied_tokens): the index of the first sequence that found no block,
        or len(seqs); the tokens appended, int64, index as in `seqs`, 0 where not done; the stalls met in
        this call; the tokens copied in this call (into branches when they are taken, back when the growth is
        complete). A sequence that found no block keeps its branches; a call that reaches it again continues
        that same growth.

        Raises UnknownSequence and InvalidArgument; policies that reserve have no branches and are refused, as is
        "splice" on a table that still holds blocks of an unfinished grow().
        """
        self._refuse_reserving("speculate")
        seqs_list, start = self._known_batch(seqs, start)
        width = integer("width", width, 1)
        depth = integer("depth", depth, 0)
        if adopt not in ("splice", "copyback"):
            raise InvalidArgument(f"adopt = {adopt!r}: must be 'splice' or 'copyback'")
        wanted = vector("advances", advances, -(2**63), length=len(seqs_list))
        _check_from("advances", wanted, start, 1, depth + 1)
        chosen = vector("picks", picks, -(2**63), length=len(seqs_list))
        _check_from("picks", chosen, start, 0, width - 1)
        for seq in seqs_list[start:]:
            s = self._sequences[seq]
            if adopt == "splice" and s.pending is None and len(s.blocks) > self._blocks_for(s.length):
                raise InvalidArgument(
                    f"seqs contains {seq}: its last grow() must be finished before a splice"
                )

        advanced = np.zeros(len(seqs_list), dtype=np.int64)
        stalls = 0
        copied_tokens = 0
        with undone_on_error(self, self._policy):
            for i in range(start, len(seqs_list)):
                seq = seqs_list[i]
                sequence = self._sequences[seq]
                if sequence.pending is None:
                    r = sequence.length % self._block_tokens
                    per_branch = self._blocks_for(r + depth + 1)
                    if self._policy.free_blocks < width * per_branch:
                        stalls += 1
                        sequence.pending = _Pending(tokens=1, branches=[])
                    else:
                        branches = [self._branch(seq, per_branch, separate) for _ in range(width)]
                        copied_tokens += width * r
                        if adopt == "splice":
                            self._splice(sequence, branches, chosen[i], wanted[i])
                            advanced[i] = wanted[i]
                            continue
                        sequence.pending = _Pending(tokens=wanted[i], branches=branches)
                pending = sequence.pending
                if not self._grow_one(seq, pending.tokens):
                    return i, advanced, stalls, copied_tokens
                advanced[i] = pending.tokens
                if pending.branches:
                    copied_tokens += pending.tokens
                self._drop_branches(pending.branches)
                sequence.pending = None
        return len(seqs_list), advanced, stalls, copied_tokens

    def _branch(self, seq: int, count: int, separate: bool) -> list[int]:
        """The blocks of one branch; that they are there has been found before."""
        if separate:
            return self._take_all(SCRATCH_OWNER, count)
        blocks = [block for _ in range(count) if (block := self._claim(seq, BRANCH)) is not None]
        if len(blocks) < count:
            raise BrokenInvariant(f"seq {seq} got {len(blocks)} of {count} blocks that were counted free")
        return blocks

    def _splice(self, sequence: _Sequence, branches: list[list[int]], pick: int, advance: int) -> None:
        r = sequence.length % self._block_tokens
        if r > 0:
            # the branch holds a copy of these r tokens
            self._drop(sequence.blocks.pop())
            self._cow_copies += 1
        kept = self._blocks_for(r + advance)
        sequence.blocks.extend(branches[pick][:kept])
        sequence.length += advance
        self._drop_branches([branches[pick][kept:], *branches[:pick], *branches[pick + 1 :]])

    # ---- views ----

    def length(self, seq: int) -> int:
        """The number of tokens of a sequence; UnknownSequence if it has no table."""
        return self._known(seq).length

    def table(self, seq: int) -> Ints:
        """The block ids of a sequence in token order, int64; UnknownSequence if it has no table."""
        return np.array(self._known(seq).blocks, dtype=np.int64)

    def inherited(self, seq: int) -> int:
        """The tokens of a sequence that were there already when its table was made.

        A fork finds all tokens of its parent, a sequence admitted with a prefix those of the prefix unless
        it is the first with that prefix; others find none. UnknownSequence if it has no table.
        """
        return self._known(seq).inherited

    def trimmed(self, seq: int) -> int:
        """The tokens that `trim` has dropped of a sequence since its table was made (0 for a new fork)."""
        return self._known(seq).trimmed

    def refcount(self, block: int) -> int:
        """References on a block by tables, pins and pending branches; ForeignBlock outside the pool."""
        block = integer("block", block, -(2**63))
        if not 0 <= block < self._policy.blocks:
            raise ForeignBlock(f"block = {block}: the pool has blocks 0..{self._policy.blocks - 1}")
        return self._references[block]

    def sequences(self) -> Ints:
        """The sequences that have a table, ascending, int64."""
        return np.array(sorted(self._sequences), dtype=np.int64)

    def placement(self, seqs: Ints) -> Ints:
        """How each table lies: int64, shape (len(seqs), 4). Raises UnknownSequence.

        Columns: blocks, consecutive pairs with id + 1, consecutive pairs in one region, distinct regions.
        """
        seqs_list, _ = self._known_batch(seqs, 0)
        rows = []
        for seq in seqs_list:
            blocks = self._sequences[seq].blocks
            regions = [block // self._blocks_per_region for block in blocks]
            adjacent = sum(b == a + 1 for a, b in pairwise(blocks))
            same_region = sum(a == b for a, b in pairwise(regions))
            rows.append((len(blocks), adjacent, same_region, len(set(regions))))
        return np.array(rows, dtype=np.int64).reshape(-1, 4)

    def feed(self, indices: Ints) -> None:
        """Queue the indices numpy drew, one per coming take (`random` only: InvalidArgument otherwise)."""
        self._policy.feed(vector("indices", indices, 0, self._policy.blocks - 1))

    def check(self) -> None:
        """Raise BrokenInvariant unless every block is accounted for.

        The policy's structures agree; each reference count equals the table entries, pins, holds of a cache
        and pending branches that name the block; the blocks with references are exactly those in use; every
        table is long enough, the start of its span if contiguous, and in its channel if `neupims`.
        """
        self._policy.check()
        counted: Counter[int] = Counter()
        for sequence in self._sequences.values():
            counted.update(sequence.blocks)
            for branch in sequence.pending.branches if sequence.pending is not None else []:
                counted.update(branch)
        for pinned in self._prefixes.values():
            counted.update(pinned)
        counted.update(self._held)
        if dict(counted) != dict(self._references):
            raise BrokenInvariant("reference counts differ from what tables, pins and pending branches hold")
        if set(counted) != self._policy.in_use:
            lost = sorted(self._policy.in_use - set(counted))
            raise BrokenInvariant(
                f"blocks in use and blocks with references differ; without reference: {lost}"
            )
        for seq, sequence in self._sequences.items():
            blocks = sequence.blocks
            if len(set(blocks)) != len(blocks):
                raise BrokenInvariant(f"table of seq {seq} names a block twice: {blocks}")
            if sequence.length < 1 or len(blocks) < self._blocks_for(sequence.length):
                raise BrokenInvariant(f"seq {seq} has {sequence.length} tokens but {len(blocks)} blocks")
        if isinstance(self._policy, Contiguous):
            self._check_spans(self._policy.spans)
        if isinstance(self._policy, Neupims):
            self._check_promises(self._policy.promises)

    def _check_promises(self, promises: dict[int, tuple[int, int, int]]) -> None:
        if set(promises) != set(self._sequences):
            raise BrokenInvariant(f"promises of {sorted(promises)} but tables of {sorted(self._sequences)}")
        for seq, (channel, _, kept) in promises.items():
            sequence = self._sequences[seq]
            if any(block // self._policy.blocks_per_region != channel for block in sequence.blocks):
                raise BrokenInvariant(f"table of seq {seq} leaves its channel {channel}: {sequence.blocks}")
            if kept != sequence.scratch:
                raise BrokenInvariant(f"{kept} blocks are kept for seq {seq}, not its {sequence.scratch}")

    def _check_spans(self, spans: dict[int, tuple[int, int, int]]) -> None:
        if set(spans) != set(self._sequences):
            raise BrokenInvariant(f"spans of {sorted(spans)} but tables of {sorted(self._sequences)}")
        for seq, (untaken, takable_end, span_end) in spans.items():
            sequence = self._sequences[seq]
            if sequence.blocks != list(range(untaken - len(sequence.blocks), untaken)):
                raise BrokenInvariant(f"table of seq {seq} is not the start of its span: {sequence.blocks}")
            if span_end - takable_end != sequence.scratch:
                raise BrokenInvariant(f"span of seq {seq} keeps other than {sequence.scratch} scratch blocks")

    # ---- the few steps everything above is made of ----

    def _blocks_for(self, tokens: int) -> int:
        return sum(-(-tokens // held) * blocks for held, blocks in self.pages)

    def _take(self, owner: int) -> int | None:
        block = self._policy.take(owner)
        if block is not None:
            self._references[block] = 1
            self._blocks_allocated += 1
        return block

    def _take_all(self, owner: int, count: int) -> list[int]:
        """`count` blocks that the caller has found to be there."""
        blocks: list[int] = []
        for _ in range(count):
            block = self._take(owner)
            if block is None:
                raise BrokenInvariant(
                    f"owner {owner} got {len(blocks)} of {count} blocks that were counted free"
                )
            blocks.append(block)
        return blocks

    def _drop(self, block: int) -> None:
        self._references[block] -= 1
        if self._references[block] == 0:
            del self._references[block]
            self._policy.give(block)

    def _drop_branches(self, branches: list[list[int]]) -> None:
        for branch in branches:
            for block in branch:
                self._drop(block)

    def _make_private(self, seq: int, index: int) -> bool:
        blocks = self._sequences[seq].blocks
        old = blocks[index]
        if self._references[old] > 1:
            fresh = self._claim(seq, COPY)
            if fresh is None:
                return False
            blocks[index] = fresh
            self._drop(old)
            self._cow_copies += 1
            source = old
            if self._gather is not None:
                # What is to be copied may itself have yet to arrive.
                source = self._gather.origins.get(old, old)
                self._gather.note(source, fresh)
            self._copies.append((source, fresh))
        return True

    def _fill(self, seq: int, wanted: int) -> bool:
        """Take blocks one at a time until the table has so many; False if the pool runs out."""
        blocks = self._sequences[seq].blocks
        while len(blocks) < wanted:
            block = self._claim(seq, TABLE)
            if block is None:
                return False
            blocks.append(block)
        return True

    def _waits(self, sequence: _Sequence) -> bool:
        """Whether a growth or a speculation turn of the sequence found no block and is to be resumed."""
        return sequence.pending is not None or len(sequence.blocks) > self._blocks_for(sequence.length)

    def _grow_one(self, seq: int, tokens: int) -> bool:
        sequence = self._sequences[seq]
        first_written = sequence.length // self._block_tokens
        if first_written < len(sequence.blocks) and not self._make_private(seq, first_written):
            return False
        if not self._fill(seq, self._blocks_for(sequence.length + tokens)):
            return False
        sequence.length += tokens
        return True

    # ---- arguments ----

    def _known(self, seq: int, name: str = "seq") -> _Sequence:
        number = integer(name, seq, -(2**63))
        if number not in self._sequences:
            raise UnknownSequence(f"{name} = {number}: has no table")
        return self._sequences[number]

    def _known_batch(self, seqs: Ints, start: int) -> tuple[list[int], int]:
        """The batch and its start; what stands before the start may have been released since."""
        seqs_list = vector("seqs", seqs, -(2**63))
        start = integer("start", start, 0, len(seqs_list))
        for seq in seqs_list[start:]:
            if seq not in self._sequences:
                raise UnknownSequence(f"seqs contains {seq}: has no table")
        return seqs_list, start

    def _known_prefix(self, key: int) -> list[int]:
        key = integer("prefix", key, 0, MAX_PREFIX)
        if key not in self._prefixes:
            raise InvalidArgument(f"prefix = {key}: is not pinned, must be one of {sorted(self._prefixes)}")
        return self._prefixes[key]

    def _refuse_reserving(self, what: str) -> None:
        if self._policy.reserves:
            raise InvalidArgument(
                f"{what}: kind = {self._policy.kind!r} cannot share blocks or hold branches"
            )


def _checked_pages(pages: tuple[tuple[int, int], tuple[int, int]]) -> list[tuple[int, int]]:
    """(tokens, blocks) of a K page and of a V page, 1 or more each."""
    k, v = pages
    return [(integer("pages", tokens, 1), integer("pages", blocks, 1)) for tokens, blocks in (k, v)]


def _refuse_repeated(seqs: list[int]) -> None:
    """UnknownSequence for a sequence named twice."""
    for place, seq in enumerate(seqs):
        if seq in seqs[:place]:
            raise UnknownSequence(f"seqs contains {seq} twice: it has had its turn the second time")


def _check_from(name: str, values: list[int], start: int, low: int, high: int) -> None:
    """values[start:] all lie in low..high; what stands before the start has had its turn."""
    for i in range(start, len(values)):
        integer(f"{name}[{i}]", values[i], low, high)
