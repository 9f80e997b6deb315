"""Does `controller.mac_stride` cut row visits as docs/model.md says: by hand, on both sides, clock by clock?"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from scorer_inputs import ints
from scorer_rules import TIMING, clocked, controller

from pimkv import _pimkv, reference
from pimkv.config import Config, load
from pimkv.errors import ConfigError, InvalidArgument
from pimkv.interop import attacc
from pimkv.interop.reads import stream_problems
from pimkv.reference.grouper import Grouper, activations
from pimkv.reference.lanes import LaneTimer, Window, chunks
from pimkv.simulation import Simulation
from pimkv.timing import Timing, make_timing

BOTH = pytest.mark.parametrize("module", [_pimkv, reference], ids=["rust", "reference"])
CONTROLLER = {
    "rcd": 19, "rp": 19, "ras": 45, "rc": 63, "rtp": 8, "ccd_ab": 6, "refi": 5070, "rfc": 456, "max_postponed": 8,
    "refresh": False,
}  # fmt: skip
# Without a stride rows close here while commands of theirs are queued (as in test_reference_timed).
HASTY = make_timing(name="hasty", tCK_ps=1000, nRCD=3, nRP=2, nRAS=4, nRC=7, nRTP=2, nCCDAB=5)
STEADY = {"workload": {"requests": 12}, "scheduler": {"max_batch": 8}, "allocator": {"kind": "pim-aware"}}


class Placed:
    """A sequence whose blocks, a burst each, lie wherever one wants them, and a scorer that reads it."""

    def __init__(
        self, module: Any, spec: str, sizes: dict[str, int], controlled: dict[str, Any], **scored: Any
    ):
        self.manager = module.BlockManager("random", bursts_of(sizes), block_tokens=1, blocks_per_region=1)
        self.scorer = module.Scorer(
            module.AddressMap(spec, burst_bytes=32, **sizes),
            block_bytes=32,
            token_bytes=32,
            controller=module.Controller(**CONTROLLER, **{"queue": 33, "per_pch": False} | controlled),
            **scored,
        )
        self._free = list(range(bursts_of(sizes)))

    def append(self, bursts: list[int]) -> tuple[int, ...]:
        """(commands, hits, bursts, cycles, visits) with these bursts, none of them read before, at the end."""
        draws = []
        for burst in bursts:
            index = self._free.index(burst)
            self._free[index] = self._free[-1]  # as the policy does
            self._free.pop()
            draws.append(index)
        self.manager.feed(ints(*draws))
        if 0 in self.manager.sequences().tolist():
            assert self.manager.grow(ints(0), ints(len(bursts))) == 1
        else:
            assert self.manager.admit(0, len(bursts))
        assert self.manager.table(0).tolist()[-len(bursts) :] == bursts
        return tuple(int(column[0]) for column in self.scorer.observe(self.manager, ints(0)))


def bursts_of(sizes: dict[str, int]) -> int:
    count = sizes["channels"] * sizes["bank_groups"] * sizes["banks_per_group"] * sizes["rows"]
    return count * sizes["row_bytes"] // 32


# One channel of one bank with rows of 8 bursts: every burst is a command, and burst n lies in row n // 8.
ONE_BANK = {"channels": 1, "bank_groups": 1, "banks_per_group": 1, "rows": 8, "row_bytes": 256}


@BOTH
@pytest.mark.parametrize("window", [0, 1, 3, 64])
@pytest.mark.parametrize(
    ("stride", "activated", "cycles"),
    [
        # Row 5 takes 8 commands, row 2 takes 5. From one activation to the next: max(nRC 63, nRAS + nRP 64,
        # nRCD + nRTP + nRP + nCCDAB (n - 1) = 46 + 6 (n - 1)); before and after: 1 + nRCD and nCCDAB (n - 1).
        (1, 2, 20 + (46 + 42) + 24),  # 8, 5
        (2, 4, 20 + 3 * 64 + 6),  # 4 4, 3 2: 46 + 18 is 64 as well
        (3, 6, 20 + 5 * 64 + 0),  # 3 3 2, 2 2 1
        (4, 7, 20 + 6 * 64 + 0),  # 2 2 2 2, 2 2 1
        (5, 4 + 5, 20 + 8 * 64),  # 2 2 2 2, 1 1 1 1 1
        (8, 13, 20 + 12 * 64),
        (4096, 13, 20 + 12 * 64),
    ],
)
def test_by_hand(module: Any, window: int, stride: int, activated: int, cycles: int) -> None:
    """Also a visit over several windows, or in order, is cut as a whole."""
    placed = Placed(module, "row:3 col:3", ONE_BANK, {}, window=window, mac_stride=stride)
    bursts = [*range(40, 48), *range(16, 21)]
    assert placed.append(bursts) == (13, 13 - activated, 13, cycles, activated)


@BOTH
def test_a_visit_is_cut_by_what_it_has_come_to(module: Any) -> None:
    """Under stride 4 a visit of 4 commands takes 4 activations, and one more command makes it 3."""
    placed = Placed(module, "row:3 col:3", ONE_BANK, {}, window=64, mac_stride=4)
    assert placed.append([0, 1, 2, 3])[1] == 0
    assert placed.append([4]) == (5, 2, 5, 20 + 2 * 64, 3)  # 2 2 1


@BOTH
def test_queries_repeat_the_commands_of_a_chunk(module: Any) -> None:
    """A visit of 6 under stride 3, each command issued 4 times: chunks of 2, not of 8."""
    placed = Placed(module, "row:3 col:3", ONE_BANK, {}, window=64, mac_stride=3, repeat=4)
    assert placed.append(list(range(6))) == (24, 21, 6, 20 + 2 * (46 + 42) + 42, 3)


@BOTH
def test_chunks_are_not_merged_by_the_controller(module: Any) -> None:
    """Rows 0 and 1 in turn, two commands each: first-ready makes two visits of them, but not of their chunks."""
    bursts = [0, 1, 8, 9, 2, 3, 10, 11]
    visits = {
        stride: Placed(module, "row:3 col:3", ONE_BANK, {}, window=2, mac_stride=stride).append(bursts)[4]
        for stride in (1, 2, 64)
    }
    assert visits == {1: 2, 2: 8, 64: 8}


@BOTH
def test_per_pch_counts_the_commands_of_both(module: Any) -> None:
    """Two channels in different rows, two commands each: a visit per row, whatever way they alternate."""
    sizes = ONE_BANK | {"channels": 2}
    bursts = [0, 1, 64 + 8, 64 + 9]  # channel 0 in row 0, channel 1 in row 1
    alike = [0, 1, 64, 65]
    for per_pch, visits_of in (
        (True, {"unlike": (4, 4), "alike": (2, 4)}),
        (False, {"unlike": (4, 4), "alike": (2, 2)}),
    ):
        for name, stream in (("unlike", bursts), ("alike", alike)):
            for stride, visits in zip((2, 64), visits_of[name], strict=True):
                placed = Placed(
                    module,
                    "ch:1 row:3 col:3",
                    sizes,
                    {"per_pch": per_pch},
                    window=64,
                    per_command=2,
                    mac_stride=stride,
                )
                assert placed.append(stream)[4] == visits, (per_pch, name, stride)


@given(
    bits=st.fixed_dictionaries({n: st.integers(n == "row", 2) for n in ("ch", "bg", "ba", "row", "col")}),
    data=st.data(),
    scored=st.fixed_dictionaries(
        {
            "window": st.integers(0, 12),
            "mac_stride": st.integers(1, 9) | st.just(64),
            "repeat": st.integers(1, 3),
            "per_command": st.integers(1, 2),
        }
    ),
    controlled=st.fixed_dictionaries({"queue": st.integers(1, 64), "per_pch": st.booleans()}),
)
def test_both_sides_agree_as_a_sequence_grows(
    bits: dict[str, int], data: st.DataObject, scored: dict[str, int], controlled: dict[str, Any]
) -> None:
    spec = " ".join(data.draw(st.permutations([f"{f}:1" for f, count in bits.items() for _ in range(count)])))
    sizes = {
        "channels": 2 ** bits["ch"],
        "bank_groups": 2 ** bits["bg"],
        "banks_per_group": 2 ** bits["ba"],
        "rows": 2 ** bits["row"],
        "row_bytes": 32 * 2 ** bits["col"],
    }
    order = data.draw(st.permutations(range(bursts_of(sizes))))[:40]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(order)), max_size=3)) | {len(order)})
    sides = [Placed(module, spec, sizes, controlled, **scored) for module in (_pimkv, reference)]
    for start, stop in pairwise([0, *cuts]):
        commands, hits, *_, visits = sides[0].append(order[start:stop])
        assert sides[1].append(order[start:stop]) == (commands, hits, *_, visits)
        if scored["mac_stride"] == 64:
            # No visit is longer, so every command is an activation, in the formula and in the controller.
            assert hits == commands - commands // scored["repeat"]
            if scored["per_command"] == 1:
                assert visits == commands // scored["repeat"] * (1 + controlled["per_pch"])
    assert sides[0].scorer.limit_totals() == sides[1].scorer.limit_totals()


visit_lists = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=4, unique_by=lambda v: v[0]
)
window_lists = st.lists(
    visit_lists.map(lambda v: Window(tuple(v), sum(c for _, c in v), 0, v[-1][0])), max_size=6
)


@given(
    channels=st.lists(window_lists, min_size=1, max_size=2).filter(any),
    stride=st.integers(2, 9) | st.just(64),
    repeat=st.integers(1, 3),
    depth=st.integers(1, 64),
    per_pch=st.booleans(),
    timing=st.sampled_from([TIMING, HASTY]),
)
def test_chunks_take_what_rows_of_their_own_take_clock_by_clock(
    channels: list[list[Window]], stride: int, repeat: int, depth: int, per_pch: bool, timing: Timing
) -> None:
    timer = LaneTimer(controller(timing, queue=depth, per_pch=per_pch), repeat, stride)
    rows = [row for row, size in enumerate(timer.chunks(channels)) for _ in range(size * repeat)]
    assert timer.time(channels) == clocked(rows, timing, depth)


@given(rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=60), window=st.integers(0, 12))
def test_stride_1_is_one_activation_per_miss(rows: list[tuple[int, int]], window: int) -> None:
    stream = np.array([row * 4 + bank for row, bank in rows], dtype=np.int64).tobytes()
    windows = Grouper(4, window).windows(stream)
    assert activations(windows, 1) == sum(w.misses for w in windows)


@given(commands=st.integers(0, 500), stride=st.integers(1, 4096))
def test_chunks_are_as_few_as_hold_that_much(commands: int, stride: int) -> None:
    sizes = chunks(commands, stride)
    assert sum(sizes) == commands
    assert len(sizes) <= stride
    assert all(size == sizes[0] for size in sizes[:-1])
    assert max(sizes, default=0) == -(-commands // stride)


@BOTH
@pytest.mark.parametrize("stride", [0, -1, 4097])
def test_other_strides_are_refused(module: Any, stride: int) -> None:
    with pytest.raises(InvalidArgument, match=f"mac_stride = {stride}: "):
        Placed(module, "row:3 col:3", ONE_BANK, {}, window=64, mac_stride=stride)


# ---- as an option of a run ----


def summary(stride: int | None, backend: str = "rust", **tables: Any) -> dict[str, Any]:
    chosen = {} if stride is None else {"controller": {"mac_stride": stride}}
    return Simulation(load(STEADY | chosen | tables), backend=backend).run().summary


def test_stride_1_changes_nothing() -> None:
    assert summary(1) == summary(None)


@pytest.mark.parametrize("coalesce", ["window", "inorder"])
def test_a_run_agrees_on_both_backends(coalesce: str) -> None:
    scoring = {"scoring": {"coalesce": coalesce}}
    assert summary(4, "rust", **scoring) == summary(4, "reference", **scoring)


def test_host_interleave_opens_a_row_for_every_command() -> None:
    figures = summary(64)["exact"]
    assert figures["hits"] == 0
    # A command of the controller acts on two pseudo-channels.
    assert 2 * figures["row_visits"] == figures["commands"]
    # The limit is a placement, not another interleave: its reads are opened as often.
    assert figures["m3_limit_gbps"] == pytest.approx(figures["m3_gbps"], rel=0.02)
    assert figures["m3_gbps"] < summary(1)["exact"]["m3_gbps"]


@pytest.mark.parametrize("value", [0, 4097, True, 1.5])
def test_a_config_names_the_range(value: object) -> None:
    with pytest.raises(ConfigError, match=r"controller\.mac_stride = .*must be an integer from 1 to 4096"):
        load({"controller": {"mac_stride": value}})


def test_the_row_batch_bound_knows_no_stride() -> None:
    tables = {"layout": {"traversal": "row-batch"}, "controller": {"mac_stride": 2}}
    with pytest.raises(ConfigError, match=r"controller\.mac_stride = 2: .*row-batch.*1"):
        load(tables)
    assert load(tables | {"controller": {"mac_stride": 1}}).controller.mac_stride == 1


def test_a_trace_for_attacc_cannot_say_it() -> None:
    config = load({"controller": {"mac_stride": 2}})
    assert [p.field for p in attacc.problems(config)] == ["controller.mac_stride"]
    assert stream_problems(Config()) == []
