"""AttAcc's Ramulator 2 extension: PIM_MAC_AB traces, its config, and the cycles it prints.

A trace line is one all-bank MAC with a linear HBM3-PIM address. The commands of a block table are grouped here
from the bursts alone, and not by the scorer; docs/model.md states the rules, docs/validation.md which of the
config's names are assumed. A column is that of the command's burst in its row's fullest bank; no timing depends
on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

import numpy as np

from pimkv import timing
from pimkv.config import Config, command_repeat, geometry, timing_of
from pimkv.errors import InvalidArgument, Problem
from pimkv.interop.reads import CHANNELS, Reads, Table, reads_of, stream_problems
from pimkv.interop.statistics import counter
from pimkv.wording import choose_from, did_you_mean, nearest

FIELDS = {
    "channel": 4,
    "pseudo_channel": 1,
    "rank": 1,
    "bank_group": 2,
    "bank": 2,
    "row": 14,
    "column": 5,
}
"""Bits of each field of an address, most significant first; below them are the bytes of a burst."""

OFFSET_BITS = 5
QUEUE = 33  # commands that its controller holds per channel
CYCLES = "memory_system_cycles"
"""The statistic to compare: the clock of the last command, in tCK of the preset."""

_MNEMONIC = "PIM_MAC_AB"
_LINE = re.compile(rf"{_MNEMONIC} (0x[0-9a-fA-F]+)")


class Mac(NamedTuple):
    """One all-bank MAC: on a channel of two pseudo-channels, issued for one of them."""

    channel: int
    pseudo_channel: int
    row: int
    column: int


Window = dict[int, Sequence[int]]
"""The commands of one pseudo-channel that leave together: each row's, as their columns, in order of leaving."""


def problems(config: Config) -> list[Problem]:
    """What the simulator cannot be asked to run of this config."""
    found = stream_problems(config)
    if config.dram.pch_per_command != 2:
        message = "AttAcc's all-bank MAC acts on both pseudo-channels of a channel: must be 2"
        found.append(Problem("dram.pch_per_command", config.dram.pch_per_command, message))
    chosen, known = timing_of(config), _presets()
    if known.get(chosen.name) != chosen:
        message = f"AttAcc's simulator has no such preset; {choose_from(list(known))}"
        hint = did_you_mean(nearest(chosen.name, known))
        field = "controller.timing" if config.controller.timing else "dram.timing"
        found.append(Problem(field, chosen.name, message, hint, "--timing"))
    if config.controller.queue != QUEUE:
        message = f"AttAcc's controller holds {QUEUE} commands per channel; must be {QUEUE}"
        found.append(Problem("controller.queue", config.controller.queue, message, flag="--queue"))
    if config.controller.mac_stride != 1:
        message = "a trace cannot ask for more than one activation of a row visit; must be 1"
        found.append(Problem("controller.mac_stride", config.controller.mac_stride, message))
    return found


def _presets() -> dict[str, timing.Timing]:
    return {name: preset for name, preset in timing.presets().items() if name.startswith("attacc-")}


def simulator_preset(name: str) -> str:
    """The simulator's name of one of our timing presets: attacc-hbm3-5.2-npc is HBM3_5.2Gbps_NPC."""
    _, _, rest = name.partition("attacc-hbm3-")
    rate, _, variant = rest.partition("-")
    return f"HBM3_{rate}Gbps" + (f"_{variant.upper()}" if variant else "")


# ---- block table -> commands ----


def stream(table: Table, config: Config) -> list[Mac]:
    """The commands that read the sequence once, in trace order: command i of channel 0, of channel 1, and so on.

    `controller.feed` decides what a channel gets: one command for both its pseudo-channels (`paired`, issued
    for 0), or one for each, 0 first (`per-pch`).
    """
    windows = _windows(reads_of(table, config), config)
    merge = _per_pch if config.controller.feed == "per-pch" else _paired
    repeat = command_repeat(config)
    channels = []
    for channel in range(0, len(windows), 2):
        first = windows[channel]
        # A device of one pseudo-channel still issues for both: the other would see the same.
        second = windows[channel + 1] if channel + 1 < len(windows) else first
        steps = zip_longest(first, second, fillvalue=Window())
        once = chain.from_iterable(merge(*step, channel // 2) for step in steps)
        channels.append([mac for mac in once for _ in range(repeat)])
    return [mac for macs in zip_longest(*channels) for mac in macs if mac is not None]


def _windows(reads: Reads, config: Config) -> list[list[Window]]:
    """The windows of every pseudo-channel."""
    size = config.scoring.window if config.scoring.coalesce == "window" else 0
    # Under most maps all channels see the same bursts.
    known: dict[bytes, list[Window]] = {}
    windows = []
    for channel in range(geometry(config).channels):
        mine = reads.channel == channel
        bursts = np.column_stack([reads.bank[mine], reads.row[mine], reads.column[mine]])
        key = bursts.tobytes()
        if key not in known:
            group = _in_windows(bursts.tolist(), size) if size else _in_order(bursts.tolist())
            known[key] = list(group)
        windows.append(known[key])
    return windows


def _in_windows(bursts: list[list[int]], size: int) -> Iterator[Window]:
    """Windows of `size` bursts. A row needs as many commands as its fullest bank has bursts; the row that the
    window before left open comes first, the others by their first burst."""
    carried = -1
    for start in range(0, len(bursts), size):
        window = bursts[start : start + size]
        rows: dict[int, dict[int, list[int]]] = {}
        for bank, row, column in window:
            rows.setdefault(row, {}).setdefault(bank, []).append(column)
        fullest = {row: max(banks.values(), key=len) for row, banks in rows.items()}
        yield {row: fullest[row] for row in sorted(fullest, key=lambda row: row != carried)}
        carried = window[-1][1]


def _in_order(bursts: list[list[int]]) -> Iterator[Window]:
    """One command at a time: it closes when the row changes or a bank repeats."""
    banks: set[int] = set()
    open_row, first_column = -1, 0
    for bank, row, column in bursts:
        if banks and (row != open_row or bank in banks):
            yield {open_row: [first_column]}
            banks.clear()
        if not banks:
            open_row, first_column = row, column
        banks.add(bank)
    if banks:
        yield {open_row: [first_column]}


def _paired(first: Window, second: Window, channel: int) -> Iterator[Mac]:
    """A command acts on both: the larger count of each row, rows of the first pseudo-channel first."""
    merged = dict(first)
    for row, columns in second.items():
        if len(columns) > len(merged.get(row, ())):
            merged[row] = columns
    return (Mac(channel, 0, row, column) for row, columns in merged.items() for column in columns)


def _per_pch(first: Window, second: Window, channel: int) -> Iterator[Mac]:
    """The commands of both one by one in turn."""
    sides = [
        [Mac(channel, side, row, column) for row, columns in window.items() for column in columns]
        for side, window in enumerate((first, second))
    ]
    return (mac for pair in zip_longest(*sides) for mac in pair if mac is not None)


# ---- commands <-> text ----


def encode(**fields: int) -> int:
    """The linear byte address of these fields (see `FIELDS`); a field left out is 0.

    Raises `InvalidArgument` naming a field that does not exist or a value that does not fit it.
    """
    for name in fields:
        if name not in FIELDS:
            hint = did_you_mean(nearest(name, FIELDS))
            raise InvalidArgument(
                f"{name}: no such field; {choose_from(list(FIELDS))}" + (f"; {hint}" if hint else "")
            )
    address = 0
    for name, bits in FIELDS.items():
        value = fields.get(name, 0)
        if not 0 <= value < 1 << bits:
            raise InvalidArgument(f"{name} = {value}: must be between 0 and {(1 << bits) - 1}")
        address = address << bits | value
    return address << OFFSET_BITS


def decode(address: int) -> dict[str, int]:
    """The fields of a linear byte address; `InvalidArgument` for one outside the stack."""
    most = 1 << (sum(FIELDS.values()) + OFFSET_BITS)
    if not 0 <= address < most:
        raise InvalidArgument(f"address = {address:#x}: must be between 0 and {most - 1:#x}")
    rest = address >> OFFSET_BITS
    fields = {}
    for name, bits in reversed(FIELDS.items()):
        fields[name] = rest & ((1 << bits) - 1)
        rest >>= bits
    return fields


def trace(macs: Iterable[Mac]) -> str:
    """The trace file of these commands."""
    return "".join(f"{_MNEMONIC} {encode(**mac._asdict()):#x}\n" for mac in macs)


def read_trace(text: str) -> list[Mac]:
    """The commands of a trace file; `InvalidArgument` names the line that is none."""
    macs = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise InvalidArgument(f"line {number} = {line!r}: must be {_MNEMONIC} and a hexadecimal address")
        fields = decode(int(match[1], 16))
        macs.append(Mac(*(fields[name] for name in Mac._fields)))
    return macs


def rows(macs: Sequence[Mac]) -> list[tuple[int, int]]:
    """The commands as `pimkv.Controller.run` takes them: (channel, row) each, to be run `paired`."""
    return [(mac.channel, mac.row) for mac in macs]


# ---- config and statistics ----


def simulator_config(trace_name: str, config: Config, *, refresh: bool) -> str:
    """The YAML config that runs a trace file of the same folder."""
    capacity = 1 << (sum(FIELDS.values()) + OFFSET_BITS)
    return f"""\
# Runs {trace_name} on AttAcc's extension of Ramulator 2. Names marked "assumed" are listed in docs/validation.md.
Frontend:
  impl: PIMLoadStoreTrace  # assumed
  path: {trace_name}
  clock_ratio: 1
  Translation:
    impl: NoTranslation
    max_addr: {capacity}

MemorySystem:
  impl: PIMDRAM  # assumed
  clock_ratio: 1
  DRAM:
    impl: HBM3-PIM  # assumed
    org:
      preset: HBM3_8Gb_2R  # assumed
      channel: {CHANNELS}
    timing:
      preset: {simulator_preset(timing_of(config).name)}
  Controller:
    impl: HBM3-PIM  # assumed
    Scheduler:
      impl: PIM  # assumed
    RefreshManager:
      impl: {"AllBankHBM3" if refresh else '"No"'}  # assumed
    plugins:
  AddrMapper:
    impl: HBM3-PIM  # assumed
"""


def cycles_of(output: str) -> int | None:
    """The cycles that the simulator printed; None if it printed none."""
    return counter(output, CYCLES)
