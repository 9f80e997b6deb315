"""An auditor of command logs: says what in a log no device or no controller of this kind could have done.

It shares nothing with the controllers but the meaning of the intervals. It takes a log as evidence and looks
back over it; it never decides what should come next, so a mistake made alike by both controllers shows here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pimkv.timing import Command, Timing

BARRIER = -1


class Finding(NamedTuple):
    """One thing wrong: the rule it breaks, the command that breaks it, and the evidence."""

    rule: str
    command: Command | None
    evidence: str


@dataclass
class _Bus:
    """What the auditor remembers of one channel: the commands so far, by their last occurrence."""

    latest: dict[str, int] = field(default_factory=dict)
    open_row: int | None = None
    clk: int = 0
    refreshes: int = 0
    pair_started: int | None = None
    # The trace's commands of this channel that no MAC has answered for yet, oldest first.
    wanted: list[int] = field(default_factory=list)


def audit(
    log: Iterable[Command],
    timing: Timing,
    *,
    refresh: bool,
    trace: Sequence[tuple[int, int]] | None = None,
    feed: str = "paired",
    queue: int = 33,
) -> list[Finding]:
    """Everything wrong with `log`, in its order; an empty list for a log that is right.

    With the `trace` of (channel, row) pairs that the log answers (and its `feed` and `queue`), it also
    checks that every command was served once, first-ready first-come, within the queue's reach and on the
    right side of each barrier.
    """
    findings: list[Finding] = []
    buses: dict[int, _Bus] = {}
    if trace is not None:
        for channel, row in trace:
            copies = 2 if feed == "per-pch" and row != BARRIER else 1
            buses.setdefault(channel, _Bus()).wanted += [row] * copies
        for bus in buses.values():
            bus.wanted.reverse()  # the oldest last, where taking it is cheap
            _drop_barriers(bus)
    end = 0
    for command in log:
        bus = buses.setdefault(command.channel, _Bus())
        if command.clk < end:
            findings.append(Finding("log order", command, f"clk {end} came before"))
        end = max(end, command.clk)
        findings += _check_bus(bus, command)
        findings += _check_intervals(bus, command, timing)
        findings += _check_rows(bus, command)
        findings += _check_refresh(bus, command, timing, refresh)
        if trace is not None:
            findings += _check_service(bus, command, timing, refresh, queue)
        _remember(bus, command)
    for channel, bus in sorted(buses.items()):
        owed = _fallen_due(end, timing, refresh) - bus.refreshes
        if owed:
            findings.append(Finding("refresh complete", None, f"channel {channel} ends with {owed} owed"))
        if trace is not None and bus.wanted:
            left = f"channel {channel} leaves {len(bus.wanted)} commands unserved"
            findings.append(Finding("service complete", None, left))
    return findings


def _check_bus(bus: _Bus, command: Command) -> Iterable[Finding]:
    if command.name not in ("ACTAB", "MACAB", "PREA", "REFab"):
        yield Finding("known command", command, "no such command")
    if command.clk <= bus.clk:
        yield Finding("one command per clock", command, f"the bus was taken at clk {bus.clk}")


def _check_intervals(bus: _Bus, command: Command, timing: Timing) -> Iterable[Finding]:
    """Each interval in words: from what to what at least how long."""
    since: list[tuple[str, int | None, int]] = []
    if command.name == "ACTAB":
        since.append(("nRP", bus.latest.get("PREA"), timing.nRP))
        since.append(("nRC", bus.latest.get("ACTAB"), timing.nRC))
        since.append(("nRFC", bus.pair_started, timing.nRFC or 0))
    elif command.name == "MACAB":
        since.append(("nRCD", bus.latest.get("ACTAB"), timing.nRCD))
        since.append(("nCCDAB", bus.latest.get("MACAB"), timing.nCCDAB))
    elif command.name == "PREA":
        since.append(("nRAS", bus.latest.get("ACTAB"), timing.nRAS))
        since.append(("nRTP", bus.latest.get("MACAB"), timing.nRTP))
    for rule, start, least in since:
        if start is not None and command.clk - start < least:
            yield Finding(rule, command, f"{command.clk - start} cycles after clk {start}, needs {least}")


def _check_rows(bus: _Bus, command: Command) -> Iterable[Finding]:
    is_open = bus.open_row is not None
    if command.name in ("ACTAB", "REFab") and is_open:
        yield Finding("row state", command, f"row {bus.open_row} is open")
    if command.name == "PREA" and not is_open:
        yield Finding("row state", command, "no row is open")
    if command.name == "MACAB" and command.row != bus.open_row:
        yield Finding("row state", command, f"the open row is {bus.open_row}")


def _fallen_due(clk: int, timing: Timing, refresh: bool) -> int:
    """REFab commands that have fallen due by `clk`."""
    return 2 * (clk // timing.nREFI) if refresh and timing.nREFI is not None else 0


def _check_refresh(bus: _Bus, command: Command, timing: Timing, refresh: bool) -> Iterable[Finding]:
    due = _fallen_due(command.clk, timing, refresh)
    if command.name == "REFab" and bus.refreshes >= due:
        yield Finding("refresh due", command, f"{bus.refreshes} issued, {due} fallen due")
    if command.name == "ACTAB" and bus.refreshes < due:
        yield Finding("refresh first", command, f"{due - bus.refreshes} refreshes are owed")


def _check_service(
    bus: _Bus, command: Command, timing: Timing, refresh: bool, queue: int
) -> Iterable[Finding]:
    oldest = bus.wanted[-1] if bus.wanted else None
    if command.name == "ACTAB" and command.row != oldest:
        yield Finding("oldest row opens", command, f"the oldest command waits for row {oldest}")
    owed = _fallen_due(command.clk, timing, refresh) - bus.refreshes
    if command.name == "PREA" and not owed and oldest in (None, bus.open_row):
        yield Finding("needless precharge", command, f"the oldest command waits for row {oldest}")
    if command.name != "MACAB":
        return
    for place in range(len(bus.wanted) - 1, max(-1, len(bus.wanted) - 1 - queue), -1):
        if bus.wanted[place] == command.row:
            del bus.wanted[place]
            _drop_barriers(bus)
            return
        if bus.wanted[place] == BARRIER:
            yield Finding("barrier", command, "no command to this row before the next barrier")
            return
    yield Finding("queue reach", command, f"no command to this row among the oldest {queue}")


def _drop_barriers(bus: _Bus) -> None:
    while bus.wanted and bus.wanted[-1] == BARRIER:
        bus.wanted.pop()


def _remember(bus: _Bus, command: Command) -> None:
    bus.latest[command.name] = command.clk
    bus.clk = max(bus.clk, command.clk)
    if command.name == "ACTAB":
        bus.open_row = command.row
    elif command.name == "PREA":
        bus.open_row = None
    elif command.name == "REFab":
        if bus.refreshes % 2 == 0:
            bus.pair_started = command.clk
        bus.refreshes += 1
