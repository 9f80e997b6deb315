"""The reference twins against cases worked out by hand, and against rules that every case must obey."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scorer_inputs import HBM3, HOST_CACHELINE, ONE_CHANNEL, Tables, address_maps, ints

from pimkv.errors import (
    BrokenInvariant,
    DoubleFree,
    DuplicateSequence,
    ForeignBlock,
    InvalidArgument,
    PimkvError,
    UnknownSequence,
)
from pimkv.reference import AddressMap, BlockManager, Pool, Scorer
from pimkv.reference.scoring import representatives

KINDS = ("paged", "pim-aware", "contiguous", "random")
SHARING_KINDS = ("paged", "pim-aware", "random")

TOKEN = 4096  # bytes per token and layer of an 8-KV-head model
BLOCK = 16 * TOKEN


def take(pool: Pool, owner: int, n: int) -> list[int]:
    return pool.take(owner, n).tolist()


def pool_of(kind: str, blocks: int, blocks_per_region: int = 1) -> Pool:
    """A pool in which owners 0, 1 and 2 can take four blocks each, whatever its kind asks for first."""
    pool = Pool(kind, blocks, blocks_per_region=blocks_per_region)
    if kind == "contiguous":
        for owner in range(3):
            assert pool.reserve(owner, 4)
    if kind == "random":
        pool.feed(ints(*[0] * 100))
    return pool


def manager_of(kind: str, blocks: int, block_tokens: int = 4, blocks_per_region: int = 1) -> BlockManager:
    """A manager of that kind; a `random` one always picks the first block of its free list."""
    manager = BlockManager(kind, blocks, block_tokens=block_tokens, blocks_per_region=blocks_per_region)
    if kind == "random":
        manager.feed(ints(*[0] * 10_000))
    return manager


# ---- address map ----


@pytest.mark.parametrize(
    ("burst", "place"),
    [
        (0, (0, 0, 0, 0)),
        (1, (0, 0, 0, 1)),
        (2, (1, 0, 0, 0)),
        (63, (31, 0, 0, 1)),
        (64, (0, 1, 0, 0)),  # banks of a group first
        (256, (0, 4, 0, 0)),  # then bank groups
        (1024, (0, 0, 0, 2)),  # then the upper column bits
        (16384, (0, 0, 1, 0)),
        (2**28 - 1, (31, 15, 16383, 31)),
    ],
)
def test_host_cacheline_map_by_hand(burst: int, place: tuple[int, int, int, int]) -> None:
    address_map = AddressMap(HOST_CACHELINE, **HBM3)
    assert tuple(int(part[0]) for part in address_map.decode(ints(burst))) == place
    assert address_map.encode(*(ints(part) for part in place)).tolist() == [burst]


def test_hash_terms_xor_the_field_with_the_shifted_row() -> None:
    address_map = AddressMap(HOST_CACHELINE + "; ba^row:0 ch^row:2 ch^row:1", **HBM3)
    # row 7 lies at burst 7 * 16384: ba = 0 ^ (7 & 3), ch = 0 ^ (7 >> 2) ^ (7 >> 1)
    channel, bank, row, column = address_map.decode(ints(7 * 16384))
    assert (channel[0], bank[0], row[0], column[0]) == (1 ^ 3, 3, 7, 0)


@settings(deadline=None)
@given(address_maps())
def test_every_map_is_a_bijection(address_map: AddressMap) -> None:
    bursts = np.arange(address_map.bursts)
    places = address_map.decode(bursts)
    assert len(set(zip(*(part.tolist() for part in places), strict=True))) == address_map.bursts
    limits = (address_map.channels, address_map.banks, address_map.rows, address_map.columns)
    for part, limit in zip(places, limits, strict=True):
        assert part.dtype == np.int64 and part.min() == 0 and part.max() == limit - 1
    assert address_map.encode(*places).tolist() == bursts.tolist()


@pytest.mark.parametrize(
    ("spec", "sizes", "named"),
    [
        ("row:14 col:4 bg:2 ba:2 ch:5", {}, "col has 4 bits"),
        ("row:14 col:5 bg:2 ba:2 ch:6", {}, "ch has 6 bits"),
        ("row:14 col:5 bg:2 bank:2 ch:5", {}, "'bank:2'"),
        ("row:14 col:5 bg:2 ba=2 ch:5", {}, "'ba=2'"),
        (HOST_CACHELINE + "; col^row:0", {}, "col^row:0"),
        (HOST_CACHELINE + "; ba^ch:0", {}, "ba^ch:0"),
        (HOST_CACHELINE + "; ba^row:14", {}, "ba^row:14"),
        (HOST_CACHELINE, {"channels": 24}, "channels = 24"),
        (HOST_CACHELINE, {"row_bytes": 16}, "row_bytes = 16"),
        (HOST_CACHELINE, {"rows": 0}, "rows = 0"),
    ],
)
def test_a_bad_map_is_refused_by_name(spec: str, sizes: dict[str, int], named: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        AddressMap(spec, **(HBM3 | sizes))
    assert named in str(error.value)


def test_places_outside_the_dram_are_refused() -> None:
    address_map = AddressMap(HOST_CACHELINE, **HBM3)
    for bad in (-1, 2**28):
        with pytest.raises(InvalidArgument, match=str(bad)):
            address_map.decode(ints(0, bad))
    with pytest.raises(InvalidArgument, match="bank contains 16"):
        address_map.encode(ints(0), ints(16), ints(0), ints(0))
    with pytest.raises(InvalidArgument, match="shape"):
        address_map.encode(ints(0, 1), ints(0), ints(0), ints(0))


# ---- policies ----


def test_paged_is_last_in_first_out() -> None:
    pool = Pool("paged", 5)
    assert take(pool, 0, 3) == [4, 3, 2]
    pool.give(ints(3, 4))
    assert take(pool, 1, 9) == [4, 3, 1, 0]
    assert take(pool, 1, 1) == []


def test_pim_aware_fills_the_lowest_empty_region_in_order() -> None:
    pool = Pool("pim-aware", 12, blocks_per_region=4)
    assert take(pool, 1, 5) == [0, 1, 2, 3, 4]
    assert take(pool, 2, 2) == [8, 9]
    assert take(pool, 1, 2) == [5, 6]


def test_pim_aware_serves_the_lowest_free_id_of_the_current_region() -> None:
    pool = Pool("pim-aware", 8, blocks_per_region=4)
    assert take(pool, 1, 3) == [0, 1, 2]
    pool.give(ints(2, 0))
    assert take(pool, 1, 3) == [0, 2, 3]


def test_pim_aware_keeps_a_region_that_emptied_and_went_to_another_owner() -> None:
    pool = Pool("pim-aware", 12, blocks_per_region=4)
    assert take(pool, 1, 2) == [0, 1]
    pool.give(ints(0, 1))
    assert take(pool, 2, 1) == [0]  # wholly free, so the lowest empty region, although owner 1 is still in it
    assert take(pool, 1, 1) == [1]  # and owner 1 stays in it
    assert take(pool, 2, 1) == [2]


def test_pim_aware_skips_stale_entries_of_empty_regions() -> None:
    pool = Pool("pim-aware", 12, blocks_per_region=4)
    assert take(pool, 1, 1) == [0]
    pool.give(ints(0))
    assert take(pool, 1, 1) == [0]  # by way of the current region: the note "region 0 is empty" is stale now
    assert take(pool, 2, 1) == [4]
    pool.give(ints(0))
    pool.forget(1)
    assert take(pool, 3, 1) == [0]
    pool.check()


def test_pim_aware_does_not_look_at_earlier_regions() -> None:
    pool = Pool("pim-aware", 8, blocks_per_region=4)
    assert take(pool, 1, 5) == [0, 1, 2, 3, 4]
    pool.give(ints(2))
    assert take(pool, 1, 3) == [5, 6, 7]
    assert take(pool, 1, 2) == [2]  # only as the region with the most free ids


def test_pim_aware_falls_back_to_the_region_with_most_free_ids() -> None:
    pool = Pool("pim-aware", 12, blocks_per_region=4)
    assert take(pool, 1, 2) == [0, 1]
    assert take(pool, 2, 1) == [4]
    assert take(pool, 3, 3) == [8, 9, 10]
    assert take(pool, 4, 9) == [5, 6, 7, 2, 3, 11]


def test_pim_aware_fallback_takes_the_lowest_region_on_ties() -> None:
    pool = Pool("pim-aware", 6, blocks_per_region=2)
    assert [take(pool, owner, 1) for owner in (1, 2, 3)] == [[0], [2], [4]]
    assert take(pool, 4, 2) == [1, 3]
    pool.give(ints(1))
    assert take(pool, 4, 1) == [1]  # current is region 1, which is full; regions 0 and 2 tie


def test_pim_aware_forgets_the_current_region_only_when_told() -> None:
    pool = Pool("pim-aware", 12, blocks_per_region=4)
    assert take(pool, 1, 1) == [0]
    pool.forget(1)
    assert take(pool, 1, 1) == [4]
    pool.forget(99)
    assert take(pool, 1, 1) == [5]


def test_pim_aware_with_regions_of_one_block_is_lowest_id_first() -> None:
    pool = Pool("pim-aware", 4)
    assert take(pool, 1, 4) == [0, 1, 2, 3]
    pool.give(ints(2, 1))
    assert take(pool, 2, 1) == [1]


def test_pim_aware_needs_whole_regions() -> None:
    with pytest.raises(InvalidArgument, match="blocks = 10"):
        Pool("pim-aware", 10, blocks_per_region=4)


def test_contiguous_is_first_fit_and_merges() -> None:
    pool = Pool("contiguous", 10)
    assert [pool.reserve(owner, n) for owner, n in ((1, 4), (2, 3), (3, 3))] == [True, True, True]
    assert pool.free_blocks == 0 and not pool.reserve(4, 1)
    assert take(pool, 2, 9) == [4, 5, 6]  # no further than its span
    pool.give(ints(5, 4, 6))
    pool.forget(2)
    assert pool.reserve(5, 2) and take(pool, 5, 2) == [4, 5]
    pool.forget(1)  # it never took its blocks
    assert pool.free_blocks == 5 and not pool.reserve(6, 5)  # extents 0..3 and 6
    pool.give(ints(4, 5))
    pool.forget(5)
    assert pool.reserve(6, 7) and take(pool, 6, 7) == [0, 1, 2, 3, 4, 5, 6]
    pool.check()


def test_contiguous_prefers_the_lowest_address_over_the_best_fit() -> None:
    pool = Pool("contiguous", 12)
    for owner, n in ((1, 4), (2, 2), (3, 2), (4, 2)):
        assert pool.reserve(owner, n)
    pool.forget(1)
    pool.forget(3)
    assert pool.reserve(5, 2) and take(pool, 5, 2) == [0, 1]
    with pytest.raises(InvalidArgument, match="owner = 5"):
        pool.reserve(5, 1)


def test_contiguous_hands_out_nothing_without_a_span() -> None:
    assert take(Pool("contiguous", 4), 1, 2) == []


def test_random_swaps_with_the_last_and_pops() -> None:
    pool = Pool("random", 5)
    pool.feed(ints(1, 1))
    assert take(pool, 0, 2) == [1, 4]  # free list 0 4 2 3 after the first
    pool.give(ints(1))  # 0 3 2 1
    pool.feed(ints(3, 0))
    assert take(pool, 0, 2) == [1, 0]


def test_random_in_batches_is_numpy_one_draw_at_a_time() -> None:
    free, expected, one_by_one = list(range(20)), [], np.random.default_rng(3)
    for _ in range(20):
        index = int(one_by_one.integers(len(free)))
        free[index], free[-1] = free[-1], free[index]
        expected.append(free.pop())
    pool = Pool("random", 20)
    pool.feed(np.random.default_rng(3).integers(np.arange(20, 0, -1)))
    assert take(pool, 0, 20) == expected


@pytest.mark.parametrize("fed", [[], [0], [0, 4]])
def test_random_without_a_fitting_index_takes_nothing(fed: list[int]) -> None:
    pool = Pool("random", 5)
    pool.feed(ints(*fed))
    with pytest.raises(InvalidArgument, match="indices"):
        pool.take(0, 2)
    assert pool.free_blocks == 5
    if len(fed) < 2:
        pool.feed(ints(*[0] * (2 - len(fed))))
        assert take(pool, 0, 2) == [0, 4]
    pool.check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_give_gives_nothing(kind: str) -> None:
    pool = pool_of(kind, 12, blocks_per_region=2)
    taken = take(pool, 0, 3)
    free = next(block for block in range(12) if block not in taken)
    before = pool.free_blocks
    for error, bad in (
        (DoubleFree, [taken[0], taken[0]]),
        (DoubleFree, [taken[0], free]),
        (ForeignBlock, [taken[0], 12]),
        (ForeignBlock, [-1]),
    ):
        with pytest.raises(error, match=str(bad[-1])):
            pool.give(ints(*bad))
        assert pool.free_blocks == before
    pool.give(ints(*taken))
    pool.check()


def test_pool_arguments_are_named() -> None:
    for build, named in (
        (lambda: Pool("pim-awar", 8), "did you mean 'pim-aware'"),
        (lambda: Pool("paged", 0), "blocks = 0"),
        (lambda: Pool("paged", 8, blocks_per_region=0), "blocks_per_region = 0"),
        (lambda: Pool("paged", 8).take(-1, 1), "owner = -1"),
        (lambda: Pool("paged", 8).take(0, -1), "n = -1"),
        (lambda: Pool("paged", 8).reserve(0, 1), "'paged'"),
        (lambda: Pool("paged", 8).feed(ints(0)), "'paged'"),
        (lambda: Pool("contiguous", 8).reserve(0, 0), "n = 0"),
        (lambda: Pool("random", 8).feed(ints(8)), "indices contains 8"),
    ):
        with pytest.raises(InvalidArgument) as error:
            build()
        assert named in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.booleans()), max_size=40))
def test_pools_conserve_their_blocks(kind: str, steps: list[tuple[int, int, bool]]) -> None:
    pool = pool_of(kind, 12, blocks_per_region=4)
    if kind == "random":
        pool.feed(ints(*[0] * 200))
    held: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for owner, n, taking in steps:
        if taking:
            before = pool.free_blocks
            got = take(pool, owner, n)
            if kind != "contiguous":
                assert len(got) == min(n, before) and pool.free_blocks == before - len(got)
            held[owner] += got
        else:
            pool.give(ints(*held[owner][:n]))
            held[owner] = held[owner][n:]
            if not held[owner]:
                pool.forget(owner)
        everything = [block for blocks in held.values() for block in blocks]
        assert len(set(everything)) == len(everything)
        pool.check()


def test_pool_check_finds_a_lost_block() -> None:
    for kind, attribute in (
        ("paged", "stack"),
        ("random", "free"),
        ("contiguous", "extents"),
        ("pim-aware", "empty"),
    ):
        pool = Pool(kind, 4)
        getattr(pool._policy, attribute).pop()
        with pytest.raises(BrokenInvariant, match=kind):
            pool.check()


# ---- block manager: tables and counters ----


@pytest.mark.parametrize("kind", KINDS)
def test_admit_takes_whole_blocks_and_release_returns_them(kind: str) -> None:
    manager = manager_of(kind, 8)
    assert manager.admit(3, 9, reserve_tokens=12)
    assert manager.length(3) == 9 and len(manager.table(3)) == 3
    assert manager.live_blocks == 3 and manager.free_blocks == 5 and manager.blocks_allocated == 3
    assert not manager.admit(1, 24, reserve_tokens=24)
    assert manager.sequences().tolist() == [3]
    assert manager.admit(1, 20, reserve_tokens=20)
    assert manager.sequences().tolist() == [1, 3]
    manager.release(ints(3, 1))
    assert manager.live_blocks == 0 and manager.free_blocks == 8 and manager.blocks_allocated == 8
    manager.check()


def test_release_gives_back_in_table_order_or_as_told() -> None:
    manager = BlockManager("paged", 4, block_tokens=1)
    manager.admit(1, 2)  # 3 2
    manager.admit(2, 2)  # 1 0
    manager.release(ints(2, 1))  # 1 0 3 2, so the stack reads 2 3 0 1 from its top
    manager.admit(5, 4)
    assert manager.table(5).tolist() == [2, 3, 0, 1]
    manager.release(ints(5), ints(1, 3, 0, 2))  # 3 1 2 0
    manager.admit(6, 4)
    assert manager.table(6).tolist() == [0, 2, 1, 3]
    for bad in ([0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 4]):
        with pytest.raises(InvalidArgument, match="order"):
            manager.release(ints(6), ints(*bad))
    assert manager.length(6) == 4


def test_placement_counts_pairs_and_regions() -> None:
    manager = BlockManager("random", 12, block_tokens=1, blocks_per_region=4)
    manager.feed(ints(4, 5, 8, 3, 2))  # free lists: ..11 for 4, ..10 for 5, then ids 8, 3, 2 in place
    manager.admit(1, 5)
    assert manager.table(1).tolist() == [4, 5, 8, 3, 2]
    assert manager.placement(ints(1, 1)).tolist() == [[5, 1, 2, 3]] * 2
    assert manager.placement(ints()).shape == (0, 4)


def test_grow_takes_a_block_only_at_a_boundary() -> None:
    manager = BlockManager("paged", 6, block_tokens=4)
    manager.admit(1, 3)
    assert manager.grow(ints(1), ints(1)) == 1 and manager.table(1).tolist() == [5]
    assert manager.grow(ints(1), ints(1)) == 1 and manager.table(1).tolist() == [5, 4]
    assert manager.grow(ints(1, 1), ints(3, 9)) == 2 and manager.table(1).tolist() == [5, 4, 3, 2, 1]
    assert manager.length(1) == 17


def test_grow_stops_keeps_what_it_got_and_resumes() -> None:
    manager = BlockManager("paged", 4, block_tokens=2)
    for seq in (1, 2, 3):
        manager.admit(seq, 2)  # 3, 2, 1
    seqs, tokens = ints(1, 2, 3), ints(4, 1, 1)
    assert manager.grow(seqs, tokens) == 0
    assert manager.table(1).tolist() == [3, 0] and manager.length(1) == 2 and manager.live_blocks == 4
    manager.check()
    manager.release(ints(2))
    assert manager.grow(ints(1, 3), ints(4, 1)) == 1
    assert manager.table(1).tolist() == [3, 0, 2] and manager.length(1) == 6
    manager.release(ints(1))
    # what stands before the start is no longer looked at
    assert manager.grow(ints(1, 3), ints(-7, 1), 1) == 2
    assert manager.table(3).tolist() == [1, 2]
    manager.check()


def test_contiguous_keeps_span_and_scratch() -> None:
    manager = BlockManager("contiguous", 10, block_tokens=2)
    assert manager.admit(1, 3, reserve_tokens=7, scratch_blocks=2)
    assert manager.table(1).tolist() == [0, 1] and manager.free_blocks == 4
    assert manager.live_blocks == 4 and manager.blocks_allocated == 4  # two written, two scratch
    assert not manager.admit(2, 1, reserve_tokens=10)
    assert manager.admit(2, 1, reserve_tokens=8) and manager.table(2).tolist() == [6]
    assert manager.grow(ints(1), ints(5)) == 1 and manager.table(1).tolist() == [0, 1, 2, 3]
    assert manager.grow(ints(1), ints(1)) == 0  # blocks 4 and 5 are scratch
    assert manager.live_blocks == 7 and manager.blocks_allocated == 7
    manager.check()
    manager.release(ints(1))
    assert manager.free_blocks == 6 and manager.live_blocks == 1
    manager.check()


def test_contiguous_cannot_share() -> None:
    manager = BlockManager("contiguous", 10, block_tokens=2)
    manager.admit(1, 3, reserve_tokens=4)
    for call in (
        lambda: manager.fork(1, 2),
        lambda: manager.pin_prefix(0, 1),
        lambda: manager.admit(2, 3, prefix=0, reserve_tokens=3),
        lambda: manager.speculate(
            ints(1), ints(1), ints(0), width=1, depth=1, adopt="splice", separate=False
        ),
        lambda: manager.admit(2, 3, reserve_tokens=2),
    ):
        with pytest.raises(InvalidArgument):
            call()
    manager.check()


# ---- block manager: sharing ----


@pytest.mark.parametrize("kind", SHARING_KINDS)
def test_prefix_blocks_are_shared_and_stay(kind: str) -> None:
    manager = manager_of(kind, 8)
    assert manager.prefix_blocks(7) == 0
    assert manager.pin_prefix(7, 2) and manager.prefix_blocks(7) == 2
    assert manager.admit(1, 9, prefix=7) and manager.admit(2, 12, prefix=7)
    shared = manager.table(1)[:2].tolist()
    assert manager.table(2)[:2].tolist() == shared
    assert [manager.refcount(block) for block in shared] == [3, 3]
    assert manager.live_blocks == 4 and manager.blocks_allocated == 4
    assert not manager.admit(3, 28, prefix=7) and manager.refcount(shared[0]) == 3
    manager.release(ints(1, 2))
    assert [manager.refcount(block) for block in shared] == [1, 1] and manager.live_blocks == 2
    assert manager.admit(3, 8, prefix=7) and manager.table(3).tolist() == shared
    assert not manager.pin_prefix(8, 7) and manager.prefix_blocks(8) == 0
    manager.check()


def test_a_prefix_has_a_region_of_its_own() -> None:
    manager = BlockManager("pim-aware", 12, block_tokens=4, blocks_per_region=4)
    manager.pin_prefix(0, 2)
    manager.admit(1, 12, prefix=0)
    assert manager.table(1).tolist() == [0, 1, 4]
    manager.pin_prefix(1, 1)
    manager.admit(2, 8, prefix=1)  # no region is empty; regions 1 and 2 have three free ids each
    assert manager.table(2).tolist() == [8, 5]


def test_prefix_arguments() -> None:
    manager = BlockManager("paged", 8, block_tokens=4)
    manager.pin_prefix(0, 2)
    for call, named in (
        (lambda: manager.pin_prefix(0, 1), "key = 0"),
        (lambda: manager.pin_prefix(-1, 1), "key = -1"),
        (lambda: manager.admit(1, 9, prefix=3), "prefix = 3"),
        (lambda: manager.admit(1, 4, prefix=0), "tokens = 4"),
    ):
        with pytest.raises(InvalidArgument, match=named):
            call()
    assert manager.sequences().tolist() == [] and manager.live_blocks == 2


def test_fork_shares_and_growth_copies_on_write() -> None:
    manager = BlockManager("paged", 6, block_tokens=2)
    manager.admit(1, 3)  # 5 4
    manager.fork(1, 2)
    assert manager.table(2).tolist() == [5, 4] and manager.length(2) == 3 and manager.live_blocks == 2
    assert manager.grow(ints(2, 1), ints(2, 1)) == 2
    assert manager.table(2).tolist() == [5, 3, 2]  # the copy first, then the new block
    assert manager.table(1).tolist() == [5, 4]  # alone on it by then
    assert manager.cow_copies == 1 and manager.copies().tolist() == [[4, 3]]
    assert manager.copies().shape == (0, 2)
    assert [manager.refcount(block) for block in range(6)] == [0, 0, 1, 1, 1, 2]
    manager.release(ints(1))
    assert manager.refcount(5) == 1 and manager.refcount(4) == 0
    manager.check()


def test_growth_at_a_boundary_copies_nothing() -> None:
    manager = BlockManager("paged", 6, block_tokens=2)
    manager.admit(1, 4)
    manager.fork(1, 2)
    assert manager.grow(ints(1, 2), ints(1, 1)) == 2
    assert manager.cow_copies == 0 and manager.live_blocks == 4


def test_copy_on_write_waits_for_a_block() -> None:
    manager = BlockManager("paged", 3, block_tokens=2)
    manager.admit(1, 3)  # 2 1
    manager.fork(1, 2)
    manager.admit(3, 1)  # 0
    assert manager.grow(ints(1), ints(1)) == 0 and not manager.write(2, 2)
    assert manager.cow_copies == 0 and manager.table(1).tolist() == [2, 1] and manager.length(1) == 3
    manager.release(ints(3))
    assert manager.grow(ints(1), ints(1)) == 1
    assert manager.table(1).tolist() == [2, 0] and manager.cow_copies == 1
    manager.check()


def test_copy_on_write_is_done_once_when_growth_is_resumed() -> None:
    manager = BlockManager("paged", 4, block_tokens=2)
    manager.admit(1, 3)  # 3 2
    manager.fork(1, 2)
    manager.admit(3, 1)  # 1
    assert manager.grow(ints(1), ints(2)) == 0  # the copy takes the last block
    assert manager.table(1).tolist() == [3, 0] and manager.cow_copies == 1
    manager.release(ints(3))
    assert manager.grow(ints(1), ints(2)) == 1
    assert manager.table(1).tolist() == [3, 0, 1] and manager.cow_copies == 1


def test_write_makes_any_block_private() -> None:
    manager = BlockManager("paged", 6, block_tokens=2)
    manager.admit(1, 3)  # 5 4
    assert manager.write(1, 0) and manager.cow_copies == 0
    manager.fork(1, 2)
    assert manager.write(2, 1) and manager.table(2).tolist() == [3, 4]
    assert manager.write(1, 0) and manager.table(1).tolist() == [5, 4]
    assert manager.copies().tolist() == [[5, 3]]
    with pytest.raises(InvalidArgument, match="position = 3"):
        manager.write(1, 3)


@pytest.mark.parametrize("kind", SHARING_KINDS)
@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["admit", "grow", "fork", "write", "release"]),
            st.integers(0, 3),
            st.integers(0, 3),
            st.integers(1, 7),
        ),
        max_size=50,
    )
)
def test_an_engine_that_makes_the_copies_reads_what_it_wrote(
    kind: str, steps: list[tuple[str, int, int, int]]
) -> None:
    manager = manager_of(kind, 12, block_tokens=3, blocks_per_region=4)
    memory: dict[tuple[int, int], int] = {}
    written: dict[int, list[int]] = {}
    stamp = 0

    def copy_and_write(seq: int, first: int) -> None:
        for src, dst in manager.copies().tolist():
            memory.update({(dst, i): memory[src, i] for i in range(3) if (src, i) in memory})
        table = manager.table(seq).tolist()
        for position in range(first, len(written[seq])):
            memory[table[position // 3], position % 3] = written[seq][position]

    for what, seq, other, n in steps:
        stamp += 100
        if what == "admit" and seq not in written and manager.admit(seq, n):
            written[seq] = [stamp + i for i in range(n)]
            copy_and_write(seq, 0)
        elif what == "fork" and seq in written and other not in written:
            manager.fork(seq, other)
            written[other] = list(written[seq])
        elif what == "write" and seq in written:
            position = n % len(written[seq])
            if manager.write(seq, position):
                written[seq][position] = stamp
                copy_and_write(seq, position)
        elif what == "grow" and seq in written:
            while manager.grow(ints(seq), ints(n)) == 0:
                victim = next((v for v in written if v != seq), seq)
                copy_and_write(seq, len(written[seq]))
                manager.release(ints(victim))
                del written[victim]
                if victim == seq:
                    break
            else:
                written[seq] += [stamp + i for i in range(n)]
                copy_and_write(seq, len(written[seq]) - n)
        elif what == "release" and seq in written:
            manager.release(ints(seq))
            del written[seq]
        manager.check()
        for reader, tokens in written.items():
            table = manager.table(reader).tolist()
            assert [memory[table[i // 3], i % 3] for i in range(len(tokens))] == tokens


# ---- block manager: speculation ----


def speculate(
    manager: BlockManager, seqs: list[int], advances: list[int], picks: list[int], **options: Any
) -> Any:
    """A round of two branches that draft two tokens: at most three new ones."""
    options = {"width": 2, "depth": 2, "adopt": "splice", "separate": False, **options}
    done, advanced, stalls, copied = manager.speculate(ints(*seqs), ints(*advances), ints(*picks), **options)
    return done, advanced.tolist(), stalls, copied


def test_splice_replaces_the_partial_tail() -> None:
    manager = BlockManager("paged", 12, block_tokens=4)
    manager.admit(0, 6)  # 11 10, so r = 2 and the branches are 9 8 and 7 6
    assert speculate(manager, [0], [3], [1]) == (1, [3], 0, 4)
    assert manager.table(0).tolist() == [11, 7, 6] and manager.length(0) == 9
    assert manager.cow_copies == 1 and manager.blocks_allocated == 6 and manager.live_blocks == 3
    manager.admit(1, 16)
    assert manager.table(1).tolist() == [8, 9, 10, 5]  # the old tail went first, then branch 0 in order
    manager.check()


def test_splice_gives_the_rest_of_the_chosen_branch_before_the_others() -> None:
    manager = BlockManager("paged", 12, block_tokens=4)
    manager.admit(0, 6)  # 11 10; branches 9 8, 7 6, 5 4
    assert speculate(manager, [0], [1], [1], width=3) == (1, [1], 0, 6)
    assert manager.table(0).tolist() == [11, 7] and manager.length(0) == 7
    manager.admit(1, 24)
    assert manager.table(1).tolist() == [4, 5, 8, 9, 6, 10]


def test_splice_of_a_full_tail_copies_nothing() -> None:
    manager = BlockManager("paged", 12, block_tokens=4)
    manager.admit(0, 8)  # 11 10; branches of one block: 9, 8
    assert speculate(manager, [0], [3], [1]) == (1, [3], 0, 0)
    assert manager.table(0).tolist() == [11, 10, 8] and manager.length(0) == 11
    assert manager.cow_copies == 0


def test_splice_of_a_shared_tail_leaves_it_to_the_other() -> None:
    manager = BlockManager("paged", 12, block_tokens=4)
    manager.admit(0, 6)
    manager.fork(0, 1)
    speculate(manager, [0], [1], [0])
    assert manager.table(1).tolist() == [11, 10] and manager.refcount(10) == 1
    manager.check()


def test_copyback_grows_the_own_table_while_branches_are_held() -> None:
    manager = BlockManager("paged", 12, block_tokens=4)
    manager.admit(0, 6)  # 11 10; branches 9 8, 7 6; the growth takes 5
    assert speculate(manager, [0], [3], [1], adopt="copyback") == (1, [3], 0, 4 + 3)
    assert manager.table(0).tolist() == [11, 10, 5] and manager.length(0) == 9
    assert manager.cow_copies == 0 and manager.blocks_allocated == 7
    manager.admit(1, 16)
    assert manager.table(1).tolist() == [6, 7, 8, 9]
    manager.check()


def test_separate_branches_come_from_the_scratch_key() -> None:
    manager = BlockManager("pim-aware", 12, block_tokens=4, blocks_per_region=4)
    manager.admit(0, 4)  # block 0; branches of one block: 4, 5
    assert speculate(manager, [0], [1], [0], adopt="copyback", separate=True) == (1, [1], 0, 1)
    assert manager.table(0).tolist() == [0, 1]
    manager.admit(1, 4)  # region 1 is wholly free again, but still the scratch key's current one
    assert manager.table(1).tolist() == [4]
    assert speculate(manager, [1], [1], [1], separate=True) == (1, [1], 0, 0)
    assert manager.table(1).tolist() == [4, 6]
    manager.check()


def test_shared_branches_come_from_the_sequences_own_region() -> None:
    manager = BlockManager("pim-aware", 12, block_tokens=4, blocks_per_region=4)
    manager.admit(0, 4)
    speculate(manager, [0], [1], [1])
    assert manager.table(0).tolist() == [0, 2]


def test_a_round_serves_the_batch_in_order() -> None:
    manager = BlockManager("paged", 12, block_tokens=4)
    manager.admit(0, 4)  # 11
    manager.admit(1, 4)  # 10
    assert speculate(manager, [1, 0], [2, 1], [0, 0]) == (2, [2, 1], 0, 0)
    assert manager.table(1).tolist() == [10, 9] and manager.table(0).tolist() == [11, 8]
    assert speculate(manager, [1, 0], [1, 1], [0, 0], start=1)[:2] == (2, [0, 1])


@pytest.mark.parametrize("adopt", ["splice", "copyback"])
def test_too_few_blocks_for_all_branches_is_a_stall(adopt: str) -> None:
    manager = BlockManager("paged", 5, block_tokens=4)
    manager.admit(0, 6)  # 4 3; two branches would need four blocks, three are free
    assert speculate(manager, [0], [3], [0], adopt=adopt) == (1, [1], 1, 0)
    assert manager.length(0) == 7 and manager.table(0).tolist() == [4, 3] and manager.cow_copies == 0
    assert manager.blocks_allocated == 2


@pytest.mark.parametrize("adopt", ["splice", "copyback"])
def test_a_stalled_growth_without_a_block_resumes_without_a_second_check(adopt: str) -> None:
    manager = BlockManager("paged", 6, block_tokens=4)
    manager.admit(0, 8)  # 5 4
    manager.admit(1, 16)  # 3 2 1 0
    assert speculate(manager, [0], [3], [0], adopt=adopt) == (0, [0], 1, 0)
    manager.check()
    manager.release(ints(1))  # now there would be room for all branches
    assert speculate(manager, [0], [3], [0], adopt=adopt) == (1, [1], 0, 0)
    assert manager.table(0).tolist() == [5, 4, 0] and manager.length(0) == 9
    manager.check()


def test_copyback_out_of_blocks_holds_its_branches_and_resumes() -> None:
    manager = BlockManager("paged", 9, block_tokens=4)
    manager.admit(2, 4)  # 8
    manager.admit(1, 4)  # 7
    manager.admit(0, 6)  # 6 5
    manager.grow(ints(1), ints(1))  # 4; so the branches are 3 2 and 1 0
    options = {"adopt": "copyback"}
    assert speculate(manager, [0, 2], [3, 1], [1, 1], **options) == (0, [0, 0], 0, 4)
    assert manager.live_blocks == 9 and manager.length(0) == 6 and manager.refcount(0) == 1
    manager.check()
    assert speculate(manager, [0, 2], [3, 1], [1, 1], **options) == (0, [0, 0], 0, 0)
    manager.release(ints(1))  # 7 4
    assert speculate(manager, [0], [3], [1], **options) == (1, [3], 0, 3)
    assert manager.table(0).tolist() == [6, 5, 4] and manager.length(0) == 9
    manager.admit(1, 20)
    assert manager.table(1).tolist() == [0, 1, 2, 3, 7]
    manager.check()


def test_release_gives_pending_branches_back_first() -> None:
    manager = BlockManager("paged", 6, block_tokens=4)
    manager.admit(0, 6)  # 5 4; branches 3 2, 1 0
    assert speculate(manager, [0], [3], [0], adopt="copyback") == (0, [0], 0, 4)
    manager.release(ints(0))
    manager.check()
    manager.admit(1, 24)
    assert manager.table(1).tolist() == [4, 5, 0, 1, 2, 3]


def test_splice_waits_for_an_unfinished_growth() -> None:
    manager = BlockManager("paged", 3, block_tokens=4)
    manager.admit(0, 4)
    manager.admit(1, 4)
    assert manager.grow(ints(0), ints(9)) == 0
    with pytest.raises(InvalidArgument, match="seqs contains 0"):
        speculate(manager, [0], [1], [0])


@settings(deadline=None)
@given(
    st.sampled_from(["paged", "pim-aware", "random"]),
    st.sampled_from(["splice", "copyback"]),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(0, 1)), max_size=30),
)
def test_speculation_conserves_blocks(
    kind: str, adopt: str, separate: bool, turns: list[tuple[int, int, int]]
) -> None:
    manager = manager_of(kind, 16, block_tokens=3, blocks_per_region=4)
    for seq, advance, pick in turns:
        if seq not in manager.sequences():
            manager.admit(seq, 2 + advance)
        else:
            before = manager.length(seq)
            while True:
                done, advanced, stalls, _ = speculate(
                    manager, [seq], [advance], [pick], adopt=adopt, separate=separate
                )
                manager.check()
                if done == 1:
                    assert manager.length(seq) - before == advanced[0]
                    assert len(manager.table(seq)) == -(-manager.length(seq) // 3)
                    assert advanced[0] == (1 if stalls else advanced[0]) <= advance
                    break
                victim = next((int(v) for v in manager.sequences() if v != seq), seq)
                manager.release(ints(victim))
                manager.check()
                if victim == seq:
                    break
        manager.check()


# ---- block manager: errors ----


@pytest.mark.parametrize("kind", SHARING_KINDS)
def test_a_failed_call_changes_nothing(kind: str) -> None:
    manager = manager_of(kind, 12, blocks_per_region=4)
    manager.admit(1, 6)
    manager.admit(2, 3)
    options = {"width": 2, "depth": 2, "adopt": "splice", "separate": False}

    def state() -> Any:
        tables = [
            (seq, manager.length(seq), manager.table(seq).tolist()) for seq in manager.sequences().tolist()
        ]
        return tables, manager.free_blocks, manager.live_blocks, manager.blocks_allocated, manager.cow_copies

    before = state()
    for error, call in (
        (DuplicateSequence, lambda: manager.admit(1, 2)),
        (InvalidArgument, lambda: manager.admit(5, 0)),
        (InvalidArgument, lambda: manager.admit(2**32, 1)),
        (InvalidArgument, lambda: manager.admit(-1, 1)),
        (InvalidArgument, lambda: manager.admit(5, 1, scratch_blocks=-1)),
        (InvalidArgument, lambda: manager.pin_prefix(0, -1)),
        (UnknownSequence, lambda: manager.grow(ints(1, 7), ints(9, 1))),
        (InvalidArgument, lambda: manager.grow(ints(1, 2), ints(9, 0))),
        (InvalidArgument, lambda: manager.grow(ints(1, 2), ints(9))),
        (InvalidArgument, lambda: manager.grow(ints(1, 2), ints(9, 1), 3)),
        (InvalidArgument, lambda: manager.grow(np.array([1.5]), ints(1))),
        (InvalidArgument, lambda: manager.grow(ints(1, 2).reshape(1, 2), ints(9, 1))),
        (UnknownSequence, lambda: manager.release(ints(1, 7))),
        (UnknownSequence, lambda: manager.release(ints(1, 1))),
        (UnknownSequence, lambda: manager.fork(7, 8)),
        (DuplicateSequence, lambda: manager.fork(1, 2)),
        (UnknownSequence, lambda: manager.write(7, 0)),
        (InvalidArgument, lambda: manager.write(1, -1)),
        (UnknownSequence, lambda: manager.length(7)),
        (UnknownSequence, lambda: manager.table(7)),
        (UnknownSequence, lambda: manager.placement(ints(7))),
        (ForeignBlock, lambda: manager.refcount(12)),
        (UnknownSequence, lambda: manager.speculate(ints(1, 7), ints(1, 1), ints(0, 0), **options)),
        (InvalidArgument, lambda: manager.speculate(ints(1, 2), ints(1, 4), ints(0, 0), **options)),
        (InvalidArgument, lambda: manager.speculate(ints(1, 2), ints(1, 1), ints(0, 2), **options)),
        (InvalidArgument, lambda: manager.speculate(ints(1), ints(1), ints(0), **(options | {"width": 0}))),
        (InvalidArgument, lambda: manager.speculate(ints(1), ints(1), ints(0), **(options | {"adopt": "?"}))),
    ):
        with pytest.raises(error):
            call()
        assert state() == before
        manager.check()


def test_random_managers_undo_what_a_missing_index_broke_off() -> None:
    manager = BlockManager("random", 12, block_tokens=4)
    manager.feed(ints(0, 0, 0))
    manager.admit(1, 6)
    manager.admit(2, 3)
    for call in (
        lambda: manager.admit(3, 1),
        lambda: manager.pin_prefix(0, 1),
        lambda: manager.grow(ints(2, 2), ints(1, 1)),
        lambda: manager.speculate(
            ints(1), ints(1), ints(0), width=2, depth=2, adopt="splice", separate=False
        ),
    ):
        with pytest.raises(InvalidArgument, match="indices"):
            call()
        assert (manager.length(1), manager.length(2), manager.free_blocks) == (6, 3, 9)
        assert manager.blocks_allocated == 3 and manager.sequences().tolist() == [1, 2]
        manager.check()
    manager.feed(ints(0))
    assert manager.grow(ints(2, 2), ints(1, 1)) == 2


def test_manager_check_finds_what_was_broken() -> None:
    def broken(damage: Any, kind: str = "paged") -> None:
        manager = manager_of(kind, 8)
        manager.admit(1, 6, reserve_tokens=6)
        manager.check()
        damage(manager)
        with pytest.raises(BrokenInvariant):
            manager.check()

    broken(lambda m: m._references.update([7]))
    broken(lambda m: m._sequences[1].blocks.pop())
    broken(lambda m: m._policy.in_use.clear())
    broken(lambda m: m._policy.take(1))
    broken(lambda m: setattr(m._sequences[1], "length", 99))
    broken(lambda m: m._sequences[1].blocks.reverse(), "contiguous")
    broken(lambda m: setattr(m._sequences[1], "scratch", 1), "contiguous")
    broken(lambda m: m._policy.spans.clear(), "contiguous")


def test_every_error_is_one_of_pimkv() -> None:
    with pytest.raises(PimkvError):
        BlockManager("paged", 4, block_tokens=0)
    with pytest.raises(ValueError, match="block_tokens = 0"):
        BlockManager("paged", 4, block_tokens=0)


# ---- scorer ----


def score_stream(stream: str, window: int) -> tuple[int, int, int]:
    """(commands, hits, bursts) of bursts written as `row.bank`, at column 0."""
    places = [burst.split(".") for burst in stream.replace("|", " ").split()]
    rows, banks = ints(*(int(r) for r, _ in places)), ints(*(int(b) for _, b in places))
    table = ONE_CHANNEL.encode(np.zeros_like(rows), banks, rows, np.zeros_like(rows)).tolist()
    scorer = Scorer(ONE_CHANNEL, block_bytes=32, token_bytes=32, window=window)
    return tuple(int(part[0]) for part in scorer.observe(Tables(table), ints(0))[:3])


@pytest.mark.parametrize(
    ("window", "stream", "commands", "hits"),
    [
        # one command takes one burst of each bank, whatever their order
        (4, "0.0 0.1 0.2 0.3", 1, 0),
        (4, "0.3 0.0 0.2 0.1", 1, 0),
        # a row needs as many commands as its fullest bank has bursts
        (4, "0.0 0.0 0.1 0.0", 3, 2),
        # interleaved rows are gathered within the window: one miss each
        (4, "0.0 1.0 0.1 1.1", 2, 0),
        (8, "0.0 1.0 0.0 1.0 2.1 0.3", 5, 2),
        # a short last window counts like a full one, and the row is carried into it
        (4, "0.0 0.1 0.2 0.3 | 0.0 0.1", 2, 1),
        (4, "0.0", 1, 0),
        # windows do not reach back: bank 3 would have fitted the first command
        (2, "0.0 0.1 | 0.2 0.3", 2, 1),
        # carried is the row of the window's last burst, wherever it then comes in the next window
        (2, "0.0 1.0 | 0.1 1.1", 4, 1),
        (2, "0.0 1.0 | 0.1 0.2", 3, 0),
        # not the row of most bursts, not the row with the last first burst
        (3, "0.0 0.1 1.0 | 0.2 0.3", 3, 0),
        (3, "0.0 1.0 0.1 | 0.2 0.3", 3, 1),
        # the carried row saves one miss only once
        (1, "0.0 | 1.0 | 0.0", 3, 0),
        (2, "0.0 0.0 | 0.0 0.0 | 1.0 0.0", 6, 4),
        # in order: closed by a repeated bank
        (0, "0.0 0.1 0.0", 2, 1),
        # closed by another row, for good
        (0, "0.0 1.1 0.2", 3, 0),
        (0, "0.0 1.0 0.1 1.1", 4, 0),
        # closed when full
        (0, "0.0 0.1 0.2 0.3 0.0 0.1", 2, 1),
        # a hit has the row of the command before it
        (0, "0.0 0.0 1.0 1.0 0.0", 5, 2),
        (0, "0.3", 1, 0),
    ],
)
def test_grouper_by_hand(window: int, stream: str, commands: int, hits: int) -> None:
    bursts = len(stream.replace("|", " ").split())
    assert score_stream(stream, window) == (commands, hits, bursts)


def test_every_sequence_starts_cold_and_totals_add_up() -> None:
    scorer = Scorer(ONE_CHANNEL, block_bytes=32, token_bytes=32, window=4)
    assert scorer.totals() == (0, 0, 0)
    tables = Tables([0], [0, 1, 2])
    commands, hits, bursts, cycles, visits = scorer.observe(tables, ints(1, 0, 0))
    assert (commands.tolist(), hits.tolist(), bursts.tolist()) == ([3, 1, 1], [2, 0, 0], [3, 1, 1])
    assert cycles.tolist() == visits.tolist() == [0, 0, 0]
    assert scorer.totals() == (5, 2, 5)
    scorer.forget(ints(0, 77))
    scorer.observe(tables, ints())
    scorer.observe(tables, ints(0))
    assert scorer.totals() == (6, 2, 6)


@pytest.mark.parametrize("window", [64, 0, 96, 1])
def test_perfect_placement_misses_once_per_row(window: int) -> None:
    address_map = AddressMap(HOST_CACHELINE, **HBM3)
    scorer = Scorer(address_map, block_bytes=BLOCK, token_bytes=TOKEN, window=window)
    manager = BlockManager("pim-aware", 64, block_tokens=16, blocks_per_region=8)
    manager.admit(0, 5 * 128)
    commands, hits, bursts = (int(part[0]) for part in scorer.observe(manager, ints(0))[:3])
    assert bursts == 5 * 128 * 128
    assert commands - hits == 5 * 32  # one row in each of 32 channels per region
    if window == 64:
        assert bursts == 16 * commands and 32 * hits == 31 * commands


def test_a_block_that_moves_to_another_row_costs_a_miss_per_channel() -> None:
    address_map = AddressMap(HOST_CACHELINE, **HBM3)
    scorer = Scorer(address_map, block_bytes=BLOCK, token_bytes=TOKEN, window=64)
    tables = Tables([0, 1, 2, 3], [0, 8, 1, 9], [3, 1, 0, 2], block_tokens=16)
    commands, hits, *_ = scorer.observe(tables, ints(0, 1, 2))
    assert commands.tolist() == [32 * 16] * 3
    assert (commands - hits).tolist() == [32, 4 * 32, 32]


def score_by_the_rules(
    address_map: AddressMap, tables: Tables, seq: int, token_bursts: int, window: int
) -> tuple[int, int, int]:
    """One channel after the other, one burst after the other: nothing shared, nothing remembered."""
    streams: dict[int, list[tuple[int, int]]] = {}
    for token in range(tables.length(seq)):
        block, place = int(tables.table(seq)[token // tables.block_tokens]), token % tables.block_tokens
        first = (block * tables.block_tokens + place) * token_bursts
        channel, bank, row, _ = address_map.decode(np.arange(first, first + token_bursts))
        for c, r, b in zip(channel.tolist(), row.tolist(), bank.tolist(), strict=True):
            streams.setdefault(c, []).append((r, b))
    commands = hits = 0
    for stream in streams.values():
        if window == 0:
            open_row, banks, previous = -1, set(), -1
            for r, b in [*stream, (-2, 0)]:
                if banks and (r != open_row or b in banks):
                    commands, hits, previous = commands + 1, hits + (open_row == previous), open_row
                    banks = set()
                open_row, banks = r, banks | {b}
        else:
            carried = -1
            for start in range(0, len(stream), window):
                piece = stream[start : start + window]
                for r in {row for row, _ in piece}:
                    needed = max(Counter(b for row, b in piece if row == r).values())
                    commands, hits = commands + needed, hits + needed - (r != carried)
                carried = piece[-1][0]
    return commands, hits, sum(len(stream) for stream in streams.values())


@settings(deadline=None)
@given(st.data(), address_maps(), st.sampled_from([0, 1, 2, 3, 5, 8, 64]))
def test_alike_channels_and_memos_change_nothing(data: Any, address_map: AddressMap, window: int) -> None:
    token_bursts = data.draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]))
    block_tokens = data.draw(st.integers(1, 4))
    blocks = address_map.bursts // (token_bursts * block_tokens)
    if blocks == 0:
        return
    # no block twice: the limit reads as many blocks as the table has
    table = data.draw(st.lists(st.integers(0, blocks - 1), min_size=1, max_size=6, unique=True))
    missing = data.draw(st.integers(0, block_tokens - 1))
    tables = Tables(table, block_tokens=block_tokens, missing=missing)
    scorer = Scorer(
        address_map,
        block_bytes=32 * token_bursts * block_tokens,
        token_bytes=32 * token_bursts,
        window=window,
    )
    expected = score_by_the_rules(address_map, tables, 0, token_bursts, window)
    for _ in range(2):  # the second time from the memos
        assert tuple(int(part[0]) for part in scorer.observe(tables, ints(0))[:3]) == expected


@pytest.mark.parametrize(
    "spec", [HOST_CACHELINE, "ch:5 row:14 col:5 bg:2 ba:2", "row:14 bg:2 ba:2 ch:5 col:5"]
)
@pytest.mark.parametrize("hashed", ["", "; ch^row:0", "; ba^row:2 ch^row:1"])
@pytest.mark.parametrize(("token_bursts", "block_tokens"), [(128, 16), (36, 16), (16, 384), (4, 3)])
@pytest.mark.parametrize("window", [64, 0])
def test_one_channel_stands_for_all_on_the_published_dram(
    spec: str, hashed: str, token_bursts: int, block_tokens: int, window: int
) -> None:
    address_map = AddressMap(spec + hashed, **HBM3)
    tables = Tables([5, 2, 3], block_tokens=block_tokens, missing=1)
    scorer = Scorer(
        address_map,
        block_bytes=32 * token_bursts * block_tokens,
        token_bytes=32 * token_bursts,
        window=window,
    )
    got = tuple(int(part[0]) for part in scorer.observe(tables, ints(0))[:3])
    assert got == score_by_the_rules(address_map, tables, 0, token_bursts, window)


def test_blocks_of_three_regions() -> None:
    address_map = AddressMap(HOST_CACHELINE, **HBM3)
    # 384 tokens of 4 KiB fill three regions: three rows per channel and block
    scorer = Scorer(address_map, block_bytes=384 * TOKEN, token_bytes=TOKEN, window=64)
    commands, hits, bursts, *_ = scorer.observe(Tables([7, 2], block_tokens=384), ints(0))
    assert bursts.tolist() == [2 * 384 * 128] and commands.tolist() == [2 * 384 * 8]
    assert (commands - hits).tolist() == [2 * 3 * 32]


@pytest.mark.parametrize(
    ("spec", "token_bursts", "channels", "alike"),
    [
        (HOST_CACHELINE, 128, 1, 32),
        (HOST_CACHELINE, 36, 16, 2),  # 4 divides 36: only the lowest channel bit lies inside
        (HOST_CACHELINE, 16, 4, 8),
        (HOST_CACHELINE + "; ch^row:0", 128, 1, 32),
        ("ch:5 row:14 col:5 bg:2 ba:2", 128, 32, 1),
        ("col:5 bg:2 ba:2 ch:5 row:14", 2**19, 1, 32),
        ("col:5 bg:2 ba:2 ch:5 row:14; ch^row:0", 2**19, 32, 1),  # rows change between the halves
    ],
)
def test_which_channels_are_alike(spec: str, token_bursts: int, channels: int, alike: int) -> None:
    stand_ins = representatives(AddressMap(spec, **HBM3), token_bursts)
    assert len(stand_ins) == 32
    assert sorted(Counter(stand_ins).values()) == [alike] * channels
    assert all(stand_ins[channel] == channel for channel in stand_ins)


def test_scorer_arguments() -> None:
    address_map = AddressMap(HOST_CACHELINE, **HBM3)
    for sizes, named in (
        ({"token_bytes": 48}, "token_bytes = 48"),
        ({"token_bytes": 0}, "token_bytes = 0"),
        ({"block_bytes": TOKEN + 32}, "block_bytes = 4128"),
        ({"window": -1}, "window = -1"),
    ):
        with pytest.raises(InvalidArgument, match=named):
            Scorer(address_map, **({"block_bytes": BLOCK, "token_bytes": TOKEN, "window": 64} | sizes))
    manager = BlockManager("paged", 200_000, block_tokens=16)
    manager.admit(0, 1)
    scorer = Scorer(address_map, block_bytes=BLOCK, token_bytes=TOKEN, window=64)
    with pytest.raises(InvalidArgument, match="bursts contains"):  # block 199,999 lies beyond 8 GiB
        scorer.observe(manager, ints(0))
    with pytest.raises(UnknownSequence):
        scorer.observe(manager, ints(4))
    assert scorer.totals() == (0, 0, 0)
