"""What reading pages of whole row groups takes: by hand, on the controller, and Rust against its twin at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pimkv import Controller, _pimkv, reference
from pimkv.errors import InvalidArgument, PimkvError

REFUSED = "refused"
MODULES = pytest.mark.parametrize("module", [_pimkv, reference], ids=["rust", "reference"])
TIMING = {
    "rcd": 19, "rp": 19, "ras": 45, "rc": 63, "rtp": 8, "ccd_ab": 6, "refi": 5070, "rfc": 456, "max_postponed": 8,
}  # fmt: skip
# Llama-3-8B in fp16 on channels of 32 banks, as NeuPIMs has them.
LLAMA = {
    "channels": 4, "rows": 400, "banks": 32, "row_bytes": 1024, "burst_bytes": 32, "elements": 1024,
    "dtype_bytes": 2, "k_tokens": 32, "v_tokens": 512, "hit_ps": 4300, "miss_ps": 45000,
}  # fmt: skip


def ints(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def plain(value: Any) -> Any:
    """A result with its arrays as lists, so that two can be compared."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def parts(module: Any, shape: dict[str, Any], **controlled: Any) -> tuple[Any, Any]:
    """A manager and a scorer of the same pages; the controller does not refresh unless asked."""
    names = ("per_command", "repeat", "mac_stride", "count_writes")
    scored = {name: controlled.pop(name) for name in names if name in controlled}
    options = {"refresh": False, "queue": 33, "per_pch": False} | controlled
    scorer = module.RowGroupScorer(controller=module.Controller(**TIMING, **options), **shape, **scored)
    manager = module.BlockManager(
        "neupims",
        shape["channels"] * shape["rows"],
        block_tokens=shape["k_tokens"],
        blocks_per_region=shape["rows"],
        pages=tuple(scorer.pages),
    )
    return manager, scorer


def rounded(tokens: int, unit: int) -> int:
    return -(-tokens // unit) * unit


@MODULES
def test_a_request_worked_out_by_hand(module: Any) -> None:
    manager, scorer = parts(module, LLAMA, count_writes=True)
    assert manager.admit(7, 40, reserve_tokens=600)
    commands, hits, bursts, cycles, visits = (int(n[0]) for n in scorer.observe(manager, ints(7)))
    # K: two pages of two rows, the second one all columns for 8 tokens. V: 32 rows, ceil(40 / 16) columns each.
    assert (commands, hits, bursts) == (4 * 32 + 32 * 3, 4 * 31 + 32 * 2, 2 * 40 * 64)
    assert visits == 4 + 32
    # From one activation to the next nRCD + nCCDAB (n - 1) + nRTP + nRP, but at least nRAS + nRP.
    k = 1 + 3 * (19 + 6 * 31 + 8 + 19) + 19 + 6 * 31
    v = 1 + 31 * max(64, 19 + 6 * 2 + 8 + 19) + 19 + 6 * 2
    assert cycles == k + v
    assert [n[3] for n in scorer.pass_totals()] == [k, v]
    assert scorer.formula_ps == 188 * 4300 + 36 * 45000
    # K to 40 banks' rows, two each; V to three columns of 1,024 dimensions.
    assert scorer.write_totals() == (40, 40 * 64 + 1024 * 3, 40 * 2 + 1024)
    # One token more: a burst of each dimension, in a row of its own.
    assert manager.grow(ints(7), ints(1)) == 1
    scorer.settle(manager, ints(7))
    assert scorer.write_totals() == (41, 41 * 64 + 1024 * 4, 41 * 2 + 1024 * 2)


@MODULES
@pytest.mark.parametrize("length", [1, 31, 512, 700, 1025])
@pytest.mark.parametrize(("repeat", "feed"), [(1, "paired"), (3, "paired"), (2, "per-pch")])
def test_cycles_are_those_of_the_controller(module: Any, length: int, repeat: int, feed: str) -> None:
    """A trace of the same commands, run on the controller that the simulators were compared with."""
    manager, scorer = parts(module, LLAMA, per_command=2, repeat=repeat, per_pch=feed == "per-pch")
    assert manager.admit(0, length, reserve_tokens=length)
    (cycles,) = scorer.observe(manager, ints(0))[3]
    controller = Controller("attacc-hbm3-5.2", refresh=False, feed=feed)
    pages, rest = divmod(length, 512)
    columns = [32] * 32 * pages + [-(-rest // 16)] * 32 * (rest > 0)
    k = np.repeat(np.arange(2 * rounded(length, 32) // 32), 32 * repeat)
    v = np.repeat(np.arange(len(columns)), np.multiply(columns, repeat))
    assert cycles == controller.run(k).cycles + controller.run(v).cycles


@MODULES
def test_a_stride_leaves_fewer_commands_to_an_activation(module: Any) -> None:
    """64 cuts every visit to single commands; 4 the 32 of a full row into four times 8, the 3 of V into singles."""
    for stride, k, v in ((1, 4, 32), (4, 16, 96), (64, 128, 96)):
        manager, scorer = parts(module, LLAMA, mac_stride=stride)
        assert manager.admit(7, 40, reserve_tokens=40)
        commands, hits, _, _, visits = (int(n[0]) for n in scorer.observe(manager, ints(7)))
        assert (commands, commands - hits, visits) == (224, k + v, k + v)
        assert [n[4] for n in scorer.pass_totals()] == [k, v]


@MODULES
def test_a_step_takes_as_long_as_its_busiest_channel(module: Any) -> None:
    manager, scorer = parts(module, LLAMA, refresh=True)
    for seq, tokens in enumerate((500, 100, 100, 100, 400)):
        assert manager.admit(seq, tokens, reserve_tokens=tokens)
    # The fifth joins one of the three that have promised least.
    assert [int(manager.table(seq)[0]) // 400 for seq in range(5)] == [0, 1, 2, 3, 1]
    own = scorer.observe(manager, ints(0, 1, 2, 3, 4))[3].tolist()
    busiest = own[1] + own[4]
    assert busiest > own[0]
    cycles, refresh, _ = scorer.timed_totals()
    assert cycles == busiest
    assert refresh == (cycles - 438) // (5070 - 438) * 438  # nRFC + 1 - nRP at every nREFI
    assert scorer.limit_totals()[2] == -(-sum(own) // 4)
    # Without the others in its way the longest decides.
    scorer.observe(manager, ints(0, 1, 2, 3))
    assert scorer.timed_totals()[0] == busiest + own[0]


class Requests(RuleBasedStateMachine):
    """Managers with pages and their scorers on both sides: the same ids, counts and refusals at every step."""

    @initialize(
        channels=st.integers(1, 4),
        rows=st.integers(8, 60),
        banks=st.sampled_from([1, 2, 4, 16]),
        columns=st.sampled_from([1, 2, 3, 8]),
        elements=st.sampled_from([16, 32, 48]),
        dtype_bytes=st.sampled_from([2, 4]),
        k_tokens=st.integers(1, 20),
        v_tokens=st.integers(1, 40),
        scored=st.fixed_dictionaries(
            {
                "per_command": st.integers(1, 2),
                "repeat": st.integers(1, 3),
                "mac_stride": st.sampled_from([1, 1, 3, 64]),
                "count_writes": st.just(True),
            }
        ),
        controlled=st.fixed_dictionaries(
            {"queue": st.integers(1, 40), "per_pch": st.booleans(), "refresh": st.booleans()}
        ),
    )
    def make(self, columns: int, scored: dict[str, Any], controlled: dict[str, Any], **shape: int) -> None:
        shape |= {"burst_bytes": 32, "row_bytes": 32 * columns, "hit_ps": 1000, "miss_ps": 44500}
        self.rows = shape["rows"]
        both = [parts(module, shape, **scored, **controlled) for module in (_pimkv, reference)]
        self.managers, self.scorers = zip(*both, strict=True)
        assert plain(tuple(self.scorers[0].pages)) == tuple(self.scorers[1].pages)

    def call(self, function: Callable[[Any], Any]) -> Any:
        results = []
        for manager in self.managers:
            try:
                results.append(plain(function(manager)))
            except PimkvError:
                results.append(REFUSED)
        assert results[0] == results[1]
        return results[0]

    @property
    def live(self) -> list[int]:
        return self.managers[0].sequences().tolist()

    @rule(
        seq=st.integers(0, 6), tokens=st.integers(0, 60), more=st.integers(-2, 60), scratch=st.integers(0, 3)
    )
    def admit(self, seq: int, tokens: int, more: int, scratch: int) -> None:
        ask = {"reserve_tokens": max(0, tokens + more), "scratch_blocks": scratch}
        self.call(lambda m: m.admit(seq, tokens, **ask))

    @rule(data=st.data(), n=st.integers(1, 9))
    def grow(self, data: st.DataObject, n: int) -> None:
        seqs = data.draw(st.permutations(self.live))
        self.call(lambda m: m.grow(ints(*seqs), ints(*[n] * len(seqs))))

    @rule(seq=st.integers(0, 6), position=st.integers(0, 60))
    def write(self, seq: int, position: int) -> None:
        assert self.call(lambda m: m.write(seq, position)) in (True, REFUSED)

    @rule(seq=st.integers(0, 6))
    def share(self, seq: int) -> None:
        assert self.call(lambda m: m.fork(seq, 9)) == REFUSED
        assert self.call(lambda m: m.pin_prefix(seq, 1)) == REFUSED
        assert self.call(lambda m: m.trim(ints(seq), 1)) == REFUSED

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        seqs = data.draw(st.lists(st.sampled_from(self.live), unique=True, min_size=1))
        for scorer, manager in zip(self.scorers, self.managers, strict=True):
            scorer.settle(manager, ints(*seqs))
            scorer.forget(ints(*seqs))
        self.call(lambda m: m.release(ints(*seqs)))

    @rule(data=st.data())
    def observe(self, data: st.DataObject) -> None:
        seqs = ints(*data.draw(st.permutations(self.live)))
        scores = [plain(s.observe(m, seqs)) for s, m in zip(self.scorers, self.managers, strict=True)]
        assert scores[0] == scores[1]
        for name in ("totals", "timed_totals", "limit_totals", "pass_totals", "write_totals"):
            assert getattr(self.scorers[0], name)() == getattr(self.scorers[1], name)(), name
        assert self.scorers[0].formula_ps == self.scorers[1].formula_ps

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "managers"):
            return
        for name in ("free_blocks", "live_blocks", "blocks_allocated"):
            self.call(lambda m, name=name: getattr(m, name))
        for seq in self.live:
            table = self.call(lambda m, seq=seq: m.table(seq))
            assert len({block // self.rows for block in table}) == 1
            self.call(lambda m, seq=seq: m.length(seq))
        self.call(lambda m: m.check())


TestRequests = Requests.TestCase


@MODULES
def test_what_cannot_be_is_refused_in_words(module: Any) -> None:
    def manager(kind: str = "neupims", block_tokens: int = 32, pages: Any = ((32, 2), (512, 32))) -> Any:
        return module.BlockManager(kind, 1600, block_tokens=block_tokens, blocks_per_region=400, pages=pages)

    for make, words in (
        (lambda: manager(kind="paged"), "kind"),
        (lambda: manager(block_tokens=16), "block_tokens"),
        (lambda: manager(pages=((32, 0), (512, 32))), "pages"),
        (lambda: parts(module, LLAMA | {"elements": 1030}), "elements"),
        (lambda: parts(module, LLAMA | {"row_bytes": 1000}), "row_bytes"),
        (lambda: parts(module, LLAMA | {"channels": 0}), "channels"),
        (lambda: parts(module, LLAMA, per_command=3), "per_command"),
        (lambda: parts(module, LLAMA, repeat=0), "repeat"),
        (lambda: parts(module, LLAMA, mac_stride=0), "mac_stride"),
        (lambda: module.BlockManager("neupims", 1601, block_tokens=32, blocks_per_region=400), "blocks"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            make()
    # A manager of other pages or another pool.
    _, scorer = parts(module, LLAMA)
    for other in (manager(pages=((32, 2), (256, 16))), parts(module, LLAMA | {"rows": 399})[0]):
        assert other.admit(0, 1, reserve_tokens=1)
        with pytest.raises(InvalidArgument):
            scorer.observe(other, ints(0))
    assert scorer.totals() == (0, 0, 0)
