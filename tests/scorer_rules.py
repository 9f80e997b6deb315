"""What bursts come to by the rules, worked out in full: every channel, every command, every clock."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

from pimkv.reference import Controller
from pimkv.reference.controller import run_reference
from pimkv.timing import Timing, preset

TIMING = preset("attacc-hbm3-5.2")


def controller(timing: Timing = TIMING, **options: Any) -> Controller:
    """A controller of that timing; without refresh unless asked, which observing does not need."""
    figures: dict[str, Any] = {
        "rcd": timing.nRCD,
        "rp": timing.nRP,
        "ras": timing.nRAS,
        "rc": timing.nRC,
        "rtp": timing.nRTP,
        "ccd_ab": timing.nCCDAB,
        "refi": timing.nREFI,
        "rfc": timing.nRFC,
        "max_postponed": timing.max_postponed,
        "refresh": False,
        "queue": 33,
        "per_pch": False,
    }
    return Controller(**figures | options)


def clocked(rows: list[int], timing: Timing, depth: int) -> tuple[int, int]:
    """(cycles, ACTABs) of these commands by the per-clock loop, from closed banks and without refresh."""
    run = run_reference([(0, row) for row in rows], timing, refresh=False, queue=depth)
    return run.cycles, run.activations


def commands_by_window(stream: list[tuple[int, int]], window: int) -> list[list[int]]:
    """The rows of the commands of one channel's (row, bank) bursts, window by window, by the rules."""
    windows: list[list[int]] = []
    if window == 0:
        row, banks = -1, set[int]()
        for next_row, bank in stream:
            if next_row != row or bank in banks:  # a full command repeats a bank next
                windows.append([next_row])
                banks = set()
            row = next_row
            banks.add(bank)
        return windows
    for start in range(0, len(stream), window):
        piece = stream[start : start + window]
        rows = list(dict.fromkeys(row for row, _ in piece))
        carried = stream[start - 1][0] if start else -1
        rows.sort(key=lambda row: row != carried)  # stable: the others keep their order
        leaving = []
        for row in rows:
            leaving += [row] * max(Counter(bank for other, bank in piece if other == row).values())
        windows.append(leaving)
    return windows


@lru_cache(1000)
def clocked_lane(rows: tuple[int, ...], timing: Timing, depth: int) -> tuple[int, int]:
    """`clocked`, remembered: most lanes are alike."""
    return clocked(list(rows), timing, depth)


def time_streams(
    streams: list[list[tuple[int, int]]],
    window: int,
    timing: Timing,
    *,
    queue: int,
    per_pch: bool,
    per_command: int,
    repeat: int,
) -> tuple[int, int, int, int]:
    """(commands, misses, cycles, visits) of channels that see these (row, bank) bursts."""
    windows = [commands_by_window(stream, window) for stream in streams]
    commands = repeat * sum(len(rows) for of in windows for rows in of)
    misses = 0
    for stream, of in zip(streams, windows, strict=True):
        ends = [(stream[window * k - 1][0] if window else of[k - 1][0]) if k else -1 for k in range(len(of))]
        misses += sum(len(set(rows) - {end}) for rows, end in zip(of, ends, strict=True))

    lanes: list[list[int]] = []
    if per_command == 1 or len(streams) == 1:
        lanes = [[row for rows in of for row in rows for _ in range(1 + per_pch)] for of in windows]
    else:
        for one, other in zip(windows[::2], windows[1::2], strict=True):
            lane: list[int] = []
            for k in range(max(len(one), len(other))):
                a, b = (of[k] if k < len(of) else [] for of in (one, other))
                if per_pch:
                    for i in range(max(len(a), len(b))):
                        lane += a[i : i + 1] + b[i : i + 1]
                else:
                    for row in dict.fromkeys(a + b):
                        lane += [row] * max(a.count(row), b.count(row))
            lanes.append(lane)
    timed = [clocked_lane(tuple(row for row in lane for _ in range(repeat)), timing, queue) for lane in lanes]
    return commands, misses, max(cycles for cycles, _ in timed), sum(visits for _, visits in timed)
