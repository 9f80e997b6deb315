"""Do the event form and the per-clock loop agree on anything, figures and every command?"""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from pimkv.controller import Controller
from pimkv.errors import ConfigError
from pimkv.reference.auditor import audit
from pimkv.reference.controller import run_reference
from pimkv.timing import Timing, make_timing, presets

FIGURES = ("cycles", "activations", "precharges", "refreshes", "commands", "postponed_max")


@st.composite
def traces(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Short runs over few rows of 1 to 4 channels, with barriers: where queues fill and rows return."""
    channels = draw(st.integers(1, 4))
    rows = draw(st.integers(1, 8))
    run = st.tuples(st.integers(0, channels - 1), st.integers(-1, rows - 1), st.integers(1, 6))
    runs = draw(st.lists(run, max_size=60))
    return [(channel, row) for channel, row, times in runs for _ in range(times)]


@st.composite
def small_timings(draw: st.DrawFn) -> Timing:
    """Timings with intervals of a few cycles, orders between them that no device has, refresh often."""
    names = ("nRCD", "nRP", "nRAS", "nRC", "nRTP", "nCCDAB", "nRFC")
    fields: dict[str, Any] = {name: draw(st.integers(1, 12)) for name in names}
    try:
        return make_timing(tCK_ps=1000, nREFI=draw(st.integers(3, 120)), **fields)
    except ConfigError:
        assume(False)
        raise


def agree(
    trace: list[tuple[int, int]],
    timing: Timing,
    *,
    refresh: bool,
    queue: int = 33,
    feed: str = "paired",
    channels: int = 4,
) -> None:
    options: dict[str, Any] = {"channels": channels, "log": True}
    event = Controller(timing, refresh=refresh, queue=queue, feed=feed).run(trace, **options)
    clocked = run_reference(trace, timing, refresh=refresh, queue=queue, feed=feed, **options)
    assert [getattr(event, figure) for figure in FIGURES] == [getattr(clocked, figure) for figure in FIGURES]
    assert event.log is not None
    assert list(event.log) == clocked.log
    assert len(event.log) == event.commands
    findings = audit(event.log, timing, refresh=refresh, trace=trace, feed=feed, queue=queue)
    assert findings == []


@given(
    trace=traces(),
    timing=st.sampled_from(list(presets().values())),
    refresh=st.booleans(),
    queue=st.sampled_from([1, 2, 5, 32, 33, 64]),
    feed=st.sampled_from(["paired", "per-pch"]),
)
def test_presets(trace: list[tuple[int, int]], timing: Timing, refresh: bool, queue: int, feed: str) -> None:
    agree(trace, timing, refresh=refresh and timing.has_refresh, queue=queue, feed=feed)


@given(trace=traces(), timing=small_timings(), refresh=st.booleans(), queue=st.integers(1, 12))
def test_timings_that_no_device_has(
    trace: list[tuple[int, int]], timing: Timing, refresh: bool, queue: int
) -> None:
    agree(trace, timing, refresh=refresh, queue=queue)


@given(runs=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60)), max_size=60))
def test_one_channel(runs: list[tuple[int, int]]) -> None:
    """The single-channel loop is its own code; long runs starve its refresh."""
    trace = [(0, row) for row, times in runs for _ in range(times)]
    agree(trace, presets()["attacc-hbm3-5.2"], refresh=True, channels=1)
