"""The cycle-exact PIM controller: row ids in trace order in, cycles and commands out.

The model is AttAcc's controller (see `rust/pimkv-core/src/controller.rs`); a cycle is one clock of the
timing preset, `tCK_ps`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from pimkv.backend import core
from pimkv.errors import InvalidArgument, Problem
from pimkv.timing import MAX_QUEUE, Command, Timing, preset
from pimkv.wording import choose_from, config_error, did_you_mean, nearest

MAX_CHANNELS = 256
"""The most channels of one run."""

_LOG = logging.getLogger("pimkv.controller")
FEEDS = ("paired", "per-pch")
"""What a trace command stands for; see `Controller`."""

_NAMES = ("ACTAB", "PREA", "MACAB", "REFab")  # by the code of the Rust enum


class CommandLog(Sequence[Command]):
    """Every command of a run in order of clock, then channel; columns as numpy arrays, items as `Command`."""

    def __init__(
        self,
        clk: NDArray[np.uint64],
        channel: NDArray[np.uint16],
        code: NDArray[np.uint8],
        row: NDArray[np.int64],
    ) -> None:
        self.clk = clk
        self.channel = channel
        self.code = code
        self.row = row

    def __repr__(self) -> str:
        return f"<CommandLog of {len(self)} commands>"

    def __len__(self) -> int:
        return len(self.clk)

    @overload
    def __getitem__(self, index: int) -> Command: ...
    @overload
    def __getitem__(self, index: slice) -> CommandLog: ...
    def __getitem__(self, index: int | slice) -> Command | CommandLog:
        if isinstance(index, slice):
            return CommandLog(self.clk[index], self.channel[index], self.code[index], self.row[index])
        return Command(
            int(self.clk[index]), int(self.channel[index]), _NAMES[self.code[index]], int(self.row[index])
        )

    def __iter__(self) -> Iterator[Command]:
        columns = (self.clk.tolist(), self.channel.tolist(), self.code.tolist(), self.row.tolist())
        for clk, channel, code, row in zip(*columns, strict=True):
            yield Command(clk, channel, _NAMES[code], row)


@dataclass(frozen=True)
class ControllerRun:
    """What a run took.

    `cycles` is the clock of the last command over all channels (the first clock is 1; an empty trace takes
    0). The counts are of commands over all channels; a refresh is two REFab. `postponed_max` is the most
    refreshes of a channel that were owed when one more had fallen due, `postponed_limit` the most the
    preset allows.
    """

    cycles: int
    activations: int
    precharges: int
    refreshes: int
    commands: int
    postponed_max: int
    postponed_limit: int
    log: CommandLog | None = None

    @property
    def refresh_starved(self) -> bool:
        """Whether the stream held refresh back for longer than the preset allows, which no device may."""
        return self.postponed_max > self.postponed_limit

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the figures, in words; empty for a run that a device could do."""
        if not self.refresh_starved:
            return ()
        return (
            f"refresh starved: {self.postponed_max} refreshes of a channel were postponed at once, the "
            f"preset allows {self.postponed_limit} (row hits go ahead of the precharge a refresh needs)",
        )


class Controller:
    """A PIM controller: a timing, with or without refresh, and the depth of its queues.

    `timing` is a preset's name or a `Timing`. `queue` is in commands per channel, 1 to 64. With
    `feed="paired"` a trace command acts on both pseudo-channels of its channel at once, as in hardware;
    with `"per-pch"` it is issued for pseudo-channel 0 and then for 1, so it takes two. Raises `ConfigError`
    for what cannot be run: refresh asked of a preset without refresh figures, for one.
    """

    def __init__(
        self,
        timing: str | Timing = "attacc-hbm3-5.2",
        refresh: bool = True,
        queue: int = 33,
        feed: str = "paired",
    ) -> None:
        self.timing = preset(timing) if isinstance(timing, str) else timing
        problems = []
        if refresh and not self.timing.has_refresh:
            message = (
                f"{self.timing.name} has no public refresh figures (nREFI, nRFC); run it with refresh off"
            )
            problems.append(Problem("refresh", True, message))
        if isinstance(queue, bool) or not isinstance(queue, int) or not 1 <= queue <= MAX_QUEUE:
            problems.append(Problem("queue", queue, f"must be an integer from 1 to {MAX_QUEUE} commands"))
        if feed not in FEEDS:
            problems.append(Problem("feed", feed, choose_from(FEEDS), did_you_mean(nearest(feed, FEEDS))))
        if problems:
            raise config_error(problems)
        self.refresh = bool(refresh)
        self.queue = queue
        self.feed = feed
        t = self.timing
        self._inner = core().Controller(
            rcd=t.nRCD,
            rp=t.nRP,
            ras=t.nRAS,
            rc=t.nRC,
            rtp=t.nRTP,
            ccd_ab=t.nCCDAB,
            refi=t.nREFI,
            rfc=t.nRFC,
            max_postponed=t.max_postponed,
            refresh=self.refresh,
            queue=queue,
            per_pch=feed == "per-pch",
        )

    def __repr__(self) -> str:
        return (
            f"Controller(timing={self.timing.name!r}, refresh={self.refresh}, queue={self.queue}, "
            f"feed={self.feed!r})"
        )

    def run(self, rows: Any, log: bool = False, channels: int | None = None) -> ControllerRun:
        """Runs commands in trace order from closed banks to the last command and the last refresh owed by
        then.

        `rows` is a sequence or integer array of row ids, all on one channel, or of (channel, row) pairs (an
        array of shape (n, 2)). A row of -1 is a barrier: commands of its channel behind it wait until all
        before it have issued. All channels are fed in order by one front end, which stalls while the queue
        of its next command is full. `channels` is their number; by default just enough for the trace.
        Raises `InvalidArgument` naming the entry at fault.
        """
        row_ids, of_row = _columns(rows)
        count = _channel_count(of_row, channels)
        if of_row is None and count > 1:
            of_row = np.zeros(len(row_ids), dtype=np.int64)
        figures: tuple[int, int, int, int, int, int]
        figures, columns = self._inner.run(row_ids, of_row, count, bool(log))
        limit = self.timing.max_postponed
        run = ControllerRun(*figures, limit, None if columns is None else CommandLog(*columns))
        for warning in run.warnings:
            _LOG.warning("%s", warning)
        return run


def _columns(rows: Any) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Rows, and the channel of each where they come as pairs, as contiguous int64 arrays."""
    try:
        array = np.asarray(rows)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(f"rows: must be row ids or (channel, row) pairs, all alike ({error})") from None
    if array.size == 0:
        return np.empty(0, dtype=np.int64), None
    # Signed 64 bits hold every valid row; what does not fit them cannot be one.
    if array.dtype.kind not in "iu" or (array.dtype.kind == "u" and int(array.max()) >= 1 << 63):
        raise InvalidArgument(f"rows: must be integers below 2**32 - 1, got {array.dtype} values")
    array = array.astype(np.int64, copy=False)
    if array.ndim == 1:
        return np.ascontiguousarray(array), None
    if array.ndim == 2 and array.shape[1] == 2:
        return np.ascontiguousarray(array[:, 1]), np.ascontiguousarray(array[:, 0])
    raise InvalidArgument(f"rows: must have shape (n,) or (n, 2), got {array.shape}")


def _channel_count(of_row: NDArray[np.int64] | None, channels: int | None) -> int:
    """The number of channels asked for, or just enough for the trace."""
    if channels is not None:
        if isinstance(channels, bool) or not isinstance(channels, int) or not 1 <= channels <= MAX_CHANNELS:
            raise InvalidArgument(f"channels = {channels!r}: must be between 1 and {MAX_CHANNELS}")
        return channels
    if of_row is None:
        return 1
    highest = int(of_row.max())
    # An absurd id is left for the check of every entry to name.
    return min(max(highest, 0) + 1, MAX_CHANNELS)
