"""The command grouper: the bursts that one channel sees, in order, to the windows of its all-bank commands.

Keeps nothing of a channel; remembers which commands a given run of bursts makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from pimkv.reference.lanes import NO_ROW, Window, chunks

# A burst as one channel sees it is the number row * banks + bank; a run of bursts is the bytes of an int64
# array of them, because bytes are quick to join, cut and look up.
BURST = np.dtype(np.int64).itemsize
MEMO_BYTES = 2**27  # the most that a memo of runs may hold, about
IN_ORDER_RUN = 64  # bursts per remembered run without windows; any number gives the same counts

# The open command of the in-order rule: (its row, its banks, the row of the command before it).
OpenCommand = tuple[int, frozenset[int], int]


class Grouper:
    """Groups the bursts of channels with so many `banks`, `window` bursts at once; 0 groups in order."""

    def __init__(self, banks: int, window: int) -> None:
        self._banks = banks
        self._window = window
        entries = 1 + MEMO_BYTES // (BURST * (window or IN_ORDER_RUN))
        self._group_window = lru_cache(entries)(group_window)
        self._group_in_order = lru_cache(entries)(group_in_order)

    def windows(self, stream: bytes) -> list[Window]:
        """The windows of one cold channel that sees these bursts."""
        if not self._window:
            return self._windows_in_order(stream)
        windows = []
        carried_row = NO_ROW
        size = self._window * BURST
        for start in range(0, len(stream), size):
            window = self._group_window(stream[start : start + size], self._banks, carried_row)
            windows.append(window)
            carried_row = window.last_row
        return windows

    def _windows_in_order(self, stream: bytes) -> list[Window]:
        """Without windows each command is one of its own."""
        windows: list[Window] = []
        command: OpenCommand = (NO_ROW, frozenset(), NO_ROW)
        size = IN_ORDER_RUN * BURST
        for start in range(0, len(stream), size):
            closed, command = self._group_in_order(stream[start : start + size], self._banks, command)
            windows += closed
        row, banks, row_before = command
        if banks:  # the last open command counts
            windows.append(window_of_one(row, row_before))
        return windows


def group_window(window: bytes, banks: int, carried_row: int) -> Window:
    """The commands of one window.

    The bursts of a row form a group that needs as many commands as its fullest bank has bursts. The row
    carried in leaves first if the window has it, the others by their first burst.
    """
    per_row: dict[int, Counter[int]] = {}
    row = NO_ROW
    for burst in np.frombuffer(window, dtype=np.int64).tolist():
        row, bank = divmod(burst, banks)
        per_row.setdefault(row, Counter())[bank] += 1
    carried = [carried_row] if carried_row in per_row else []
    order = carried + [other for other in per_row if other != carried_row]
    visits = tuple((row_out, max(per_row[row_out].values())) for row_out in order)
    # one miss per distinct row, none for the row carried in
    return Window(visits, sum(count for _, count in visits), len(order) - len(carried), row)


def group_in_order(run: bytes, banks: int, command: OpenCommand) -> tuple[tuple[Window, ...], OpenCommand]:
    """(commands closed, each a window of its own; open command) after these bursts.

    A command closes when the row changes, a bank repeats or it is full; it is a hit if its row is that of
    the command before it.
    """
    row, in_command, row_before = command
    closed = []
    for burst in np.frombuffer(run, dtype=np.int64).tolist():
        next_row, bank = divmod(burst, banks)
        if in_command and (next_row != row or bank in in_command or len(in_command) == banks):
            closed.append(window_of_one(row, row_before))
            row_before = row
            in_command = frozenset()
        row = next_row
        in_command |= {bank}
    return tuple(closed), (row, in_command, row_before)


def activations(windows: Sequence[Window], stride: int) -> int:
    """The activations of one cold channel with these windows, each row visit cut under `stride`.

    A visit is the commands of a row in a window, and in the windows that follow as long as the row was carried
    into them and is there.
    """
    total = 0
    carried_row, carried = NO_ROW, 0
    for window in windows:
        visits = dict(window.visits)
        if carried_row in visits:
            visits[carried_row] += carried
        else:
            total += len(chunks(carried, stride))
        carried_row, carried = window.last_row, visits.pop(window.last_row)
        total += sum(len(chunks(count, stride)) for count in visits.values())
    return total + len(chunks(carried, stride))


def window_of_one(row: int, row_before: int) -> Window:
    """A command by itself, after one of `row_before`."""
    return Window(((row, 1),), 1, int(row != row_before), row)
