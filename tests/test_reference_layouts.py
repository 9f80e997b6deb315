"""Does the reference scorer read and write what a layout says, pass by pass, and does trimming drop no more?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scorer_inputs import HBM3, HOST_CACHELINE, ONE_CHANNEL, Tables, address_maps, ints
from scorer_rules import TIMING, controller, time_streams

from pimkv.errors import InvalidArgument, UnknownSequence
from pimkv.reference import AddressMap, BlockManager, Scorer

Passes = list[list[tuple[int, int, int, int, int]]]

HOST = AddressMap(HOST_CACHELINE, **HBM3)
REGION = 2**19  # bytes of one row in all banks and channels of HOST
BEHIND = 2**31  # where a second tensor starts


def scorer_of(passes: Passes | None, *, token: int, block_tokens: int = 16, **options: Any) -> Scorer:
    """A scorer on the published DRAM and map; tokens of so many bytes."""
    return Scorer(
        HOST,
        **(
            {"block_bytes": token * block_tokens, "token_bytes": token, "window": 64, "passes": passes}
            | options
        ),
    )


def halves(layout: str, token: int) -> Passes:
    """The K pass and the V pass over blocks of 16 tokens of so many bytes, K and V together."""
    half, block = token // 2, 16 * token
    unit = max(REGION, block)
    if layout == "merged-token":
        return [[(base, token, half, block, unit)] for base in (0, half)]
    if layout == "merged-block":
        return [[(base, half, half, block, unit)] for base in (0, block // 2)]
    return [[(base, half, half, block // 2, max(REGION, block // 2))] for base in (0, BEHIND)]


def blocks_per_unit(layout: str, token: int) -> int:
    return max(1, REGION // (8 * token if layout == "split" else 16 * token))


def whole_units(passes: Passes, per_unit: int, **options: Any) -> list[tuple[int, int, int, int, int]]:
    """The pass totals of a sequence that fills four units."""
    scorer = scorer_of(passes, blocks_per_unit=per_unit, **options)
    tables = Tables(list(range(4 * per_unit)), block_tokens=16)
    scorer.observe(tables, ints(0))  # type: ignore[arg-type]
    return scorer.pass_totals()


# ---- layouts by hand ----


@pytest.mark.parametrize(
    ("layout", "kv_heads", "m2", "m1"),
    [
        ("merged-token", 8, 0.5, 0.96875),
        ("merged-token", 32, 0.5, 0.96875),
        # M2 hides that K and V lie in half the channels each, of which a row then has 32 commands, not 16
        ("merged-token", 4, 1.0, 0.96875),
        ("merged-token", 1, 1.0, 0.96875),
        ("merged-block", 8, 1.0, 0.9375),
        ("merged-block", 32, 1.0, 0.9375),
        ("merged-block", 4, 0.5, 0.96875),
        ("merged-block", 1, 0.5, 0.96875),
        ("split", 8, 1.0, 0.96875),
        ("split", 32, 1.0, 0.96875),
        ("split", 4, 1.0, 0.96875),
        ("split", 1, 1.0, 0.96875),
    ],
)
def test_the_passes_of_layouts_on_the_host_map(layout: str, kv_heads: int, m2: float, m1: float) -> None:
    """M1 and M2 of either pass of DESIGN's table, as the map alone gives them: 16 banks, 128 fp16 a head."""
    token = 2 * kv_heads * 128 * 2
    for commands, hits, bursts, _, _ in whole_units(
        halves(layout, token), blocks_per_unit(layout, token), token=token
    ):
        assert bursts / (16 * commands) == m2
        assert hits / commands == m1


def test_a_merged_token_is_swept_twice_at_half_the_pace() -> None:
    """Eight KV heads: K of a token is bank 2t of every channel and V is bank 2t + 1, so that a window of 64
    bursts is 32 tokens on 8 banks: 8 commands of 8 banks where one pass has 4 of 16 for 16 tokens."""
    one = scorer_of(None, token=4096, controller=controller(), per_command=2)
    two = scorer_of(
        halves("merged-token", 4096), token=4096, blocks_per_unit=8, controller=controller(), per_command=2
    )
    tables = Tables(list(range(16)), block_tokens=16)
    whole = [int(part[0]) for part in one.observe(tables, ints(0))]  # type: ignore[arg-type]
    both = [int(part[0]) for part in two.observe(tables, ints(0))]  # type: ignore[arg-type]
    # two regions: 32 commands a row and channel in one pass, 32 in each of two
    assert whole[:3] == [32 * 64, 32 * 62, 256 * 128]
    assert both[:3] == [2 * 32 * 64, 2 * 32 * 62, 256 * 128]
    # a lane is a pair of channels, closed when a pass begins
    sweep = 1 + 19 + 6 * 63 + 40
    assert (whole[3:], both[3:]) == ([sweep, 16 * 2], [2 * sweep, 2 * 16 * 2])
    assert two.pass_totals() == [(2048, 1984, 256 * 64, sweep, 32)] * 2
    assert two.totals() == tuple(both[:3]) and two.timed_totals() == (both[3], 0, both[4])
    assert two.limit_totals() == (both[0], both[1], both[3])


def test_one_pass_over_parts_is_the_whole_token() -> None:
    """K then V of each token in one pass are the bursts of the token; K and V apart are another stream."""
    tables = Tables([3, 9, 4], block_tokens=16, missing=5)
    in_order: dict[str, Any] = {"token": 4096, "window": 0, "controller": controller()}
    whole = scorer_of(None, **in_order).observe(tables, ints(0))  # type: ignore[arg-type]
    # each bank twice in a row: a command takes the second burst of one and the first of the next
    assert (whole[0], whole[0] - whole[1]) == (32 * (33 + 33 + 23), 32 * 3)
    [k], [v] = halves("merged-token", 4096)
    parts = scorer_of([[k, v]], blocks_per_unit=8, **in_order)
    assert np.array_equal(whole, parts.observe(tables, ints(0)))  # type: ignore[arg-type]
    # K of a token and its V lie in one bank: each four times in a row
    [k], [v] = halves("merged-block", 4096)
    apart = scorer_of([[k, v]], blocks_per_unit=8, **in_order)
    commands, hits, bursts, _, _ = apart.observe(tables, ints(0))  # type: ignore[arg-type]
    assert (commands, commands - hits, bursts) == (32 * (49 + 49 + 34), 32 * 3, whole[2])


def test_without_passes_blocks_per_unit_means_nothing() -> None:
    tables = Tables([3, 9, 4], block_tokens=16, missing=5)
    scores = [
        scorer_of(None, token=4096, blocks_per_unit=n).observe(tables, ints(0))  # type: ignore[arg-type]
        for n in (1, 8)
    ]
    assert np.array_equal(*scores)


def test_a_padded_region_keeps_blocks_within_rows() -> None:
    """Phi-4's blocks of 80 KiB: six of the 6.4 that a region holds, its rest empty."""
    passes = [[(0, 5120, 5120, 81920, REGION)]]
    scorer = scorer_of(passes, token=5120, blocks_per_unit=6)
    for table, rows in ([5, 0, 3], 1), ([5, 6], 2), (list(range(12)), 2), ([0, 6, 12, 18, 24], 5):
        commands, hits, bursts, *_ = scorer.observe(Tables(table, block_tokens=16), ints(0))  # type: ignore[arg-type]
        assert (commands - hits, bursts) == (32 * rows, len(table) * 16 * 160)
    # unpadded the seventh block would straddle two rows
    straddling = scorer_of(None, token=5120)
    commands, hits, *_ = straddling.observe(Tables([6], block_tokens=16), ints(0))  # type: ignore[arg-type]
    assert commands - hits == 64


def test_a_span_of_rows_is_filled_by_whole_blocks() -> None:
    """Phi-3's blocks of 192 KiB: eight fill three rows, the third of them lies in two."""
    passes = [[(0, 12288, 12288, 196608, 3 * REGION)]]
    scorer = scorer_of(passes, token=12288, blocks_per_unit=8)
    for table, rows in (list(range(8)), 3), (list(range(16)), 6), ([0, 1], 1), ([2], 2), ([10], 2), ([8], 1):
        commands, hits, *_ = scorer.observe(Tables(table, block_tokens=16), ints(0))  # type: ignore[arg-type]
        assert commands - hits == 32 * rows


def test_a_latent_stream_is_read_twice_and_stored_once() -> None:
    """MLA: 576 elements for scores, the first 512 of them again for values; 28 blocks a padded region."""
    passes = [[(0, 1152, 1152, 18432, REGION)], [(0, 1152, 1024, 18432, REGION)]]
    scorer = scorer_of(passes, token=1152, blocks_per_unit=28, count_writes=True)
    manager = BlockManager("pim-aware", 56, block_tokens=16, blocks_per_region=28)
    manager.admit(0, 28 * 16)
    scorer.observe(manager, ints(0))
    assert [(bursts, commands - hits) for commands, hits, bursts, _, _ in scorer.pass_totals()] == [
        (448 * 36, 32),
        (448 * 32, 32),
    ]
    assert scorer.write_totals()[:2] == (448, 448 * 36)


# ---- windows of tokens, order of blocks ----


@pytest.mark.parametrize(
    ("length", "window", "by_token", "by_row"),
    [
        (15, 0, [(9, 0, 4), (5, 0, 4), (2, 0, 4), (7, 0, 3)], [(2, 0, 4), (5, 0, 4), (9, 0, 4), (7, 0, 3)]),
        (15, 10, [(5, 1, 4), (2, 0, 4), (7, 0, 3)], [(2, 0, 4), (5, 1, 4), (7, 0, 3)]),
        (15, 11, [(5, 0, 4), (2, 0, 4), (7, 0, 3)], [(2, 0, 4), (5, 0, 4), (7, 0, 3)]),
        (15, 3, [(7, 0, 3)], [(7, 0, 3)]),
        (15, 2, [(7, 1, 3)], [(7, 1, 3)]),
        (16, 5, [(2, 3, 4), (7, 0, 4)], [(2, 3, 4), (7, 0, 4)]),
        (15, 15, [(9, 0, 4), (5, 0, 4), (2, 0, 4), (7, 0, 3)], [(2, 0, 4), (5, 0, 4), (9, 0, 4), (7, 0, 3)]),
        (15, 99, [(9, 0, 4), (5, 0, 4), (2, 0, 4), (7, 0, 3)], [(2, 0, 4), (5, 0, 4), (9, 0, 4), (7, 0, 3)]),
        # blocks that a waiting growth holds are not read, whatever their ids
        (8, 0, [(9, 0, 4), (5, 0, 4)], [(9, 0, 4), (5, 0, 4)]),
        (9, 6, [(9, 3, 4), (5, 0, 4), (2, 0, 1)], [(5, 0, 4), (9, 3, 4), (2, 0, 1)]),
    ],
)
def test_what_is_read_of_each_block(
    length: int, window: int, by_token: list[tuple[int, int, int]], by_row: list[tuple[int, int, int]]
) -> None:
    passes: Passes = [[(0, 32, 32, 128, 384)]]
    for traversal, per_unit, expected in ("token", 3, by_token), ("row", 1, by_row):
        scorer = scorer_of(
            passes,
            token=32,
            block_tokens=4,
            blocks_per_unit=per_unit,
            window_tokens=window,
            traversal=traversal,
        )
        assert scorer._reads(length, [9, 5, 2, 7]) == expected


def test_row_order_meets_each_row_once() -> None:
    """A block is a burst here, sixteen to a row; one burst per command."""
    tables = Tables([0, 16, 4, 32, 20, 8])
    rows: Passes = [[(0, 32, 32, 32, 16 * 32)]]
    for traversal, passes, misses in (
        ("token", None, 6),
        ("row", None, 4),  # 0 4 16 20 32 8
        ("row", rows, 3),  # 16 20 32 0 4 8: the unit of the last block is not met twice
        ("token", rows, 6),
    ):
        scorer = Scorer(
            ONE_CHANNEL,
            block_bytes=32,
            token_bytes=32,
            window=1,
            passes=passes,
            blocks_per_unit=16,
            traversal=traversal,
        )
        commands, hits, *_ = scorer.observe(tables, ints(0))  # type: ignore[arg-type]
        assert (commands, commands - hits) == (6, misses)


@given(data=st.data(), address_map=address_maps(), window=st.sampled_from([0, 1, 3, 64]))
def test_traversal_changes_no_burst(data: st.DataObject, address_map: AddressMap, window: int) -> None:
    blocks = address_map.bursts // 2
    ids = data.draw(st.lists(st.integers(0, blocks - 1), min_size=1, max_size=8, unique=True))
    seen = data.draw(st.integers(0, 2 * len(ids)))
    tables = Tables(ids, block_tokens=2, missing=data.draw(st.integers(0, 1)))
    by_token, by_row, in_order = (
        Scorer(
            address_map,
            block_bytes=64,
            token_bytes=32,
            window=window,
            window_tokens=seen,
            traversal=traversal,
            controller=controller(),
        ).observe(Tables(table, block_tokens=2, missing=tables.missing), ints(0))  # type: ignore[arg-type]
        for traversal, table in (
            ("token", ids),
            ("row", ids),
            # where the window cuts no block, the row order is a table's own order
            ("token", [*sorted(ids[:-1]), ids[-1]]),
        )
    )
    read = min(tables.length(0), seen) if seen else tables.length(0)
    assert by_token[2] == by_row[2] == read
    if not seen:
        assert np.array_equal(by_row, in_order)


def test_a_window_of_tokens_stops_growing() -> None:
    scorer = scorer_of(None, token=4096, window_tokens=128, controller=controller())
    manager = BlockManager("pim-aware", 64, block_tokens=16, blocks_per_region=8)
    manager.admit(0, 128)
    whole = [int(part[0]) for part in scorer.observe(manager, ints(0))]
    limit = scorer.limit_totals()
    assert limit == (whole[0], whole[1], whole[3])
    manager.grow(ints(0), ints(256))
    assert [int(part[0]) for part in scorer.observe(manager, ints(0))] == whole  # a region again
    manager.grow(ints(0), ints(32))
    commands, hits, bursts, *_ = scorer.observe(manager, ints(0))
    assert (commands - hits, bursts) == (2 * 32, 128 * 128)
    # the limit is the window from the start of block 0, however long the sequence
    assert scorer.limit_totals() == tuple(3 * part for part in limit)


# ---- every layout, by the rules ----


def streams_by_the_rules(
    address_map: AddressMap, parts: Iterable[tuple[int, ...]], per_unit: int, tokens: list[tuple[int, int]]
) -> list[list[tuple[int, int]]]:
    """The (row, bank) bursts of each channel of a pass over these (block, token of the block)."""
    streams: list[list[tuple[int, int]]] = [[] for _ in range(address_map.channels)]
    for block, token in tokens:
        for base, stride, size, block_bytes, unit in parts:
            byte = base + block // per_unit * unit + block % per_unit * block_bytes + token * stride
            channel, bank, row, _ = address_map.decode(np.arange(byte, byte + size, 32) // 32)
            for c, r, b in zip(channel.tolist(), row.tolist(), bank.tolist(), strict=True):
                streams[c].append((r, b))
    return streams


def tokens_by_the_rules(
    table: list[int], length: int, block_tokens: int, per_unit: int, window: int, traversal: str
) -> list[tuple[int, int]]:
    """The (block, token of the block) that are read, in order."""
    places = [(table[token // block_tokens], token % block_tokens) for token in range(length)]
    places = places[-window:]
    last = places[-1][0]
    if traversal == "row":
        of_last = last // per_unit
        # stable: the tokens of a block stay in order
        places.sort(key=lambda place: (place[0] == last, place[0] // per_unit == of_last, place[0]))
    return places


def part_in(unit: int) -> st.SearchStrategy[tuple[int, int, int, int, int]]:
    """Parts in multiples of so many bursts, so that some have channels that are alike."""
    size = st.integers(1, 8).map(lambda n: 32 * unit * n)
    base = st.integers(0, 8).map(lambda n: 32 * unit * n)
    return st.tuples(base, size, size, size, size)


@given(
    data=st.data(),
    address_map=address_maps(),
    window=st.sampled_from([0, 1, 2, 3, 5, 8, 64]),
    per_unit=st.integers(1, 4),
    traversal=st.sampled_from(["token", "row"]),
    per_pch=st.booleans(),
    per_command=st.integers(1, 2),
    repeat=st.integers(1, 2),
)
def test_passes_agree_with_the_rules(
    data: st.DataObject,
    address_map: AddressMap,
    window: int,
    per_unit: int,
    traversal: str,
    per_pch: bool,
    per_command: int,
    repeat: int,
) -> None:
    unit = data.draw(st.sampled_from([1, 2, 4, 8]))
    passes = data.draw(st.lists(st.lists(part_in(unit), min_size=1, max_size=2), min_size=1, max_size=2))
    block_tokens = data.draw(st.integers(1, 4))

    def fits(block: int) -> bool:
        last = max(
            base + block // per_unit * of + block % per_unit * step + (block_tokens - 1) * stride + size
            for parts in passes
            for base, stride, size, step, of in parts
        )
        return last <= 32 * address_map.bursts

    fitting = [block for block in range(40) if fits(block)]
    assume(fitting)
    ids = data.draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=5, unique=True))
    assume(all(block in fitting for block in range(len(ids))))
    tables = Tables(ids, block_tokens=block_tokens, missing=data.draw(st.integers(0, block_tokens - 1)))
    length = tables.length(0)
    seen = data.draw(st.integers(0, length + 1))
    scorer = Scorer(
        address_map,
        block_bytes=32 * block_tokens,
        token_bytes=32,
        window=window,
        controller=controller(queue=5, per_pch=per_pch),
        per_command=per_command,
        repeat=repeat,
        passes=passes,
        blocks_per_unit=per_unit,
        window_tokens=seen,
        traversal=traversal,
    )

    def by_the_rules(tokens: list[tuple[int, int]]) -> list[tuple[int, int, int, int, int]]:
        scores = []
        for parts in passes:
            streams = streams_by_the_rules(address_map, parts, per_unit, tokens)
            commands, misses, cycles, visits = time_streams(
                streams, window, TIMING, queue=5, per_pch=per_pch, per_command=per_command, repeat=repeat
            )
            scores.append((commands, commands - misses, sum(map(len, streams)), cycles, visits))
        return scores

    expected = by_the_rules(tokens_by_the_rules(ids, length, block_tokens, per_unit, seen, traversal))
    observed = scorer.observe(tables, ints(0))  # type: ignore[arg-type]
    assert scorer.pass_totals() == expected
    assert [int(part[0]) for part in observed] == [sum(of) for of in zip(*expected, strict=True)]
    commands, hits, bursts, cycles, visits = (sum(of) for of in zip(*expected, strict=True))
    assert scorer.totals() == (commands, hits, bursts) and scorer.timed_totals() == (cycles, 0, visits)

    shortest = list(range(len(ids)))
    best = by_the_rules(
        tokens_by_the_rules(shortest, min(length, seen or length), block_tokens, per_unit, 0, "token")
    )
    commands, hits, _, cycles, _ = (sum(of) for of in zip(*best, strict=True))
    assert scorer.limit_totals() == (commands, hits, cycles)


# ---- trimming ----


def test_trim_drops_blocks_that_the_window_does_not_need() -> None:
    manager = BlockManager("paged", 8, block_tokens=4)
    manager.admit(0, 15)  # 7 6 5 4
    assert manager.trim(ints(0), 12) == 0  # 11 tokens would be too few
    assert manager.trim(ints(0), 11) == 1
    assert (manager.table(0).tolist(), manager.length(0), manager.trimmed(0)) == ([6, 5, 4], 11, 4)
    assert (manager.free_blocks, manager.refcount(7)) == (5, 0)
    assert manager.trim(ints(0), 1) == 2
    assert (manager.table(0).tolist(), manager.length(0), manager.trimmed(0)) == ([4], 3, 12)
    assert manager.trim(ints(0), 1) == 0
    manager.grow(ints(0), ints(4))  # the block freed last
    assert (manager.table(0).tolist(), manager.length(0), manager.trimmed(0)) == ([4, 5], 7, 12)
    manager.check()


def test_trim_keeps_what_others_hold() -> None:
    manager = BlockManager("pim-aware", 16, block_tokens=4, blocks_per_region=4)
    manager.pin_prefix(1, 2)
    manager.admit(0, 20, prefix=1)
    manager.admit(1, 20, prefix=1)
    manager.fork(1, 2)
    assert manager.trim(ints(1, 0), 8) == 6
    assert [len(manager.table(seq)) for seq in (0, 1, 2)] == [2, 2, 5]
    # of the three blocks each dropped, two are the prefix's; the third of sequence 1 is held by its fork
    assert manager.free_blocks == 16 - 2 - 2 - 3
    assert manager.trim(ints(2), 8) == 3
    assert manager.free_blocks == 16 - 2 - 2 - 2
    manager.release(ints(0, 1, 2))
    assert manager.live_blocks == 2
    manager.check()


def test_what_trim_refuses() -> None:
    manager = BlockManager("paged", 6, block_tokens=4)
    for seq in (0, 1):
        manager.admit(seq, 8)
    for error, seqs, window, named in (
        (UnknownSequence, (0, 7), 1, "7"),
        (UnknownSequence, (0, 1, 0), 1, "0 twice"),
        (InvalidArgument, (0,), 0, "window = 0"),
    ):
        with pytest.raises(error, match=named):
            manager.trim(ints(*seqs), window)
    assert manager.grow(ints(1), ints(20)) == 0  # it got two blocks and waits for more
    with pytest.raises(InvalidArgument, match="contains 1: its growth waits"):
        manager.trim(ints(0, 1), 1)
    assert [len(manager.table(seq)) for seq in (0, 1)] == [2, 4]
    assert manager.trim(ints(0), 4) == 1
    assert manager.grow(ints(1), ints(20)) == 0  # one of three
    manager.release(ints(0))
    assert manager.grow(ints(1), ints(12)) == 1 and manager.trim(ints(1), 4) == 4

    manager.admit(2, 1)
    ask = {"width": 2, "depth": 3, "adopt": "copyback", "separate": False}
    manager.admit(3, 12)
    done, *_ = manager.speculate(ints(2), ints(4), ints(0), **ask)
    assert done == 1  # a stall has nothing to hold: it appended one token
    contiguous = BlockManager("contiguous", 8, block_tokens=4)
    contiguous.admit(0, 8, reserve_tokens=8)
    with pytest.raises(InvalidArgument, match="trim"):
        contiguous.trim(ints(0), 1)


def test_trim_refuses_a_turn_that_waits() -> None:
    manager = BlockManager("paged", 4, block_tokens=4)
    manager.admit(0, 8)
    ask = {"width": 2, "depth": 3, "adopt": "copyback", "separate": False}
    done, *_ = manager.speculate(ints(0), ints(4), ints(0), **ask)
    assert done == 0 and manager.free_blocks == 0  # the branches are held, none is left to grow into
    with pytest.raises(InvalidArgument, match="waits"):
        manager.trim(ints(0), 1)
    assert manager.length(0) == 8
    manager.check()


@given(
    kind=st.sampled_from(["paged", "pim-aware", "random"]),
    steps=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(1, 20)), max_size=30),
)
def test_trim_keeps_the_last_tokens(kind: str, steps: list[tuple[int, int, int]]) -> None:
    manager = BlockManager(kind, 64, block_tokens=4, blocks_per_region=4)
    if kind == "random":
        manager.feed(ints(*[0] * 400))
    tables: list[list[int]] = []  # every block that a sequence ever had, in order
    for seq in range(3):
        manager.admit(seq, 1)
        tables.append(manager.table(seq).tolist())
    for seq, tokens, window in steps:
        before = len(manager.table(seq))
        if manager.grow(ints(seq), ints(tokens)) == 0:
            break  # the pool is full
        tables[seq] += manager.table(seq).tolist()[before:]
        ever, length = manager.trimmed(seq) + manager.length(seq), manager.length(seq)
        dropped = manager.trim(ints(seq), window)
        assert manager.length(seq) == length - 4 * dropped == ever - manager.trimmed(seq)
        assert dropped == max(0, (length - window) // 4)
        assert manager.table(seq).tolist() == tables[seq][manager.trimmed(seq) // 4 :]
        manager.check()


# ---- writes ----


def test_what_a_sequence_inherits() -> None:
    manager = BlockManager("paged", 32, block_tokens=4)
    manager.pin_prefix(3, 2)
    manager.pin_prefix(4, 1)
    assert not manager.admit(9, 400, prefix=3)  # not admitted: not the first
    for seq, prefix in enumerate((3, 3, 4, 3, None)):
        manager.admit(seq, 10, prefix=prefix)
    assert [manager.inherited(seq) for seq in range(5)] == [0, 8, 0, 8, 0]
    manager.release(ints(0))
    manager.admit(0, 10, prefix=3)
    assert manager.inherited(0) == 8
    manager.admit(8, 7, prefix=3)  # ends within the prefix
    assert manager.inherited(8) == 7
    manager.grow(ints(1), ints(5))
    manager.trim(ints(1), 5)
    manager.fork(1, 6)
    assert [(manager.inherited(s), manager.trimmed(s), manager.length(s)) for s in (1, 6)] == [
        (8, 8, 7),
        (7, 0, 7),
    ]
    for ask in (manager.inherited, manager.trimmed):
        with pytest.raises(UnknownSequence):
            ask(77)


@pytest.mark.parametrize(
    ("layout", "block", "fifteen"),
    [
        # a block is 16 banks of 32 channels
        (None, 512, 512),
        # K of token t is bank 2t of every channel, V is bank 2t + 1
        ("merged-token", 512, 512),
        # here K of token t is bank t, and so is V
        ("merged-block", 1024, 960),
        ("split", 1024, 960),
    ],
)
def test_written_rows_by_hand(layout: str | None, block: int, fifteen: int) -> None:
    """Activations of tokens of a block written in one call, with eight KV heads: of one, of all 16, of 15."""
    token = 64  # two banks of 32 channels
    passes = halves(layout, 4096) if layout else None
    per_unit = blocks_per_unit(layout, 4096) if layout else 1
    scorer = scorer_of(passes, token=4096, blocks_per_unit=per_unit, count_writes=True)
    manager = BlockManager("paged", 32, block_tokens=16)
    manager.admit(0, 1)
    scorer.observe(manager, ints(0))
    assert scorer.write_totals() == (1, 128, token)
    scorer.observe(manager, ints(0, 0))
    assert scorer.write_totals() == (1, 128, token)
    manager.admit(1, 32)
    scorer.settle(manager, ints(1, 1, 0))
    assert scorer.write_totals() == (33, 33 * 128, token + 2 * block)
    manager.grow(ints(0), ints(16))  # 15 tokens of its first block, one of its second
    scorer.observe(manager, ints(1, 0))
    assert scorer.write_totals() == (49, 49 * 128, token + 2 * block + fifteen + token)


def test_writes_of_forks_prefixes_and_windows() -> None:
    scorer = scorer_of(None, token=32, block_tokens=4, count_writes=True, window_tokens=2)
    manager = BlockManager("paged", 64, block_tokens=4)
    manager.pin_prefix(0, 2)
    counted = 0

    def new() -> int:
        nonlocal counted
        before, counted = counted, scorer.write_totals()[0]
        assert scorer.write_totals()[1] == counted
        return counted - before

    manager.admit(0, 10, prefix=0)
    manager.admit(1, 10, prefix=0)
    scorer.observe(manager, ints(0))
    assert new() == 10
    scorer.observe(manager, ints(1))
    assert new() == 2
    manager.fork(1, 2)
    manager.grow(ints(2, 1), ints(3, 1))
    scorer.observe(manager, ints(1, 2))
    assert new() == 4
    # what is trimmed after it was seen is neither lost nor counted again
    manager.grow(ints(2), ints(6))
    scorer.settle(manager, ints(2))
    manager.trim(ints(2), 4)
    manager.grow(ints(2), ints(1))
    scorer.observe(manager, ints(2))
    assert new() == 7
    # what is trimmed before it was seen is gone
    manager.grow(ints(2), ints(20))
    manager.trim(ints(2), 5)
    scorer.observe(manager, ints(2))
    assert new() == manager.length(2) == 8
    # a sequence that comes back writes everything anew
    manager.grow(ints(1), ints(2))
    scorer.settle(manager, ints(1))
    manager.release(ints(1))
    scorer.forget(ints(1, 55))
    assert new() == 2
    manager.admit(1, 13)
    scorer.observe(manager, ints(1))
    assert new() == 13


def test_writes_are_counted_only_if_asked_for() -> None:
    scorer = scorer_of(None, token=4096)
    manager = BlockManager("paged", 8, block_tokens=16)
    manager.admit(0, 9)
    scorer.settle(manager, ints(0))
    scorer.observe(manager, ints(0))
    assert scorer.write_totals() == (0, 0, 0)
    with pytest.raises(UnknownSequence):
        scorer.settle(manager, ints(0, 5))


def test_a_refused_step_counts_no_write() -> None:
    passes: Passes = [[(0, 4096, 4096, 65536, 65536)], [(2**33 - 65536, 4096, 4096, 65536, 65536)]]
    scorer = scorer_of(passes, token=4096, count_writes=True)
    manager = BlockManager("paged", 4, block_tokens=16)
    manager.admit(0, 16)  # block 3: its second part lies outside
    for call in (scorer.settle, scorer.observe):
        with pytest.raises(InvalidArgument, match="bursts contains"):
            call(manager, ints(0))  # type: ignore[operator]
    with pytest.raises(UnknownSequence):
        scorer.settle(manager, ints(0, 5))
    assert scorer.write_totals() == scorer.totals() == (0, 0, 0)
    manager.admit(1, 48)
    manager.release(ints(0))
    manager.fork(1, 2)
    assert scorer.pass_totals() == [(0,) * 5] * 2


@given(
    data=st.data(),
    kind=st.sampled_from(["paged", "pim-aware"]),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["grow", "observe", "settle", "trim", "fork", "release"]), st.integers(0, 3)
        ),
        max_size=30,
    ),
)
def test_writes_agree_with_the_rules(data: st.DataObject, kind: str, steps: list[tuple[str, int]]) -> None:
    """Each token of each sequence is written once, unless it was there before, and found where it lies."""
    address_map = AddressMap(
        "row:6 col:1 bg:1 ba:1 ch:1 col:1; ba^row:1",
        channels=2,
        bank_groups=2,
        banks_per_group=2,
        rows=64,
        row_bytes=128,
        burst_bytes=32,
    )
    passes: Passes = [[(0, 64, 32, 320, 1024)], [(32, 64, 32, 320, 1024), (0, 64, 64, 320, 1024)]]
    scorer = Scorer(
        address_map,
        block_bytes=320,
        token_bytes=64,
        window=8,
        passes=passes,
        blocks_per_unit=3,
        count_writes=True,
    )
    manager = BlockManager(kind, 24, block_tokens=5, blocks_per_region=3)
    unseen: dict[int, list[int]] = {}  # of each sequence the tokens to be counted, as places in its table
    expected = [0, 0, 0]
    for step, seq in steps:
        if seq not in unseen:
            if manager.admit(seq, tokens := data.draw(st.integers(1, 12))):
                unseen[seq] = list(range(tokens))
            continue
        match step:
            case "grow":
                length, tokens = manager.length(seq), data.draw(st.integers(1, 7))
                if manager.free_blocks * 5 > tokens + 5:
                    manager.grow(ints(seq), ints(tokens))
                    unseen[seq] += range(length, length + tokens)
            case "trim":
                dropped = 5 * manager.trim(ints(seq), data.draw(st.integers(1, 12)))
                unseen[seq] = [place - dropped for place in unseen[seq] if place >= dropped]
            case "fork":
                child = max(unseen) + 4
                manager.fork(seq, child)
                unseen[child] = []
                manager.release(ints(seq))
                scorer.forget(ints(seq))
                unseen[seq] = unseen.pop(child)
                manager.fork(child, seq)
                manager.release(ints(child))
            case "release":
                manager.release(ints(seq))
                scorer.forget(ints(seq))
                del unseen[seq]
            case _:
                getattr(scorer, step)(manager, ints(seq))
                table = manager.table(seq).tolist()
                for base, size in ((0, 64), (32, 32)):
                    opened = set()
                    for place in unseen[seq]:
                        block = table[place // 5]
                        byte = base + block // 3 * 1024 + block % 3 * 320 + place % 5 * 64
                        for burst in range(byte // 32, (byte + size) // 32):
                            channel, bank, row, _ = (int(p[0]) for p in address_map.decode(ints(burst)))
                            opened.add((block, channel, bank, row))
                            expected[1] += 1
                    expected[2] += len(opened)
                expected[0] += len(unseen[seq])
                unseen[seq] = []
        assert scorer.write_totals() == tuple(expected)


# ---- arguments ----


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"passes": []}, r"passes = \[\]: must be a list of one pass or more"),
        ({"passes": 7}, "passes = 7"),
        ({"passes": [[]]}, r"passes\[0\] = \[\]"),
        ({"passes": [[(0, 32, 32, 64, 64)], [(0, 32, 32, 64)]]}, r"passes\[1\]\[0\] = \(0, 32, 32, 64\)"),
        ({"passes": [[(0, 48, 32, 64, 64)]]}, r"passes\[0\]\[0\] stride = 48: must be a multiple"),
        ({"passes": [[(16, 32, 32, 64, 64)]]}, r"passes\[0\]\[0\] base = 16"),
        ({"passes": [[(-32, 32, 32, 64, 64)]]}, "base = -32"),
        ({"passes": [[(0, 0, 32, 64, 64)]]}, "stride = 0"),
        ({"passes": [[(0, 32, 0, 64, 64)]]}, "bytes = 0"),
        ({"passes": [[(0, 32, 32, 65, 64)]]}, "block = 65"),
        ({"passes": [[(0, 32, 32, 64, 1.5)]]}, "unit = 1.5: must be an integer"),
        ({"blocks_per_unit": 0}, "blocks_per_unit = 0"),
        ({"window_tokens": -1}, "window_tokens = -1"),
        ({"traversal": "column"}, "traversal = 'column'"),
    ],
)
def test_what_a_layout_refuses(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        scorer_of(**({"passes": None, "token": 4096} | options))


def test_parts_outside_the_map_are_refused() -> None:
    tables = Tables([1], block_tokens=16, missing=8)
    inside: Passes = [[(2**33 - 2 * 65536, 4096, 4096, 65536, 65536)]]
    scorer_of(inside, token=4096).observe(tables, ints(0))  # type: ignore[arg-type]
    for part in (
        (2**33 - 65536 - 8 * 4096 + 32, 4096, 4096, 65536, 65536),  # its last burst
        (0, 4096, 4096, 65536, 2**62),  # numbers that int64 would wrap
        (2**62, 2**62, 2**62, 2**62, 2**62),
    ):
        with pytest.raises(InvalidArgument, match="bursts contains"):
            scorer_of([[part]], token=4096).observe(tables, ints(0))  # type: ignore[arg-type]
