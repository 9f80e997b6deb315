"""The PIM controller clock by clock: the twin of the event form in `rust/pimkv-core/src/controller.rs`.

Written to be compared with the description, not to be fast: every clock of every channel is looked at. A
trace is a list of `(channel, row)` pairs; a row of -1 is a barrier in that channel's queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pimkv.errors import ConfigError, InvalidArgument
from pimkv.reference.arguments import integer
from pimkv.timing import MAX_QUEUE, Command, Timing, make_timing

BARRIER = -1
_LONG_AGO = -(1 << 62)


class Controller:
    """A timing in cycles and how it is run: what a scorer needs to time its commands.

    `refi` and `rfc` are both None for a device without refresh figures. `queue` is in commands per lane.
    With `per_pch` a command is issued for each pseudo-channel by itself. Raises ConfigError for figures that
    cannot be run, InvalidArgument for what is no integer. It runs nothing itself: `run_reference` does.
    """

    def __init__(
        self,
        *,
        rcd: int,
        rp: int,
        ras: int,
        rc: int,
        rtp: int,
        ccd_ab: int,
        refi: int | None,
        rfc: int | None,
        max_postponed: int,
        refresh: bool,
        queue: int,
        per_pch: bool,
    ) -> None:
        figures: dict[str, int] = {
            "nRCD": rcd,
            "nRP": rp,
            "nRAS": ras,
            "nRC": rc,
            "nRTP": rtp,
            "nCCDAB": ccd_ab,
            "max_postponed": max_postponed,
        }
        if refi is not None:
            figures["nREFI"] = refi
        if rfc is not None:
            figures["nRFC"] = rfc
        checked = {name: integer(name, value, -(2**63)) for name, value in figures.items()}
        # Everything here is in cycles; how long one is makes no difference.
        self.timing = make_timing(tCK_ps=1, **checked)
        if refresh and not self.timing.has_refresh:
            raise ConfigError(
                "refresh = true: this timing has no nREFI and nRFC; run it with refresh = false"
            )
        self.queue = integer("queue", queue, -(2**63))
        if not 1 <= self.queue <= MAX_QUEUE:
            raise ConfigError(f"queue = {queue}: must be between 1 and {MAX_QUEUE} commands")
        self.refresh = refresh
        self.per_pch = per_pch


@dataclass
class ReferenceRun:
    """What a run took: the figures of the Rust controller under the same names."""

    cycles: int = 0
    activations: int = 0
    precharges: int = 0
    refreshes: int = 0
    commands: int = 0
    postponed_max: int = 0
    log: list[Command] = field(default_factory=list)


@dataclass
class _Channel:
    """One channel: its queue of rows, its open row, and when it last did what."""

    queue: list[int] = field(default_factory=list)
    open_row: int | None = None
    act: int = _LONG_AGO
    pre: int = _LONG_AGO
    mac: int = _LONG_AGO
    ref: int = _LONG_AGO  # the first REFab of the latest pair
    owed: int = 0  # REFab commands that have fallen due and were not issued

    def push(self, row: int) -> None:
        self.queue.append(row)
        self._drop_barriers()

    def pop(self, index: int) -> None:
        del self.queue[index]
        self._drop_barriers()

    def _drop_barriers(self) -> None:
        while self.queue and self.queue[0] == BARRIER:
            del self.queue[0]

    def oldest_hit(self) -> int | None:
        """The place of the oldest command of the open row that no barrier hides."""
        for index, row in enumerate(self.queue):
            if row == BARRIER:
                return None
            if row == self.open_row:
                return index
        return None


def run_reference(
    trace: Sequence[tuple[int, int]],
    timing: Timing,
    *,
    refresh: bool = True,
    queue: int = 33,
    feed: str = "paired",
    channels: int | None = None,
    log: bool = False,
) -> ReferenceRun:
    """Runs `trace` clock by clock. Arguments as `pimkv.controller.Controller`; they are taken to be valid."""
    count = channels if channels is not None else 1 + max((channel for channel, _ in trace), default=0)
    state = [_Channel() for _ in range(count)]
    waiting = list(_issued(trace, feed))
    waiting.reverse()  # the next one to push is the last
    out = ReferenceRun()
    clk = 0
    while waiting or any(ch.queue or ch.owed for ch in state):
        while waiting and len(state[waiting[-1][0]].queue) < queue:
            channel, row = waiting.pop()
            state[channel].push(row)
        if not waiting and not any(ch.queue or ch.owed for ch in state):
            break  # only barriers were left
        clk += 1
        for index, ch in enumerate(state):
            if refresh and timing.nREFI is not None and clk % timing.nREFI == 0:
                ch.owed += 2
            command = _clock(ch, clk, timing, out)
            if command is not None:
                out.commands += 1
                if log:
                    out.log.append(Command(clk, index, *command))
    out.cycles = clk
    return out


def _issued(trace: Iterable[tuple[int, int]], feed: str) -> Iterable[tuple[int, int]]:
    """The commands the front end sees: with `per-pch` each twice, for pseudo-channel 0 and then 1."""
    for channel, row in trace:
        yield channel, row
        if feed == "per-pch" and row != BARRIER:
            yield channel, row


def _clock(ch: _Channel, clk: int, t: Timing, out: ReferenceRun) -> tuple[str, int] | None:
    """What one channel does in one clock: at most one command, returned as (name, row)."""
    hit = ch.oldest_hit()
    mac_ok = hit is not None and clk >= ch.act + t.nRCD and clk >= ch.mac + t.nCCDAB
    pre_ok = clk >= ch.act + t.nRAS and clk >= ch.mac + t.nRTP
    if ch.owed:
        if ch.open_row is None:
            if ch.owed % 2 == 0:
                ch.ref = clk
                # All pairs owed but the one just starting were overtaken by a later one that fell due.
                out.postponed_max = max(out.postponed_max, ch.owed // 2 - 1)
            ch.owed -= 1
            out.refreshes += 1
            return "REFab", -1
        if pre_ok:
            return _precharge(ch, clk, -1, out)
    elif ch.queue and ch.open_row is None:
        act_ok = clk >= ch.pre + t.nRP and clk >= ch.act + t.nRC and clk >= ch.ref + (t.nRFC or 0)
        return _activate(ch, clk, out) if act_ok else None
    elif ch.queue and ch.queue[0] != ch.open_row and pre_ok:
        return _precharge(ch, clk, ch.queue[0], out)
    return _mac(ch, clk, hit) if mac_ok and hit is not None else None


def _activate(ch: _Channel, clk: int, out: ReferenceRun) -> tuple[str, int]:
    ch.open_row, ch.act = ch.queue[0], clk
    out.activations += 1
    return "ACTAB", ch.queue[0]


def _precharge(ch: _Channel, clk: int, row: int, out: ReferenceRun) -> tuple[str, int]:
    ch.open_row, ch.pre = None, clk
    out.precharges += 1
    return "PREA", row


def _mac(ch: _Channel, clk: int, hit: int) -> tuple[str, int]:
    row = ch.queue[hit]
    ch.pop(hit)
    ch.mac = clk
    return "MACAB", row


class RefreshClock:
    """Charges refresh to streams that were timed without it: one clock runs on over all of them."""

    def __init__(self, timing: Timing) -> None:
        if timing.nREFI is None:
            raise InvalidArgument(f"timing = {timing.name}: has no refresh figures")
        self.charge = timing.refresh_charge
        self.interval = timing.nREFI
        self.now = 0
        self.due = timing.nREFI

    def advance(self, cycles: int) -> int:
        """Runs the clock over `cycles` of work; returns the cycles of the refreshes that fall due by then.

        The clock runs during refreshes too, so that a share of charge / interval of all time goes to them.
        """
        self.now += cycles
        added = 0
        while self.now >= self.due:
            self.now += self.charge
            added += self.charge
            self.due += self.interval
        return added
