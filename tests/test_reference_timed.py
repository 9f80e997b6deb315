"""Does the reference scorer put the right commands into each queue, and time them as the per-clock loop does?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attacc_data import needs_data, preset_name, rows_of, table
from hypothesis import assume, given
from hypothesis import strategies as st
from scorer_inputs import HBM3, HOST_CACHELINE, ONE_CHANNEL, Tables, address_maps, ints
from scorer_rules import TIMING, clocked, controller, time_streams

from pimkv.errors import ConfigError, InvalidArgument, PimkvError, UnknownSequence
from pimkv.reference import AddressMap, BlockManager, Scorer
from pimkv.reference.controller import RefreshClock
from pimkv.reference.lanes import LaneTimer, drains_whole_groups
from pimkv.timing import Timing, make_timing, preset, presets

# Rows close here while commands of theirs are queued: the next MAC is due after the precharge may go.
HASTY = make_timing(name="hasty", tCK_ps=1000, nRCD=3, nRP=2, nRAS=4, nRC=7, nRTP=2, nCCDAB=5)


def few_channels(count: int) -> AddressMap:
    """The map of ONE_CHANNEL for more channels."""
    return AddressMap(
        f"row:3 bg:1 ba:1 ch:{count.bit_length() - 1} col:2",
        channels=count,
        bank_groups=2,
        banks_per_group=2,
        rows=8,
        row_bytes=128,
        burst_bytes=32,
    )


def tables_of(address_map: AddressMap, streams: list[str]) -> Tables:
    """One sequence whose channels see these streams, one after the other; a burst is written `row.bank`."""
    blocks: list[int] = []
    for channel, stream in enumerate(streams):
        for burst in stream.replace("|", " ").split():
            row, bank = map(int, burst.split("."))
            blocks += address_map.encode(ints(channel), ints(bank), ints(row), ints(0)).tolist()
    return Tables(blocks)


def entering(
    monkeypatch: pytest.MonkeyPatch, streams: list[str], window: int, *, per_pch: bool = False, **options: int
) -> list[str]:
    """The rows that enter the queue of each lane, one digit per command."""
    seen: list[str] = []

    def record(_: LaneTimer, rows: list[int]) -> tuple[int, int]:
        seen.append("".join(map(str, rows)))
        return 0, 0

    address_map = few_channels(len(streams)) if len(streams) > 1 else ONE_CHANNEL
    timed = Scorer(
        address_map,
        block_bytes=32,
        token_bytes=32,
        window=window,
        controller=controller(per_pch=per_pch),
        **options,
    )
    monkeypatch.setattr(LaneTimer, "time_stream", record)
    timed.observe(tables_of(address_map, streams), ints(0))
    return seen[: len(seen) // 2]  # what follows is the limit's


# ---- what enters a queue ----


@pytest.mark.parametrize(
    ("window", "stream", "rows"),
    [
        # rows leave a window by their first burst, all commands of one together
        (4, "0.0 1.0 0.1 1.1", "01"),
        (8, "2.0 0.0 0.1 2.0 1.3 0.1", "22001"),
        # the row carried in leaves first
        (2, "0.0 1.0 | 0.1 1.1", "0110"),
        (4, "0.0 0.0 1.0 0.1 | 1.1 1.0 0.0 1.1", "001011"),
        # but not if the window lacks it, and only for one window
        (2, "0.0 1.0 | 2.1 0.2", "0120"),
        (2, "0.0 1.0 | 0.0 0.1 | 1.1 0.3", "01001"),
        # the short last window leaves as it stands
        (4, "0.0 0.1 0.2 1.0 | 3.0 1.0", "0113"),
        # in order every command is by itself
        (0, "0.0 0.1 1.0 0.2 0.2", "0100"),
    ],
)
def test_rows_leave_a_window(monkeypatch: pytest.MonkeyPatch, window: int, stream: str, rows: str) -> None:
    assert entering(monkeypatch, [stream], window) == [rows]


# Four bursts per window: commands 0 0 1 of one channel, 1 1 2 of the other.
ONE, OTHER = "0.0 0.0 0.1 1.0", "1.0 1.1 1.1 2.0"


@pytest.mark.parametrize(
    ("streams", "options", "lanes"),
    [
        # by itself each channel is a lane
        ([ONE, OTHER], {}, ["001", "112"]),
        ([ONE, OTHER], {"repeat": 2}, ["000011", "111122"]),
        ([ONE, OTHER], {"per_pch": True}, ["000011", "111122"]),
        ([ONE, OTHER], {"per_pch": True, "repeat": 3}, ["0" * 12 + "1" * 6, "1" * 12 + "2" * 6]),
        # paired: the larger count of each row, rows of the first channel first
        ([ONE, OTHER], {"per_command": 2}, ["00112"]),
        ([OTHER, ONE], {"per_command": 2}, ["11200"]),
        ([ONE, OTHER], {"per_command": 2, "repeat": 2}, ["0000111122"]),
        # in turn
        ([ONE, OTHER], {"per_command": 2, "per_pch": True}, ["010112"]),
        ([OTHER, ONE], {"per_command": 2, "per_pch": True}, ["101021"]),
        ([ONE, OTHER], {"per_command": 2, "per_pch": True, "repeat": 2}, ["001100111122"]),
        # windows meet by their number: the row carried in is each channel's own
        ([f"{ONE} | 3.0 1.1", f"{OTHER} | 3.0 2.0 3.0"], {"per_command": 2}, ["00112" + "1332"]),
        (
            [f"{ONE} | 3.0 1.1", f"{OTHER} | 3.0 2.0 3.0"],
            {"per_command": 2, "per_pch": True},
            ["010112" + "12333"],
        ),
        # a channel with fewer windows has empty ones, one with fewer commands lets the other's follow
        ([ONE, f"{OTHER} | 1.0 0.0"], {"per_command": 2}, ["00112" + "10"]),
        ([f"{ONE} | 1.0 0.0 1.0", OTHER], {"per_command": 2}, ["00112" + "110"]),
        ([f"{ONE} | 1.0 0.0 1.0", OTHER], {"per_command": 2, "per_pch": True}, ["010112" + "110"]),
        (["0.0 0.1 0.2 0.3", "1.0 1.0 2.0 2.1"], {"per_command": 2, "per_pch": True}, ["0112"]),
        (["", OTHER], {"per_command": 2}, ["112"]),
        (["", OTHER], {"per_command": 2, "per_pch": True}, ["112"]),
        # one channel has no partner
        ([ONE], {"per_command": 2}, ["001"]),
        ([ONE], {"per_command": 2, "per_pch": True}, ["000011"]),
        # lanes are 2i and 2i + 1
        ([ONE, OTHER, "5.0", "5.0 6.0"], {"per_command": 2}, ["00112", "56"]),
    ],
)
def test_channels_feed_their_lanes(
    monkeypatch: pytest.MonkeyPatch, streams: list[str], options: dict[str, Any], lanes: list[str]
) -> None:
    assert entering(monkeypatch, streams, 4, **options) == lanes


@pytest.mark.parametrize(("per_pch", "lane"), [(False, "010213"), (True, "01021133")])
def test_in_order_pairs_meet_command_by_command(
    monkeypatch: pytest.MonkeyPatch, per_pch: bool, lane: str
) -> None:
    streams = ["0.0 0.0 1.0 3.0", "1.0 2.0 1.0 3.0"]
    assert entering(monkeypatch, streams, 0, per_command=2, per_pch=per_pch) == [lane]


# ---- what a queue takes ----


@st.composite
def row_streams(draw: st.DrawFn) -> list[int]:
    """Short runs over few rows: where rows return while they are queued."""
    rows = draw(st.integers(1, 8))
    runs = draw(st.lists(st.tuples(st.integers(0, rows - 1), st.integers(1, 9)), max_size=60))
    return [row for row, times in runs for _ in range(times)]


@given(rows=row_streams(), timing=st.sampled_from(list(presets().values())), depth=st.integers(1, 40))
def test_the_closed_form_is_the_clocked_loop(rows: list[int], timing: Timing, depth: int) -> None:
    assert drains_whole_groups(timing)
    timer = LaneTimer(controller(timing, queue=depth), 1)
    for _ in range(2):  # the second time from the memo
        assert timer.time_stream(rows) == clocked(rows, timing, depth)


@st.composite
def small_timings(draw: st.DrawFn) -> Timing:
    names = ("nRCD", "nRP", "nRAS", "nRC", "nRTP", "nCCDAB")
    return make_timing(tCK_ps=1000, **{name: draw(st.integers(1, 12)) for name in names})


@given(rows=row_streams(), timing=small_timings(), depth=st.integers(1, 12))
def test_timings_that_no_device_has(rows: list[int], timing: Timing, depth: int) -> None:
    timer = LaneTimer(controller(timing, queue=depth), 1)
    assert timer.time_stream(rows) == clocked(rows, timing, depth)


@pytest.mark.parametrize(("ccd_ab", "visits"), [(4, 2), (5, 3), (6, 3)])
def test_a_precharge_that_is_legal_as_early_as_a_hit_goes_first(ccd_ab: int, visits: int) -> None:
    timing = HASTY.model_copy(update={"nRTP": 5, "nCCDAB": ccd_ab})
    assert drains_whole_groups(timing) == (visits == 2)
    assert LaneTimer(controller(timing), 1).time_stream([0, 1, 0])[1] == visits


def test_a_stream_by_hand() -> None:
    timer = LaneTimer(controller(), 1)
    assert timer.time_stream([]) == (0, 0)
    assert timer.time_stream([7]) == (1 + 19, 1)
    assert timer.time_stream([0] * 64 + [1] * 64) == (14 + 6 * 128 + 40, 2)
    assert timer.time_stream([0, 1, 0, 1]) == (1 + 64 + 19 + 6, 2)  # two groups of two: PREA waits for nRAS
    # The 35th command enters when the second one leaves, row 0 still open.
    assert timer.time_stream([0, 0, *[1] * 32, 0])[1] == 2
    assert timer.time_stream([0, 0, *[1] * 33, 0])[1] == 3
    assert LaneTimer(controller(queue=1), 1).time_stream([0, 1, 0, 1])[1] == 4


@needs_data
def test_measured_streams() -> None:
    records = [record for record in table("attacc_mac_ab_single_channel.csv") if record["refresh"] == "0"]
    compared = 0
    for record in records:
        rows = rows_of(record["rows_rle"])
        if -1 not in rows:  # a lane has no barriers
            timer = LaneTimer(controller(preset(preset_name(record["preset"]))), 1)
            measured = (int(record["measured_cycles"]), int(record["n_actab"]))
            assert timer.time_stream(rows) == measured, record["id"]
            compared += 1
    assert compared > 70


# ---- whole sequences ----


def time_by_the_rules(
    address_map: AddressMap,
    tables: Tables,
    token_bursts: int,
    window: int,
    timing: Timing,
    **options: Any,
) -> tuple[int, int, int, int]:
    """(commands, misses, cycles, visits) of sequence 0: every lane, every command, every clock."""
    streams: list[list[tuple[int, int]]] = [[] for _ in range(address_map.channels)]
    for token in range(tables.length(0)):
        place = (
            tables.table(0)[token // tables.block_tokens] * tables.block_tokens + token % tables.block_tokens
        )
        channel, bank, row, _ = address_map.decode(place * token_bursts + np.arange(token_bursts))
        for c, r, b in zip(channel.tolist(), row.tolist(), bank.tolist(), strict=True):
            streams[c].append((r, b))
    return time_streams(streams, window, timing, **options)


def agrees_with_the_rules(
    address_map: AddressMap, tables: Tables, token_bursts: int, window: int, timing: Timing, **options: Any
) -> None:
    expected = time_by_the_rules(address_map, tables, token_bursts, window, timing, **options)
    scorer = Scorer(
        address_map,
        block_bytes=32 * token_bursts * tables.block_tokens,
        token_bytes=32 * token_bursts,
        window=window,
        controller=controller(timing, queue=options["queue"], per_pch=options["per_pch"]),
        per_command=options["per_command"],
        repeat=options["repeat"],
    )
    for _ in range(2):  # the second time from the memos
        observed = scorer.observe(tables, ints(0))  # type: ignore[arg-type]
        commands, hits, _, cycles, visits = (int(part[0]) for part in observed)
        assert (commands, commands - hits, cycles, visits) == expected
    assert scorer.timed_totals() == (2 * expected[2], 0, 2 * expected[3])


@given(
    data=st.data(),
    address_map=address_maps(),
    window=st.sampled_from([0, 1, 2, 3, 5, 8, 64]),
    timing=st.sampled_from([TIMING, preset("aim-gddr6"), HASTY]),
    queue=st.sampled_from([1, 2, 5, 33]),
    per_pch=st.booleans(),
    per_command=st.integers(1, 2),
    repeat=st.integers(1, 3),
)
def test_one_lane_stands_for_all_alike(
    data: st.DataObject, address_map: AddressMap, window: int, timing: Timing, **options: Any
) -> None:
    token_bursts = data.draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]))
    block_tokens = data.draw(st.integers(1, 4))
    blocks = address_map.bursts // (token_bursts * block_tokens)
    assume(blocks > 0)
    ids = data.draw(st.lists(st.integers(0, blocks - 1), min_size=1, max_size=6, unique=True))
    missing = data.draw(st.integers(0, block_tokens - 1))
    tables = Tables(ids, block_tokens=block_tokens, missing=missing)
    agrees_with_the_rules(address_map, tables, token_bursts, window, timing, **options)


@pytest.mark.parametrize(
    "spec", [HOST_CACHELINE, "ch:5 row:14 col:5 bg:2 ba:2", "row:14 bg:2 ba:2 ch:5 col:5"]
)
@pytest.mark.parametrize("hashed", ["", "; ch^row:0", "; ba^row:2 ch^row:1"])
@pytest.mark.parametrize(("token_bursts", "block_tokens"), [(128, 16), (36, 16), (4, 3)])
@pytest.mark.parametrize("window", [64, 0])
@pytest.mark.parametrize("per_pch", [False, True])
def test_one_lane_stands_for_all_on_the_published_dram(
    spec: str, hashed: str, token_bursts: int, block_tokens: int, window: int, per_pch: bool
) -> None:
    address_map = AddressMap(spec + hashed, **HBM3)
    tables = Tables([5, 14, 6], block_tokens=block_tokens, missing=1)
    options = {"queue": 33, "per_pch": per_pch, "per_command": 2, "repeat": 1}
    agrees_with_the_rules(address_map, tables, token_bursts, window, TIMING, **options)


def published(**options: Any) -> Scorer:
    """A scorer of the published DRAM and model: 128 bursts per token, 16 tokens per block."""
    scored: dict[str, Any] = {"controller": controller(), "per_command": 2} | options
    address_map = AddressMap(HOST_CACHELINE, **HBM3)
    return Scorer(address_map, block_bytes=16 * 4096, token_bytes=4096, window=64, **scored)


def test_whole_regions_by_hand() -> None:
    """A region of 128 tokens is one row and 32 commands in each channel; a pair of channels is one lane."""
    manager = BlockManager("pim-aware", 64, block_tokens=16, blocks_per_region=8)
    manager.admit(0, 3 * 128)
    commands, hits, _, cycles, visits = (int(p[0]) for p in published().observe(manager, ints(0)))
    assert (commands, commands - hits) == (32 * 3 * 32, 32 * 3)
    assert (cycles, visits) == (1 + 19 + 6 * (3 * 32 - 1) + 2 * (19 + 8 + 19 - 6), 16 * 3)
    # four queries, one per command: four times the commands of a visit, no visit more
    commands, hits, _, cycles, visits = (int(p[0]) for p in published(repeat=4).observe(manager, ints(0)))
    assert (commands, commands - hits) == (4 * 32 * 3 * 32, 32 * 3)
    assert (cycles, visits) == (1 + 19 + 6 * (4 * 3 * 32 - 1) + 2 * 40, 16 * 3)
    # each pseudo-channel by itself: twice the commands into a lane, counted once
    double = published(controller=controller(per_pch=True))
    commands, _, _, cycles, visits = (int(p[0]) for p in double.observe(manager, ints(0)))
    assert (commands, cycles, visits) == (32 * 3 * 32, 1 + 19 + 6 * (2 * 3 * 32 - 1) + 2 * 40, 16 * 3)
    # commands that act on one channel: twice the lanes, all as slow as before
    _, _, _, cycles, visits = (int(p[0]) for p in published(per_command=1).observe(manager, ints(0)))
    assert (cycles, visits) == (1 + 19 + 6 * (3 * 32 - 1) + 2 * 40, 32 * 3)


def test_repeated_commands_hit_without_a_controller() -> None:
    scorer = published(controller=None, repeat=4)
    commands, hits, bursts, cycles, visits = (
        int(part[0])
        for part in scorer.observe(Tables([0, 9], block_tokens=16), ints(0))  # type: ignore[arg-type]
    )
    assert (commands, commands - hits, bursts) == (4 * 32 * 8, 2 * 32, 2 * 16 * 128)
    assert (cycles, visits, scorer.timed_totals()) == (0, 0, (0, 0, 0))
    assert scorer.limit_totals() == (4 * 32 * 8, 4 * 32 * 8 - 32, 0)


def test_an_empty_step_takes_nothing() -> None:
    scorer = published(controller=controller(refresh=True))
    for part in scorer.observe(BlockManager("paged", 8, block_tokens=16), ints()):
        assert part.dtype == np.int64 and part.tolist() == []
    assert scorer.timed_totals() == scorer.limit_totals() == (0, 0, 0)


# ---- totals ----


@given(
    lengths=st.lists(st.integers(1, 700), min_size=1, max_size=5),
    seed=st.integers(0, 5),
    window=st.sampled_from([64, 0]),
    per_command=st.integers(1, 2),
)
def test_the_limit_is_what_a_contiguous_table_scores(
    lengths: list[int], seed: int, window: int, per_command: int
) -> None:
    address_map = AddressMap(HOST_CACHELINE, **HBM3)
    scattered, contiguous = (
        Scorer(
            address_map,
            block_bytes=16 * 4096,
            token_bytes=4096,
            window=window,
            controller=controller(),
            per_command=per_command,
        )
        for _ in range(2)
    )
    random = BlockManager("random", 300, block_tokens=16)
    random.feed(np.random.default_rng(seed).integers(np.arange(300, 0, -1)))
    for seq, length in enumerate(lengths):
        random.admit(seq, length)
        alone = BlockManager("contiguous", 300, block_tokens=16)
        alone.admit(0, length, reserve_tokens=length)
        contiguous.observe(alone, ints(0))
    scattered.observe(random, ints(*range(len(lengths))))
    own = (*contiguous.totals()[:2], contiguous.timed_totals()[0])
    assert scattered.limit_totals() == contiguous.limit_totals() == own
    assert scattered.totals()[1] <= own[1] and scattered.timed_totals()[0] >= own[2]


def test_refresh_runs_on_over_steps() -> None:
    manager = BlockManager("paged", 8, block_tokens=16)
    manager.admit(0, 1)  # two bursts in each of two banks of a channel: two commands, 26 cycles
    manager.admit(1, 1)
    scorer = published(controller=controller(refresh=True))
    charged = []
    for _ in range(500):
        scorer.observe(manager, ints(0))
        charged.append(scorer.timed_totals()[1])
    # Due at 5070: in step 195. The charge of 438 moves the clock on, so that it is due again after 10140 - 438
    # = 9702 cycles of work, in step 374.
    assert charged == [0] * 194 + [438] * 179 + [876] * 127
    assert scorer.timed_totals() == (500 * 26, 876, 500 * 16)
    # A step is the sum of its sequences; how steps are cut makes no difference to the charge.
    pairs = published(controller=controller(refresh=True))
    for _ in range(250):
        pairs.observe(manager, ints(0, 1))
    assert pairs.timed_totals() == scorer.timed_totals()
    never = published(controller=controller(refresh=False))
    for _ in range(500):
        never.observe(manager, ints(0))
    assert never.timed_totals() == (500 * 26, 0, 500 * 16)


@given(steps=st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=12))
def test_refresh_is_charged_step_by_step(steps: list[list[int]]) -> None:
    manager = BlockManager("pim-aware", 64, block_tokens=16, blocks_per_region=8)
    for seq, tokens in enumerate((1, 100, 333, 450)):
        manager.admit(seq, tokens)
    scorer = published(controller=controller(refresh=True))
    clock, cycles, charged = RefreshClock(TIMING), 0, 0
    for step in steps:
        took = int(scorer.observe(manager, ints(*step))[3].sum())
        cycles, charged = cycles + took, charged + clock.advance(took)
        assert scorer.timed_totals()[:2] == (cycles, charged)


def test_a_refused_step_counts_for_nothing() -> None:
    manager = BlockManager("paged", 200_000, block_tokens=16)
    scorer = published(controller=controller(refresh=True))
    manager.admit(0, 100_000)  # its blocks lie beyond 8 GiB
    with pytest.raises(InvalidArgument, match="bursts contains"):
        scorer.observe(manager, ints(0))
    with pytest.raises(UnknownSequence):
        scorer.observe(manager, ints(4))
    assert scorer.totals() == scorer.timed_totals() == scorer.limit_totals() == (0, 0, 0)


# ---- arguments ----


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"rcd": 0}, ConfigError, "nRCD = 0"),
        ({"rc": -5}, ConfigError, "nRC = -5"),
        ({"rp": 2**31}, ConfigError, "nRP = 2147483648"),
        ({"rtp": 1.5}, InvalidArgument, "nRTP = 1.5: must be an integer"),
        ({"max_postponed": -1}, ConfigError, "max_postponed = -1"),
        ({"rfc": 5070}, ConfigError, "nRFC = 5070"),
        ({"rfc": None}, ConfigError, "nRFC is missing"),
        ({"refi": None, "rfc": None, "refresh": True}, ConfigError, "refresh = true"),
        ({"queue": 0}, ConfigError, "queue = 0: must be between 1 and 64"),
        ({"queue": 65}, ConfigError, "queue = 65"),
        ({"queue": "33"}, InvalidArgument, "queue = '33'"),
    ],
)
def test_what_a_controller_refuses(options: dict[str, Any], error: type[PimkvError], named: str) -> None:
    with pytest.raises(error, match=named):
        controller(**options)


def test_a_controller_holds_its_figures() -> None:
    held = controller(preset("aim-gddr6"), queue=5, per_pch=True)
    assert (held.timing.nRCD, held.timing.nREFI, held.refresh, held.queue, held.per_pch) == (
        56,
        None,
        False,
        5,
        True,
    )
    assert controller(queue=np.int64(64)).queue == 64


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"per_command": 0}, "per_command = 0"),
        ({"per_command": 3}, "per_command = 3"),
        ({"repeat": 0}, "repeat = 0"),
        ({"controller": "attacc-hbm3-5.2"}, "controller = 'attacc-hbm3-5.2'"),
    ],
)
def test_what_a_timed_scorer_refuses(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        published(**options)
