"""Does every registered policy keep the contract of all? Nothing here knows a policy by name.

Conservation, exhaustion, forks, release in any order, determinism; on both backends. That the two agree at
every step is in test_differential.py, over the same policies.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_pools import ints, pool_blocks, ready_manager, ready_pool

from pimkv import _pimkv, allocators, reference
from pimkv.allocators import options_of
from pimkv.errors import DoubleFree, ForeignBlock, InvalidArgument

KINDS = pytest.mark.parametrize("kind", _pimkv.Pool.kinds())
BACKENDS = pytest.mark.parametrize("module", [_pimkv, reference], ids=["rust", "reference"])
SIZES = st.tuples(st.integers(1, 8), st.integers(1, 8))


def test_a_policy_is_registered_once_and_known_everywhere() -> None:
    rust, twins = _pimkv.Pool.kinds(), reference.Pool.kinds()
    assert sorted(rust) == sorted(twins) == list(allocators.policies())
    assert len(set(rust)) == len(rust)
    assert set(rust) <= set(allocators.kinds())
    # An allocator that is no policy by its own name stands on one.
    assert {allocators.policy_of(kind) for kind in allocators.kinds()} == set(rust)


def take_all(pool: Any, kind: str, owners: int) -> list[int]:
    """Owners take in turn until nothing is left; those that must reserve take, each, the most they are granted."""
    taken: list[int] = []
    if options_of(kind).spans:
        for owner in itertools.count():
            granted = next((n for n in range(pool.free_blocks, 0, -1) if pool.reserve(owner, n)), 0)
            if not granted:
                return taken
            taken += pool.take(owner, granted).tolist()
    while True:
        got = [int(block) for owner in range(owners) for block in pool.take(owner, 1)]
        if not got:
            return taken
        taken += got


@BACKENDS
@KINDS
@given(size=SIZES, owners=st.integers(1, 4), data=st.data())
def test_every_block_is_handed_out_once_and_comes_back_in_any_order(
    module: Any, kind: str, size: tuple[int, int], owners: int, data: st.DataObject
) -> None:
    per_region = size[1]
    blocks = pool_blocks(kind, size[0] * per_region, per_region)
    pool = ready_pool(module, kind, blocks, per_region)
    usable = pool.free_blocks
    assert usable == blocks - options_of(kind).held_back
    taken = take_all(pool, kind, owners)
    assert len(set(taken)) == len(taken) == usable
    assert set(taken) <= set(range(blocks))
    # Exhausted: an answer, as often as one asks, and no change.
    assert pool.free_blocks == 0 and [len(pool.take(owner, 3)) for owner in range(owners)] == [0] * owners
    pool.check()
    for block in data.draw(st.permutations(taken)):
        pool.give(ints([block]))
        pool.check()
    for owner in range(max(owners, blocks)):
        pool.forget(owner)
    assert pool.free_blocks == usable
    # What comes back is all there is, whatever order it came in.
    assert sorted(take_all(pool, kind, owners)) == sorted(taken)
    pool.check()


@KINDS
@given(
    size=SIZES,
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.booleans()), max_size=30),
)
def test_the_same_calls_give_the_same_ids(
    kind: str, size: tuple[int, int], steps: list[tuple[int, int, bool]]
) -> None:
    """In a second pool, and in the twin's."""
    per_region = size[1]
    blocks = pool_blocks(kind, size[0] * per_region, per_region)
    pools = [ready_pool(module, kind, blocks, per_region) for module in (_pimkv, _pimkv, reference)]
    held: list[int] = []
    for owner, n, taking in steps:
        if taking:
            if options_of(kind).spans:
                with suppress(InvalidArgument):  # it holds a span: the first pool refuses, no other is asked
                    assert len({pool.reserve(owner, max(1, n)) for pool in pools}) == 1
            first, *others = (pool.take(owner, n).tolist() for pool in pools)
            assert others == [first, first] and not set(first) & set(held)
            held += first
        else:
            back, held = held[:n], held[n:]
            for pool in pools:
                pool.give(ints(back))
        for pool in pools:
            pool.check()
        assert len({pool.free_blocks for pool in pools}) == 1


@KINDS
@given(
    size=SIZES,
    steps=st.lists(st.tuples(st.sampled_from("aagr"), st.integers(0, 5), st.integers(1, 9)), max_size=40),
)
def test_both_backends_give_the_same_tables(
    kind: str, size: tuple[int, int], steps: list[tuple[str, int, int]]
) -> None:
    """Blocks of one token: what is admitted (a), grown (g) and released (r) takes and gives many at once."""
    per_region = size[1]
    blocks = pool_blocks(kind, size[0] * per_region, per_region)
    managers = [ready_manager(module, kind, blocks, 1, per_region) for module in (_pimkv, reference)]
    for what, seq, n in steps:
        live = managers[0].sequences().tolist()
        if what == "a" and seq not in live:
            assert len({m.admit(seq, n, reserve_tokens=n + 3) for m in managers}) == 1
        elif what == "g" and seq in live:
            assert len({m.grow(ints([seq]), ints([n])) for m in managers}) == 1
        elif what == "r" and seq in live:
            for m in managers:
                m.release(ints([seq]))
        for known in managers[0].sequences().tolist():
            rust, twin = (m.table(known).tolist() for m in managers)
            assert rust == twin


@BACKENDS
@KINDS
def test_what_cannot_be_given_back_is_refused(module: Any, kind: str) -> None:
    blocks = pool_blocks(kind, 8, 4)
    pool = ready_pool(module, kind, blocks, 4)
    free = pool.free_blocks
    for block in range(blocks):
        with pytest.raises(DoubleFree):
            pool.give(ints([block]))
    with pytest.raises(ForeignBlock):
        pool.give(ints([blocks]))
    assert pool.free_blocks == free
    pool.check()


@BACKENDS
@KINDS
@given(
    size=SIZES,
    block_tokens=st.integers(1, 5),
    steps=st.lists(
        st.tuples(st.sampled_from(["admit", "grow", "fork", "write", "release"]), *[st.integers(0, 5)] * 2),
        max_size=40,
    ),
    data=st.data(),
)
def test_tables_over_it_lose_nothing(
    module: Any,
    kind: str,
    size: tuple[int, int],
    block_tokens: int,
    steps: list[tuple[str, int, int]],
    data: st.DataObject,
) -> None:
    per_region = size[1]
    blocks = pool_blocks(kind, size[0] * per_region, per_region)
    manager = ready_manager(module, kind, blocks, block_tokens, per_region)
    spans, usable = options_of(kind).spans, manager.free_blocks
    for what, seq, n in steps:
        live = manager.sequences().tolist()
        if what == "admit" and seq not in live:
            enough = manager.free_blocks >= -(-(n + 1) // block_tokens)
            admitted = manager.admit(seq, n + 1, reserve_tokens=n + 1)
            # Free blocks are found, wherever they lie; a span must lie in one piece.
            assert admitted == enough or (spans and not admitted)
        elif what == "grow" and seq in live:
            before = manager.length(seq)
            done = manager.grow(ints([seq]), ints([n + 1]))
            assert manager.length(seq) == before + (n + 1) * done
            # A short growth is an answer: nothing is free, or the span ends here.
            assert done or spans or manager.free_blocks == 0
        elif what == "fork" and seq in live and n not in live:
            if spans:
                with pytest.raises(InvalidArgument):
                    manager.fork(seq, n)
            elif len(manager.table(seq)) == -(-manager.length(seq) // block_tokens):
                manager.fork(seq, n)
                assert manager.table(n).tolist() == manager.table(seq).tolist()
        elif what == "write" and seq in live:
            manager.write(seq, min(n, manager.length(seq) - 1))
        elif what == "release" and seq in live:
            order = data.draw(st.permutations(range(len(manager.table(seq)))))
            manager.release(ints([seq]), ints(order))
        manager.check()
        tables = [manager.table(s).tolist() for s in manager.sequences().tolist()]
        assert manager.live_blocks == len({block for table in tables for block in table})
        if not spans:
            assert manager.free_blocks + manager.live_blocks == usable
    manager.release(ints(data.draw(st.permutations(manager.sequences().tolist()))))
    manager.check()
    assert (manager.free_blocks, manager.live_blocks) == (usable, 0)
