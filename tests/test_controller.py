"""Does the controller's face take what it says it takes, and refuse the rest by name?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pimkv.controller import CommandLog, Controller
from pimkv.errors import ConfigError, InvalidArgument
from pimkv.reference.controller import RefreshClock
from pimkv.timing import Command, preset


def test_rows_come_in_many_forms() -> None:
    run = Controller().run([1, 1, -1, 2])
    assert run.cycles == 1 + 64 + 19
    assert (run.activations, run.precharges, run.refreshes, run.commands) == (2, 1, 0, 6)
    for rows in (
        (1, 1, -1, 2),
        np.array([1, 1, -1, 2], dtype=np.int16),
        np.array([1, 9, 1, 9, -1, 9, 2, 9])[::2],
        [(0, 1), (0, 1), (0, -1), (0, 2)],
        np.array([[0, 1], [0, 1], [0, -1], [0, 2]]),
    ):
        assert Controller().run(rows) == run


def test_an_empty_trace_takes_nothing() -> None:
    for rows in ([], np.empty((0, 2), dtype=np.int64), [-1, -1]):
        run = Controller().run(rows, log=True)
        assert (run.cycles, run.commands, list(run.log or [])) == (0, 0, [])


def test_the_log_has_every_command() -> None:
    log = Controller(refresh=False).run([5, 5, 7], log=True).log
    assert isinstance(log, CommandLog)
    expected = [
        Command(1, 0, "ACTAB", 5),
        Command(20, 0, "MACAB", 5),
        Command(26, 0, "MACAB", 5),
        Command(46, 0, "PREA", 7),
        Command(65, 0, "ACTAB", 7),
        Command(84, 0, "MACAB", 7),
    ]
    assert list(log) == expected
    assert (log[-1], list(log[1:3]), len(log)) == (expected[-1], expected[1:3], 6)
    assert Controller(refresh=False).run([5, 5, 7]).log is None


def test_channels_without_commands_refresh_too() -> None:
    rows = list(range(100))
    assert Controller().run(rows).refreshes == 2
    assert Controller().run(rows, channels=3).refreshes == 6


def test_a_starved_refresh_is_reported() -> None:
    fine = Controller().run([0] * 4096)
    assert (fine.postponed_max, fine.refresh_starved, fine.warnings) == (3, False, ())
    starved = Controller().run([0] * 8500)
    assert (starved.postponed_max, starved.postponed_limit, starved.refresh_starved) == (9, 8, True)
    assert "refresh starved: 9 refreshes" in starved.warnings[0]


def test_the_refresh_clock_runs_on() -> None:
    clock = RefreshClock(preset("attacc-hbm3-5.2"))
    assert [clock.advance(cycles) for cycles in (5069, 1, 4631, 1, 0, 46320)] == [0, 438, 0, 438, 0, 4380]
    with pytest.raises(InvalidArgument, match="timing = aim-gddr6"):
        RefreshClock(preset("aim-gddr6"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([1, -2], r"rows\[1\] = -2: a row must be between 0 and 4294967294, or -1 for a barrier"),
        ([2**32 - 1], r"rows\[0\] = 4294967295"),
        ([2**63], "rows: must be integers below"),
        ([2**70], "rows: "),
        ([1.0, 2.0], "rows: must be integers"),
        ([True, False], "rows: must be integers"),
        (["a"], "rows: must be integers"),
        ([[1, 2, 3]], r"rows: must have shape \(n,\) or \(n, 2\), got \(1, 3\)"),
        (7, r"rows: must have shape"),
        ([1, (0, 2)], "rows: must be row ids or"),
        ([(-1, 5)], r"rows\[0\]: channel = -1"),
        ([(0, 5), (256, 5)], r"rows\[1\]: channel = 256: must be between 0 and 255"),
        (None, "rows: must be integers"),
    ],
)
def test_bad_rows_are_refused(rows: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Controller().run(rows)


@pytest.mark.parametrize("channels", [0, -1, 257, 1.0, True])
def test_bad_channel_counts_are_refused(channels: Any) -> None:
    with pytest.raises(InvalidArgument, match="channels = "):
        Controller().run([1], channels=channels)


def test_a_channel_beyond_the_count_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"rows\[0\]: channel = 2: must be between 0 and 1"):
        Controller().run([(2, 1)], channels=2)
    with pytest.raises(InvalidArgument, match=r"rows\[1\]: channel = 1: must be between 0 and 0"):
        Controller().run([(0, 1), (1, 1)], channels=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timing": "aim-gddr6"}, "refresh = true: aim-gddr6 has no public refresh figures"),
        ({"timing": preset("hbm2-pim")}, "refresh = true: hbm2-pim"),
        ({"timing": "nonsense"}, 'timing = "nonsense": no such preset'),
        ({"queue": 0}, "queue = 0: must be an integer from 1 to 64"),
        ({"queue": 65}, "queue = 65"),
        ({"queue": 33.0}, r"queue = 33\.0"),
        ({"feed": "both"}, 'feed = "both": choose from paired, per-pch'),
    ],
)
def test_what_cannot_be_run_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Controller(**options)


def test_all_mistakes_come_together() -> None:
    with pytest.raises(ConfigError) as caught:
        Controller("aim-gddr6", queue=0, feed="x")
    assert len(str(caught.value).splitlines()) == 3
