"""Would the auditor notice? Nothing found in right logs, every command moved by one clock found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pimkv.controller import Controller
from pimkv.reference.auditor import Finding, audit
from pimkv.timing import Command, Timing, make_timing, preset, presets

BASE = preset("attacc-hbm3-5.2")


def with_intervals(**intervals: Any) -> Timing:
    return make_timing(**BASE.model_dump() | intervals)


def right_log(timing: Timing, rows: list[Any], channels: int = 1) -> list[Command]:
    log = Controller(timing).run(rows, log=True, channels=channels).log
    assert log is not None
    return list(log)


def one_clock_early(log: list[Command], at: int) -> list[Command]:
    return [*log[:at], log[at]._replace(clk=log[at].clk - 1), *log[at + 1 :]]


def rules(findings: list[Finding]) -> set[str]:
    return {finding.rule for finding in findings}


@pytest.mark.parametrize("name", list(presets()))
def test_nothing_is_found_in_right_logs(name: str) -> None:
    """A million commands in all: 12 presets of 84,000 each, in one channel and in four."""
    timing = preset(name)
    rng = np.random.default_rng(7)
    seen = 0
    for channels in (1, 4):
        runs = rng.integers(1, 9, size=7000)
        rows = np.repeat(rng.integers(-1, 300, size=7000), runs)
        places = np.repeat(rng.integers(0, channels, size=7000), runs)
        trace = np.stack([places, rows], axis=1)
        run = Controller(timing, refresh=timing.has_refresh).run(trace, log=True)
        assert run.log is not None
        pairs = [(int(channel), int(row)) for channel, row in trace]
        assert audit(run.log, timing, refresh=timing.has_refresh, trace=pairs) == []
        seen += len(run.log)
    assert seen >= 84_000


@pytest.mark.parametrize(
    ("rule", "timing", "rows"),
    [
        ("nRCD", BASE, [1, 2]),
        ("nRAS", BASE, [1, 2]),
        ("nRC", with_intervals(nRC=80), [1, 2]),
        ("nRP", BASE, [1, 2]),
        ("nRTP", BASE, [1] * 8 + [2]),
        ("nCCDAB", BASE, [1, 1]),
        ("nRFC", BASE, list(range(100))),
        ("one command per clock", BASE, list(range(100))),
        ("refresh due", BASE, [(1, row) for row in range(100)]),
    ],
)
def test_one_clock_early_is_found_and_on_time_is_not(rule: str, timing: Timing, rows: list[Any]) -> None:
    log = right_log(timing, rows, channels=2 if rule == "refresh due" else 1)
    assert audit(log, timing, refresh=True) == []
    found = set()
    for at in range(len(log)):
        early = one_clock_early(log, at)
        found |= rules([f for f in audit(early, timing, refresh=True) if f.command == early[at]])
    assert rule in found


@pytest.mark.parametrize("timing", [BASE, with_intervals(nRC=80), with_intervals(nRTP=30, nRAS=20)])
def test_no_command_could_have_come_earlier(timing: Timing) -> None:
    """The event form issues everything at its first legal clock, and the auditor sees the one before."""
    rng = np.random.default_rng(3)
    rows = np.repeat(rng.integers(-1, 6, size=20), rng.integers(1, 5, size=20)).tolist()
    rows += [row for row in range(76) for _ in range(2)]
    trace = [(0, row) for row in rows]
    log = right_log(timing, rows)
    assert {command.name for command in log} == {"ACTAB", "MACAB", "PREA", "REFab"}
    for at, command in enumerate(log):
        assert audit(one_clock_early(log, at), timing, refresh=True, trace=trace), command


def drop(name: str) -> Callable[[list[Command]], list[Command]]:
    def change(log: list[Command]) -> list[Command]:
        last = max(at for at, command in enumerate(log) if command.name == name)
        return log[:last] + log[last + 1 :]

    return change


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (drop("MACAB"), "service complete"),
        (drop("PREA"), "row state"),
        (drop("ACTAB"), "row state"),
        (drop("REFab"), "refresh complete"),
        (lambda log: log[::-1], "log order"),
        (lambda log: [*log, Command(log[-1].clk + 99, 0, "MACAB", 99)], "queue reach"),
        (lambda log: [*log, Command(log[-1].clk + 99, 0, "PREA", -1)], "needless precharge"),
        (lambda log: [c._replace(name="ACT") if c.name == "ACTAB" else c for c in log], "known command"),
        (lambda log: [c._replace(row=7) if c.name == "ACTAB" else c for c in log], "oldest row opens"),
    ],
)
def test_a_wrong_log_is_found(change: Callable[[list[Command]], list[Command]], rule: str) -> None:
    rows = [row for row in range(100) for _ in range(4)]
    log = change(right_log(BASE, rows))
    assert rule in rules(audit(log, BASE, refresh=True, trace=[(0, row) for row in rows]))


def test_a_command_across_a_barrier_is_found() -> None:
    log = right_log(BASE, [1, 2, 1, 1])
    findings = audit(log, BASE, refresh=True, trace=[(0, 1), (0, 2), (0, -1), (0, 1), (0, 1)])
    assert "barrier" in rules(findings)


def test_an_activation_ahead_of_a_refresh_is_found() -> None:
    late = [Command(5080, 0, "ACTAB", 1), Command(5099, 0, "MACAB", 1)]
    assert {"refresh first", "refresh complete"} <= rules(audit(late, BASE, refresh=True))
    assert audit(late, BASE, refresh=False) == []
