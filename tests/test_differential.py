"""Rust against its Python twin: the same calls, identical block ids, counts and refusals at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pimkv import _pimkv, reference
from pimkv.errors import DoubleFree, ForeignBlock, PimkvError

KINDS = ["paged", "pim-aware"]
REFUSED = "refused"


def ints(values: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(list(values), dtype=np.int64)


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
        self.blocks = regions * per_region
        self.rust, self.twin = (
            m.Pool(kind, self.blocks, blocks_per_region=per_region) for m in (_pimkv, reference)
        )
        self.taken: list[int] = []

    @rule(owner=st.integers(0, 4), n=st.integers(0, 12))
    def take(self, owner: int, n: int) -> None:
        ids = both(self.rust, self.twin, lambda p: p.take(owner, n))
        assert len(ids) == min(n, self.blocks - len(self.taken))
        self.taken += ids

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
            assert both(self.rust, self.twin, lambda p: p.free_blocks) == self.blocks - len(self.taken)
            both(self.rust, self.twin, lambda p: p.check())


class Managers(RuleBasedStateMachine):
    """Block tables with a scorer looking on: identical ids, lengths and scores at every step."""

    @initialize(
        kind=st.sampled_from(KINDS),
        regions=st.integers(1, 8),
        block_tokens=st.integers(1, 5),
        window=st.integers(0, 70),
    )
    def make(self, kind: str, regions: int, block_tokens: int, window: int) -> None:
        sizes = {"channels": 2, "bank_groups": 2, "banks_per_group": 2, "rows": 64, "row_bytes": 128}
        self.per_region = 4
        block_bytes = 2 * 4 * 128 // self.per_region
        # A token that does not fill its share of the block exactly is not a layout; take one that does.
        token_bytes = 32
        block_tokens = block_bytes // token_bytes // max(1, 8 // block_tokens)
        block_bytes = block_tokens * token_bytes
        self.managers, self.scorers = [], []
        for module in (_pimkv, reference):
            self.managers.append(
                module.BlockManager(
                    kind, 4 * regions, block_tokens=block_tokens, blocks_per_region=self.per_region
                )
            )
            address_map = module.AddressMap(
                "row:6 col:1 bg:1 ba:1 ch:1 col:1; ba^row:1", burst_bytes=32, **sizes
            )
            self.scorers.append(
                module.Scorer(address_map, block_bytes=block_bytes, token_bytes=token_bytes, window=window)
            )

    def call(self, function: Callable[[Any], Any]) -> Any:
        return both(*self.managers, function)

    @property
    def live(self) -> list[int]:
        return self.managers[0].sequences().tolist()

    @rule(seq=st.integers(0, 9), tokens=st.integers(0, 60))
    def admit(self, seq: int, tokens: int) -> None:
        self.call(lambda m: m.admit(seq, tokens))

    @rule(data=st.data(), n=st.integers(1, 9))
    def grow(self, data: st.DataObject, n: int) -> None:
        seqs = data.draw(st.permutations(self.live))
        self.call(lambda m: m.grow(ints(seqs), ints([n] * len(seqs))))

    @rule(seqs=st.lists(st.integers(0, 12), max_size=3), tokens=st.lists(st.integers(-1, 3), max_size=3))
    def grow_anything(self, seqs: list[int], tokens: list[int]) -> None:
        self.call(lambda m: m.grow(ints(seqs), ints(tokens)))

    @rule(seqs=st.lists(st.integers(0, 12), max_size=3))
    def release(self, seqs: list[int]) -> None:
        self.call(lambda m: m.release(ints(seqs)))
        for scorer in self.scorers:
            scorer.forget(ints(seqs))

    @rule(data=st.data())
    def observe(self, data: st.DataObject) -> None:
        seqs = ints(data.draw(st.permutations(self.live)))
        scores = [plain(s.observe(m, seqs)) for s, m in zip(self.scorers, self.managers, strict=True)]
        assert scores[0] == scores[1]
        assert self.scorers[0].totals() == self.scorers[1].totals()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "managers"):
            return
        for name in ("free_blocks", "live_blocks", "blocks_allocated"):
            self.call(lambda m, name=name: getattr(m, name))
        for seq in self.live:
            self.call(lambda m, seq=seq: m.table(seq))
            self.call(lambda m, seq=seq: m.length(seq))
        self.call(lambda m: m.placement(ints(self.live)))
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
    pool = module.Pool(kind, 16, blocks_per_region=4)
    ids = pool.take(1, 6)
    for bad, error in (
        ([ids[0], ids[0]], DoubleFree),
        ([ids[1], 16], ForeignBlock),
        ([ids[2], -1], ForeignBlock),
        ([ids[3], next(i for i in range(16) if i not in ids)], DoubleFree),
    ):
        with pytest.raises(error):
            pool.give(ints(bad))
        assert pool.free_blocks == 10
        pool.check()
    pool.give(ids)
    with pytest.raises(DoubleFree):
        pool.give(ids[:1])
    assert pool.free_blocks == 16
