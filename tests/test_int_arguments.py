"""Do both sides take integers however they come, and refuse alike what is none?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pimkv import _pimkv, reference
from pimkv.errors import InvalidArgument

BOTH = pytest.mark.parametrize("module", [_pimkv, reference], ids=["rust", "reference"])

AS = {
    "int64": lambda values: np.array(values, dtype=np.int64),
    "list": list,
    "tuple": tuple,
    "int8": lambda values: np.array(values, dtype=np.int8),
    "uint64": lambda values: np.array(values, dtype=np.uint64),
    "big-endian": lambda values: np.array(values, dtype=">i8"),
    "every other": lambda values: np.repeat(np.array(values, dtype=np.int64), 2)[::2],
    "numpy integers": lambda values: [np.int32(value) for value in values],
}


@BOTH
@pytest.mark.parametrize("form", AS)
def test_integers_are_taken_in_any_form(module: Any, form: str) -> None:
    """One life of two sequences, every call of the three classes that takes integers; the same in every form."""
    assert life(module, AS[form]) == life(reference, AS["int64"])


def life(module: Any, given: Callable[[list[int]], Any]) -> list[Any]:
    address_map = module.AddressMap(
        "row:3 ba:1 col:2",
        channels=1,
        bank_groups=1,
        banks_per_group=2,
        rows=8,
        row_bytes=128,
        burst_bytes=32,
    )
    scorer = module.Scorer(address_map, block_bytes=128, token_bytes=32, window=8, count_writes=True)
    seen: list[Any] = []
    manager = module.BlockManager("paged", 16, block_tokens=4, blocks_per_region=4)
    manager.admit(0, 5)
    manager.admit(1, 5)
    seen.append(manager.grow(given([0, 1]), given([4, 1])))
    round_of = {"width": 2, "depth": 1, "adopt": "splice", "separate": False}
    done, advanced, stalls, copied = manager.speculate(
        given([0, 1]), given([1, 2]), given([0, 1]), **round_of
    )
    seen += [done, advanced.tolist(), stalls, copied]
    seen += [column.tolist() for column in scorer.observe(manager, given([1, 0]))]
    seen.append(manager.placement(given([1, 0])).tolist())
    seen.append(manager.trim(given([0]), 3))
    scorer.settle(manager, given([0]))
    scorer.forget(given([0]))
    order = list(range(len(manager.table(1))))[::-1]
    manager.release(given([1]), given(order))
    pool = module.Pool("random", 8)
    pool.feed(given([3, 0, 2]))
    taken = pool.take(1, 3).tolist()
    pool.give(given(taken))
    places = address_map.decode(given([3, 5, 60]))
    seen += [taken, pool.free_blocks, manager.table(0).tolist(), manager.free_blocks]
    seen += [column.tolist() for column in places]
    return [*seen, address_map.encode(*(given(column.tolist()) for column in places)).tolist()]


@BOTH
def test_nothing_at_all_is_integers(module: Any) -> None:
    manager = module.BlockManager("paged", 16, block_tokens=4)
    assert manager.grow([], ()) == 0
    manager.release(np.array([]))


@BOTH
@pytest.mark.parametrize(
    "wrong",
    [
        [1.0],
        np.array([1.0]),
        [True],
        np.array([True, False]),
        ["1"],
        [None],
        None,
        1,
        [[1]],
        np.zeros((1, 1), dtype=np.int64),
        [[1], [1, 2]],
        [2**63],
        [-(2**63) - 1],
        [2**70],
        np.array([2**63], dtype=np.uint64),
        {1},
    ],
    ids=repr,
)
def test_anything_else_is_refused_by_name(module: Any, wrong: Any) -> None:
    manager = module.BlockManager("paged", 16, block_tokens=4)
    manager.admit(1, 5)
    before = manager.table(1).tolist()
    for name, call in {
        "seqs": lambda: manager.grow(wrong, [1]),
        "tokens": lambda: manager.grow([1], wrong),
        "ids": lambda: module.Pool("paged", 8).give(wrong),
        "indices": lambda: module.Pool("random", 8).feed(wrong),
    }.items():
        with pytest.raises(InvalidArgument, match=f"^{name} "):
            call()
    assert manager.table(1).tolist() == before
    manager.check()
