"""From the windows of channels to the cycles of lanes: what enters each queue, and how long that takes.

Without refresh a lane is timed by its drain groups, found command by command, and DESIGN's closed form. The
per-clock loop in `controller.py` answers the same and says why; it is too slow to time every sequence of
every step. Tests hold the two against each other. A command is its row, so a stream is a sequence of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

from pimkv.reference.controller import Controller, run_reference
from pimkv.timing import Timing

NO_ROW = -1

# Commands and windows per remembered piece of a stream; any numbers give the same cycles.
COMMANDS_TOGETHER = 64
WINDOWS_TOGETHER = 16
MEMO_ENTRIES = 2**15  # of either memo below: a few KiB each

# The commands of a window as they leave it: (row, commands of that row) for each of its rows.
Visits = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False, slots=True)
class Window:
    """One channel's window: its commands, how many they are, and how many of its rows were not carried in.

    `last_row` is the row carried out: that of the last burst. Windows are looked up by identity, which is
    quick; a memo hands out the same one for the same bursts.
    """

    visits: Visits
    commands: int
    misses: int
    last_row: int


class Draining(NamedTuple):
    """A lane between two commands: its open row, how many of its commands went, and what is queued."""

    open_row: int = NO_ROW
    drained: int = 0
    queue: tuple[int, ...] = ()


class LaneTimer:
    """Times lanes under one controller that issues every command `repeat` times.

    With a `stride` above 1 row visits are cut into chunks first. Keeps nothing of a lane; remembers what
    pieces of streams came to.
    """

    def __init__(self, controller: Controller, repeat: int, stride: int = 1) -> None:
        self._controller = controller
        self._repeat = repeat
        self._stride = stride
        self._released = lru_cache(MEMO_ENTRIES)(released)
        self._drain = lru_cache(MEMO_ENTRIES)(drain)

    def time(self, channels: Sequence[Sequence[Window]]) -> tuple[int, int]:
        """(cycles, ACTABs) of a lane of one or two channels with these windows, from closed banks."""
        if self._stride > 1:
            groups = [self._repeat * size for size in self.chunks(channels)]
            return group_cycles(groups, self._controller.timing), len(groups)
        stream: list[int] = []
        for start in range(0, max(map(len, channels)), WINDOWS_TOGETHER):
            piece = tuple(tuple(windows[start : start + WINDOWS_TOGETHER]) for windows in channels)
            stream += self._released(piece, self._controller.per_pch, self._repeat)
        return self.time_stream(stream)

    def chunks(self, channels: Sequence[Sequence[Window]]) -> list[int]:
        """The sizes of the chunks of a lane, not yet repeated.

        Each one is a drain group: the controller merges it with no other, so it serves them in order.
        """
        per_pch = self._controller.per_pch
        times = 2 if per_pch and len(channels) == 1 else 1
        sizes: list[int] = []
        open_row, count_so_far = NO_ROW, 0
        for windows in zip_longest(*channels):
            visits = [() if window is None else window.visits for window in windows]
            for row, count in visits[0] if len(visits) == 1 else share(*visits, add=per_pch):
                if row != open_row:
                    sizes += chunks(count_so_far, self._stride)
                    open_row, count_so_far = row, 0
                count_so_far += count * times
        return sizes + chunks(count_so_far, self._stride)

    def time_stream(self, rows: Sequence[int]) -> tuple[int, int]:
        """(cycles, ACTABs) of these commands, from closed banks and without refresh."""
        timing, depth = self._controller.timing, self._controller.queue
        if not drains_whole_groups(timing):
            run = run_reference([(0, row) for row in rows], timing, refresh=False, queue=depth)
            return run.cycles, run.activations
        groups: list[int] = []
        state = Draining()
        for start in range(0, len(rows), COMMANDS_TOGETHER):
            piece = tuple(rows[start : start + COMMANDS_TOGETHER])
            ended, state = self._drain(piece, state, depth, True)
            groups += ended
        ended, _ = self._drain((), state, depth, False)
        groups += ended
        return group_cycles(groups, timing), len(groups)


def released(channels: tuple[tuple[Window, ...], ...], per_pch: bool, repeat: int) -> list[int]:
    """The commands that enter the queue of a lane of one or two channels: the row of each, in order.

    Two channels release their k-th windows together; the one with fewer has empty ones then. A lane of one
    channel that issues for each pseudo-channel issues every command twice.
    """
    times = repeat * (2 if per_pch and len(channels) == 1 else 1)
    merge = alternate if per_pch else share
    stream = []
    for windows in zip_longest(*channels):
        visits = [() if window is None else window.visits for window in windows]
        for row, count in visits[0] if len(visits) == 1 else merge(*visits):
            stream += [row] * (count * times)
    return stream


def chunks(commands: int, stride: int) -> list[int]:
    """The sizes of the chunks of a row visit: as many as fit of ceil(commands / stride), then the rest."""
    size = -(-commands // stride)
    return [min(size, commands - start) for start in range(0, commands, size)] if commands else []


def share(first: Visits, second: Visits, *, add: bool = False) -> Visits:
    """One command acts on both channels: the larger count of each row, rows of the first channel first.

    With `add` each channel has commands of its own: the sum.
    """
    counts = dict(first)
    for row, count in second:
        counts[row] = counts.get(row, 0) + count if add else max(count, counts.get(row, 0))
    return tuple(counts.items())


def alternate(first: Visits, second: Visits) -> Visits:
    """The commands of both channels one by one in turn, the first channel's first."""
    commands = [[row for row, count in visits for _ in range(count)] for visits in (first, second)]
    return tuple((row, 1) for pair in zip_longest(*commands) for row in pair if row is not None)


def drain(rows: Sequence[int], state: Draining, depth: int, more: bool) -> tuple[tuple[int, ...], Draining]:
    """(sizes of the groups that ended, state) after these commands entered a queue of `depth`.

    A group is what one activation serves: every queued command of the open row, those included that enter
    while it drains. With `more` to come the lane goes no further than it can with a full queue; without, it
    empties the queue.
    """
    open_row, drained, queued = state
    queue = list(queued)
    groups = []
    entered = 0
    while True:
        room = depth - len(queue)
        queue += rows[entered : entered + room]
        entered += room
        if not queue or (more and len(queue) < depth):
            break
        if open_row in queue:
            queue.remove(open_row)  # its oldest command
            drained += 1
        else:
            if drained:
                groups.append(drained)
            open_row, drained = queue[0], 0
    if drained and not more:
        groups.append(drained)
        open_row, drained = NO_ROW, 0
    return tuple(groups), Draining(open_row, drained, tuple(queue))


def drains_whole_groups(timing: Timing) -> bool:
    """Whether a hit always goes ahead of the precharge that an older miss asks for.

    The controller precharges as soon as it may, so the next MAC of the row must be legal earlier. That holds
    for every preset; with a timing that no device has, rows close while commands of theirs are queued.
    """
    return timing.nCCDAB < timing.nRTP


def group_cycles(groups: Sequence[int], t: Timing) -> int:
    """The clock of the last MAC of drain groups of these sizes, from closed banks without refresh."""
    if not groups:
        return 0
    # From one activation to the next: the longest of what activations, the open row and its MACs ask for.
    to_next = sum(
        max(t.nRC, t.nRAS + t.nRP, t.nRCD + t.nCCDAB * (size - 1) + t.nRTP + t.nRP) for size in groups[:-1]
    )
    return 1 + to_next + t.nRCD + t.nCCDAB * (groups[-1] - 1)
