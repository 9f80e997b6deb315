"""Shared blocks as a library feature: forks, copy-on-write, and rounds that run out of blocks midway."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pimkv import _pimkv, reference
from pimkv.errors import ForeignBlock, InvalidArgument, UnknownSequence

BACKENDS = pytest.mark.parametrize("module", [_pimkv, reference], ids=["rust", "reference"])


def ints(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


@BACKENDS
@pytest.mark.parametrize("kind", ["paged", "pim-aware"])
def test_a_fork_chain_of_depth_100_loses_nothing(module: Any, kind: str) -> None:
    manager = module.BlockManager(kind, 256, block_tokens=4, blocks_per_region=8)
    assert manager.admit(0, 10)
    for child in range(1, 101):
        manager.fork(child - 1, child)
        # Every child writes into the tail block it shares, and so gets one of its own.
        assert manager.write(child, 9)
        manager.check()
    first = manager.table(0).tolist()
    assert all(manager.table(seq).tolist()[:2] == first[:2] for seq in range(101))
    assert manager.refcount(first[0]) == 101
    tails = [manager.table(seq).tolist()[2] for seq in range(101)]
    assert len(set(tails)) == 101
    copies = manager.copies().tolist()
    assert len(copies) == manager.cow_copies == 100
    # Children go before parents, parents before children, and what is left in the middle.
    for seq in [*range(100, 60, -1), *range(30), *range(30, 61)]:
        manager.release(ints(seq))
        manager.check()
    assert (manager.free_blocks, manager.live_blocks) == (256, 0)


@BACKENDS
def test_two_writers_of_a_shared_block_copy_once(module: Any) -> None:
    manager = module.BlockManager("paged", 8, block_tokens=4)
    manager.admit(0, 6)
    manager.fork(0, 1)
    assert manager.write(1, 5)
    assert manager.write(0, 5)
    assert manager.cow_copies == 1
    old, new = manager.copies().tolist()[0]
    assert (manager.table(0).tolist()[1], manager.table(1).tolist()[1]) == (old, new)
    assert manager.copies().tolist() == []


@BACKENDS
def test_copy_on_write_without_a_free_block_is_an_answer(module: Any) -> None:
    manager = module.BlockManager("paged", 2, block_tokens=4)
    manager.admit(0, 6)
    manager.fork(0, 1)
    before = manager.table(1).tolist()
    assert not manager.write(1, 5)
    assert manager.grow(ints(1), ints(1)) == 0
    assert manager.table(1).tolist() == before
    manager.check()
    manager.release(ints(0))
    # Nobody shares it any more: no copy is needed.
    assert manager.grow(ints(1), ints(1)) == 1
    assert manager.cow_copies == 0


@BACKENDS
@pytest.mark.parametrize("kind", ["paged", "pim-aware"])
def test_a_pool_exhausted_in_mid_round_loses_nothing(module: Any, kind: str) -> None:
    """Copyback: the branches fit, the sequence's own growth does not; another one is preempted; it resumes."""
    manager = module.BlockManager(kind, 8, block_tokens=4, blocks_per_region=4)
    manager.admit(0, 4)
    manager.admit(1, 12)
    shape = {"width": 4, "depth": 3, "adopt": "copyback", "separate": False}
    round_ = (ints(0), ints(4), ints(2))
    done, advanced, stalls, copied = manager.speculate(*round_, **shape)
    assert (done, advanced.tolist(), stalls, copied) == (0, [0], 0, 0)
    assert (manager.free_blocks, manager.length(0)) == (0, 4)
    manager.check()
    manager.release(ints(1))
    done, advanced, stalls, copied = manager.speculate(*round_, **shape)
    assert (done, advanced.tolist(), stalls, copied) == (1, [4], 0, 4)
    assert (manager.length(0), manager.live_blocks, manager.free_blocks) == (8, 2, 6)
    manager.check()


@BACKENDS
def test_a_sequence_released_in_mid_round_gives_its_branches_back(module: Any) -> None:
    manager = module.BlockManager("paged", 5, block_tokens=4)
    manager.admit(0, 4)
    done, *_ = manager.speculate(ints(0), ints(1), ints(0), width=4, depth=3, adopt="copyback", separate=True)
    assert (done, manager.free_blocks) == (0, 0)
    manager.release(ints(0))
    manager.check()
    assert manager.free_blocks == 5


@BACKENDS
def test_a_prefix_outlives_its_sharers(module: Any) -> None:
    manager = module.BlockManager("pim-aware", 16, block_tokens=4, blocks_per_region=4)
    assert manager.pin_prefix(0, 2)
    for seq in range(3):
        assert manager.admit(seq, 10, prefix=0)
    shared = manager.table(0).tolist()[:2]
    assert all(manager.refcount(block) == 4 for block in shared)
    assert manager.live_blocks == 2 + 3
    manager.release(ints(0, 1, 2))
    assert [manager.refcount(block) for block in shared] == [1, 1]
    assert manager.free_blocks == 14
    manager.check()


@BACKENDS
@pytest.mark.parametrize("kind", ["paged", "pim-aware", "pim-gather"])
def test_a_held_block_outlives_its_sequence_and_starts_another(module: Any, kind: str) -> None:
    manager = module.BlockManager(kind, 8, block_tokens=4, blocks_per_region=4)
    assert manager.admit(0, 10)
    first = manager.table(0)[:2]
    # The deepest first; it is the order in which a cache would evict them.
    manager.hold(0, ints(1, 0))
    assert [manager.refcount(block) for block in first] == [2, 2]
    manager.release(ints(0))
    manager.check()
    assert (manager.free_blocks, manager.live_blocks) == (6, 2)
    assert manager.admit(1, 9, shared=first)
    assert manager.table(1).tolist()[:2] == first.tolist()
    assert (manager.inherited(1), manager.free_blocks, manager.blocks_allocated) == (8, 5, 4)
    manager.let_go(first)
    manager.check()
    assert [manager.refcount(block) for block in first] == [1, 1]
    # A third one starts with what the second alone holds, and each appends to a block of its own.
    assert manager.admit(2, 9, shared=manager.table(1)[:2])
    assert manager.grow(ints(1, 2), ints(1, 1)) == 2
    assert manager.cow_copies == 0
    manager.release(ints(1, 2))
    assert manager.free_blocks == 8
    manager.check()


@BACKENDS
def test_what_cannot_be_held_or_shared_is_refused_and_changes_nothing(module: Any) -> None:
    manager = module.BlockManager("paged", 8, block_tokens=4)
    manager.admit(0, 8)
    table = manager.table(0)
    free = next(block for block in range(8) if block not in table)
    manager.hold(0, ints(0))
    for call in (
        lambda: manager.hold(0, ints(0)),
        lambda: manager.hold(0, ints(1, 1)),
        lambda: manager.hold(0, ints(2)),
        lambda: manager.let_go(table[1:]),
        lambda: manager.let_go(np.repeat(table[:1], 2)),
        lambda: manager.admit(1, 9, shared=ints(free)),
        lambda: manager.admit(1, 9, shared=np.repeat(table[:1], 2)),
        lambda: manager.admit(1, 4, shared=table),
    ):
        with pytest.raises(InvalidArgument):
            call()
    with pytest.raises(ForeignBlock):
        manager.let_go(ints(8))
    with pytest.raises(ForeignBlock):
        manager.admit(1, 9, shared=ints(-1))
    with pytest.raises(UnknownSequence):
        manager.hold(1, ints(0))
    manager.check()
    assert [manager.refcount(block) for block in table] == [2, 1]
    assert manager.sequences().tolist() == [0]


@BACKENDS
def test_spans_neither_hold_nor_share(module: Any) -> None:
    manager = module.BlockManager("contiguous", 8, block_tokens=4)
    manager.admit(0, 8, reserve_tokens=8)
    with pytest.raises(InvalidArgument, match="contiguous"):
        manager.hold(0, ints(0))
    with pytest.raises(InvalidArgument, match="contiguous"):
        manager.admit(1, 8, reserve_tokens=8, shared=manager.table(0)[:1])
