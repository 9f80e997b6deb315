"""Rust against its Python twin: the same calls, identical block ids, counts and refusals at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from policy_pools import ints, pool_blocks, ready_pool

from pimkv import _pimkv, reference
from pimkv.allocators import options_of
from pimkv.errors import DoubleFree, ForeignBlock, PimkvError

KINDS = _pimkv.Pool.kinds()
REFUSED = "refused"
TIMING = {
    "rcd": 19, "rp": 19, "ras": 45, "rc": 63, "rtp": 8, "ccd_ab": 6, "refi": 5070, "rfc": 456, "max_postponed": 8,
}  # fmt: skip


def plain(value: Any) -> Any:
    """A result with its arrays as lists, so that two can be compared."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def both(rust: Any, twin: Any, call: Callable[[Any], Any]) -> Any:
    """The result of one call on both sides, which must agree, also in what they refuse.

    Which of several mistakes in one call is named first is left to each.
    """
    results = []
    for side in (rust, twin):
        try:
            results.append(plain(call(side)))
        except PimkvError:
            results.append(REFUSED)
    assert results[0] == results[1]
    return results[0]


class Pools(RuleBasedStateMachine):
    """A policy by itself; small pools, because mistakes live at exhaustion."""

    @initialize(kind=st.sampled_from(KINDS), regions=st.integers(1, 8), per_region=st.integers(1, 8))
    def make(self, kind: str, regions: int, per_region: int) -> None:
        self.traits, self.blocks = options_of(kind), pool_blocks(kind, regions * per_region, per_region)
        self.rust, self.twin = (
            m.Pool(kind, self.blocks, blocks_per_region=per_region) for m in (_pimkv, reference)
        )
        self.taken: list[int] = []

    @rule(owner=st.integers(0, 4), n=st.integers(0, 12))
    def take(self, owner: int, n: int) -> None:
        ids = both(self.rust, self.twin, lambda p: p.take(owner, n))
        if not (self.traits.spans or self.traits.draws):
            assert len(ids) == min(n, self.blocks - self.traits.held_back - len(self.taken))
        if ids != REFUSED:
            assert not set(ids) & set(self.taken)
            self.taken += ids

    @rule(owner=st.integers(0, 4), n=st.integers(0, 20))
    def reserve(self, owner: int, n: int) -> None:
        outcome = both(self.rust, self.twin, lambda p: p.reserve(owner, n))
        assert (outcome == REFUSED) >= (not self.traits.spans)

    @rule(indices=st.lists(st.one_of(st.just(0), st.integers(-1, 64)), max_size=12))
    def feed(self, indices: list[int]) -> None:
        outcome = both(self.rust, self.twin, lambda p: p.feed(ints(indices)))
        assert (outcome == REFUSED) >= (not self.traits.draws)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(self.taken), unique=True))
        both(self.rust, self.twin, lambda p: p.give(ints(ids)))
        self.taken = [i for i in self.taken if i not in ids]

    @rule(ids=st.lists(st.integers(-2, 70), max_size=4))
    def give_anything(self, ids: list[int]) -> None:
        outcome = both(self.rust, self.twin, lambda p: p.give(ints(ids)))
        possible = len(set(ids)) == len(ids) and set(ids) <= set(self.taken)
        assert (outcome != REFUSED) == possible
        if possible:
            self.taken = [i for i in self.taken if i not in ids]

    @rule(owner=st.integers(0, 4))
    def forget(self, owner: int) -> None:
        both(self.rust, self.twin, lambda p: p.forget(owner))

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "rust"):
            free = both(self.rust, self.twin, lambda p: p.free_blocks)
            usable = self.blocks - self.traits.held_back
            assert free <= usable - len(self.taken)
            if not self.traits.spans:
                assert free == usable - len(self.taken)
            both(self.rust, self.twin, lambda p: p.check())


class Managers(RuleBasedStateMachine):
    """Block tables with a scorer looking on: identical ids, lengths and scores at every step."""

    @initialize(
        kind=st.sampled_from(KINDS),
        regions=st.integers(1, 8),
        block_tokens=st.integers(1, 5),
        window=st.integers(0, 70),
        best_fit=st.booleans(),
        scored=st.fixed_dictionaries(
            {
                "per_command": st.integers(1, 2),
                "repeat": st.integers(1, 3),
                "mac_stride": st.sampled_from([1, 1, 2, 3, 5, 64]),
                "traversal": st.sampled_from(["token", "row"]),
                "window_tokens": st.sampled_from([0, 0, 7]),
            }
        ),
        controlled=st.fixed_dictionaries(
            {"queue": st.integers(1, 40), "per_pch": st.booleans(), "refresh": st.booleans()}
        ),
        split=st.booleans(),
    )
    def make(
        self,
        kind: str,
        regions: int,
        block_tokens: int,
        window: int,
        best_fit: bool,
        scored: dict[str, Any],
        controlled: dict[str, Any],
        split: bool,
    ) -> None:
        sizes = {"channels": 2, "bank_groups": 2, "banks_per_group": 2, "rows": 64, "row_bytes": 128}
        self.per_region = 4
        self.blocks = pool_blocks(kind, 4 * regions, self.per_region)
        block_bytes = 2 * 4 * 128 // self.per_region
        # A token that does not fill its share of the block exactly is not a layout; take one that does.
        token_bytes = 32
        block_tokens = block_bytes // token_bytes // max(1, 8 // block_tokens)
        block_bytes = block_tokens * token_bytes
        self.managers, self.scorers = [], []
        # What a prefix cache holds.
        self.held: set[int] = set()
        for module in (_pimkv, reference):
            self.managers.append(
                module.BlockManager(
                    kind,
                    self.blocks,
                    block_tokens=block_tokens,
                    blocks_per_region=self.per_region,
                    best_fit=best_fit,
                )
            )
            address_map = module.AddressMap(
                "row:6 col:1 bg:1 ba:1 ch:1 col:1; ba^row:1", burst_bytes=32, **sizes
            )
            controller = module.Controller(**TIMING, **controlled)
            passes = None
            if split:
                # Two tensors; the second one behind the first, its tokens half as long.
                unit = block_bytes * self.per_region
                sizes_of = (token_bytes, token_bytes, block_bytes, unit)
                passes = [[(0, *sizes_of)], [(unit * self.blocks // self.per_region, *sizes_of)]]
            self.scorers.append(
                module.Scorer(
                    address_map,
                    block_bytes=block_bytes,
                    token_bytes=token_bytes,
                    window=window,
                    controller=controller,
                    passes=passes,
                    blocks_per_unit=self.per_region,
                    count_writes=True,
                    **scored,
                )
            )

    def call(self, function: Callable[[Any], Any]) -> Any:
        return both(*self.managers, function)

    @property
    def live(self) -> list[int]:
        return self.managers[0].sequences().tolist()

    @rule(
        seq=st.integers(0, 9),
        tokens=st.integers(0, 60),
        more=st.integers(-1, 20),
        scratch=st.integers(0, 2),
        prefix=st.one_of(st.none(), st.none(), st.integers(0, 1)),
        shared=st.one_of(st.none(), st.lists(st.integers(-1, 33), max_size=3)),
    )
    def admit(
        self, seq: int, tokens: int, more: int, scratch: int, prefix: int | None, shared: list[int] | None
    ) -> None:
        ask = {"reserve_tokens": max(0, tokens + more), "scratch_blocks": scratch, "prefix": prefix}
        blocks = None if shared is None else ints(shared)
        self.call(lambda m: m.admit(seq, tokens, shared=blocks, **ask))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), seq=st.integers(0, 9), tokens=st.integers(0, 60))
    def admit_after(self, data: st.DataObject, seq: int, tokens: int) -> None:
        """A sequence that starts with blocks of a running one."""
        other = data.draw(st.sampled_from(self.live))
        most = len(self.managers[0].table(other))
        blocks = self.managers[0].table(other)[: data.draw(st.integers(0, most))]
        self.call(lambda m: m.admit(seq, tokens, shared=blocks))

    @rule(data=st.data(), seq=st.integers(0, 9))
    def hold(self, data: st.DataObject, seq: int) -> None:
        most = len(self.managers[0].table(seq)) if seq in self.live else 1
        places = data.draw(st.lists(st.integers(-1, most), max_size=4))
        if self.call(lambda m: m.hold(seq, ints(places))) != REFUSED:
            held = self.managers[0].table(seq)[ints(places)].tolist()
            assert len(set(held)) == len(held) and not self.held & set(held)
            self.held.update(held)

    @rule(data=st.data(), seq=st.integers(0, 9))
    def hold_all(self, data: st.DataObject, seq: int) -> None:
        if seq in self.live:
            table = self.managers[0].table(seq).tolist()
            places = data.draw(st.permutations([i for i, b in enumerate(table) if b not in self.held]))
            if self.call(lambda m: m.hold(seq, ints(places))) != REFUSED:
                self.held.update(table)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.held)), unique=True))
        assert self.call(lambda m: m.let_go(ints(blocks))) != REFUSED
        self.held -= set(blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), seq=st.integers(0, 9), tokens=st.integers(0, 60))
    def admit_held(self, data: st.DataObject, seq: int, tokens: int) -> None:
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.held)), unique=True, max_size=5))
        self.call(lambda m: m.admit(seq, tokens, shared=ints(blocks)))

    @rule(blocks=st.lists(st.integers(-1, 33), max_size=2))
    def let_anything_go(self, blocks: list[int]) -> None:
        outcome = self.call(lambda m: m.let_go(ints(blocks)))
        assert (outcome != REFUSED) == (len(set(blocks)) == len(blocks) and set(blocks) <= self.held)
        if outcome != REFUSED:
            self.held -= set(blocks)

    @rule(key=st.integers(0, 1), blocks=st.integers(0, 3))
    def pin_prefix(self, key: int, blocks: int) -> None:
        self.call(lambda m: m.pin_prefix(key, blocks))
        assert self.call(lambda m: m.prefix_blocks(key)) <= 3

    @rule(most_used=st.integers(0, 4))
    def compact(self, most_used: int) -> None:
        if self.call(lambda m: m.compact(most_used)) != REFUSED:
            moved = dict(self.call(lambda m: m.copies()))
            self.held = {moved.get(block, block) for block in self.held}

    @rule(seqs=st.lists(st.integers(0, 9), max_size=3), window=st.integers(0, 20))
    def trim(self, seqs: list[int], window: int) -> None:
        self.call(lambda m: m.trim(ints(seqs), window))

    @rule(indices=st.lists(st.one_of(st.just(0), st.integers(0, 40)), max_size=40))
    def feed(self, indices: list[int]) -> None:
        self.call(lambda m: m.feed(ints(indices)))

    @rule(parent=st.integers(0, 9), child=st.integers(0, 9))
    def fork(self, parent: int, child: int) -> None:
        self.call(lambda m: m.fork(parent, child))

    @rule(seq=st.integers(0, 9), position=st.integers(0, 60))
    def write(self, seq: int, position: int) -> None:
        self.call(lambda m: m.write(seq, position))

    @rule(
        data=st.data(),
        width=st.integers(1, 3),
        depth=st.integers(0, 4),
        adopt=st.sampled_from(["splice", "copyback"]),
        separate=st.booleans(),
    )
    def speculate(self, data: st.DataObject, width: int, depth: int, adopt: str, separate: bool) -> None:
        seqs = data.draw(st.permutations(self.live))
        advances = data.draw(st.lists(st.integers(1, depth + 1), min_size=len(seqs), max_size=len(seqs)))
        picks = data.draw(st.lists(st.integers(0, width - 1), min_size=len(seqs), max_size=len(seqs)))
        shape = {"width": width, "depth": depth, "adopt": adopt, "separate": separate}
        self.call(lambda m: m.speculate(ints(seqs), ints(advances), ints(picks), **shape))

    @rule(data=st.data(), n=st.integers(1, 9))
    def grow(self, data: st.DataObject, n: int) -> None:
        seqs = data.draw(st.permutations(self.live))
        self.call(lambda m: m.grow(ints(seqs), ints([n] * len(seqs))))

    @rule(seqs=st.lists(st.integers(0, 12), max_size=3), tokens=st.lists(st.integers(-1, 3), max_size=3))
    def grow_anything(self, seqs: list[int], tokens: list[int]) -> None:
        self.call(lambda m: m.grow(ints(seqs), ints(tokens)))

    @rule(seqs=st.lists(st.integers(0, 12), max_size=3), shuffle=st.booleans(), data=st.data())
    def release(self, seqs: list[int], shuffle: bool, data: st.DataObject) -> None:
        order = None
        if shuffle and set(seqs) <= set(self.live):
            tables = [range(len(self.managers[0].table(seq))) for seq in seqs]
            order = ints(i for table in tables for i in data.draw(st.permutations(table)))
        if len(set(seqs)) == len(seqs) and set(seqs) <= set(self.live):
            for scorer, manager in zip(self.scorers, self.managers, strict=True):
                scorer.settle(manager, ints(seqs))
                scorer.forget(ints(seqs))
        self.call(lambda m: m.release(ints(seqs), order))

    @rule(data=st.data())
    def observe(self, data: st.DataObject) -> None:
        seqs = ints(data.draw(st.permutations(self.live)))
        scores = [plain(s.observe(m, seqs)) for s, m in zip(self.scorers, self.managers, strict=True)]
        assert scores[0] == scores[1]
        for name in ("totals", "timed_totals", "limit_totals", "pass_totals", "write_totals"):
            assert getattr(self.scorers[0], name)() == getattr(self.scorers[1], name)(), name

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "managers"):
            return
        for name in ("free_blocks", "live_blocks", "blocks_allocated", "cow_copies"):
            self.call(lambda m, name=name: getattr(m, name))
        for seq in self.live:
            self.call(lambda m, seq=seq: m.table(seq))
            self.call(lambda m, seq=seq: m.length(seq))
        self.call(lambda m: m.placement(ints(self.live)))
        self.call(lambda m: m.copies())
        for block in range(self.blocks):
            self.call(lambda m, block=block: m.refcount(block))
        self.call(lambda m: m.check())


TestPools = Pools.TestCase
TestManagers = Managers.TestCase


@settings(max_examples=60)
@given(data=st.data())
def test_address_maps_agree(data: st.DataObject) -> None:
    bits = {name: data.draw(st.integers(0, 4), name) for name in ("ch", "bg", "ba", "row", "col")}
    segments = []
    for name, width in bits.items():
        left = width
        while left:
            part = data.draw(st.integers(1, left))
            segments.append(f"{name}:{part}")
            left -= part
    spec = " ".join(data.draw(st.permutations(segments)))
    if bits["row"]:
        hashes = data.draw(st.lists(st.sampled_from(["ch", "bg", "ba"]), unique=True))
        spec += "; " + " ".join(f"{h}^row:{data.draw(st.integers(0, bits['row'] - 1))}" for h in hashes)
    sizes = {
        "channels": 2 ** bits["ch"],
        "bank_groups": 2 ** bits["bg"],
        "banks_per_group": 2 ** bits["ba"],
        "rows": 2 ** bits["row"],
        "row_bytes": 32 * 2 ** bits["col"],
        "burst_bytes": 32,
    }
    rust, twin = (m.AddressMap(spec, **sizes) for m in (_pimkv, reference))
    bursts = np.arange(min(2 ** sum(bits.values()), 4096), dtype=np.int64)
    places = both(rust, twin, lambda m: m.decode(bursts))
    assert both(rust, twin, lambda m: m.encode(*map(ints, places))) == bursts.tolist()


@pytest.mark.parametrize("module", [_pimkv, reference], ids=["rust", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_give_changes_nothing(module: Any, kind: str) -> None:
    pool = ready_pool(module, kind, 16, 8)
    assert not options_of(kind).spans or pool.reserve(1, 6)
    ids = pool.take(1, 6)
    left = pool.free_blocks
    for bad, error in (
        ([ids[0], ids[0]], DoubleFree),
        ([ids[1], 16], ForeignBlock),
        ([ids[2], -1], ForeignBlock),
        ([ids[3], next(i for i in range(16) if i not in ids)], DoubleFree),
    ):
        with pytest.raises(error):
            pool.give(ints(bad))
        assert pool.free_blocks == left
        pool.check()
    pool.give(ids)
    with pytest.raises(DoubleFree):
        pool.give(ids[:1])
    assert pool.free_blocks == left + 6
