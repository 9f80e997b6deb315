"""Ramulator 2: plain reads with pre-decoded addresses, its config, and the row hits it prints.

A trace line is one read, `R channel,pseudo-channel,stack id,bank group,bank,row,column`. No stock front end takes
such lines as they are; docs/validation.md says what the reader must do, and which names of the config are assumed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from pimkv.config import Config
from pimkv.errors import InvalidArgument, Problem
from pimkv.interop.reads import CHANNELS, EXACTLY, Reads, stream_problems
from pimkv.interop.statistics import counter

ROW_STATISTICS = ("row_hits", "row_misses", "row_conflicts")
UNSERVED = 39
"""Reads of a channel that may be left in its queues when the simulator stops with the last one accepted."""

_LINE = re.compile(r"R " + ",".join([r"([0-9]+)"] * 7))
_BANKS_PER_GROUP = EXACTLY["banks_per_group"]


@dataclass(frozen=True)
class RowCounts:
    """What reads found: their row open (hit), no row open (miss) or another row open (conflict)."""

    hits: int
    misses: int
    conflicts: int

    @property
    def reads(self) -> int:
        """Reads counted."""
        return self.hits + self.misses + self.conflicts

    @property
    def hit_rate(self) -> float:
        """Hits per read; 0 without reads."""
        return self.hits / self.reads if self.reads else 0.0


def problems(config: Config) -> list[Problem]:
    """What the simulator cannot be asked to run of this config."""
    found = stream_problems(config)
    if config.controller.refresh:
        message = (
            "row hits of plain reads are predicted without refresh, which closes rows; leave it out or off"
        )
        found.append(Problem("controller.refresh", True, message, flag="--refresh"))
    return found


def trace(reads: Reads) -> str:
    """The trace file of these reads, in their order."""
    columns = (
        reads.channel >> 1,
        reads.channel & 1,
        reads.bank // _BANKS_PER_GROUP,
        reads.bank % _BANKS_PER_GROUP,
        reads.row,
        reads.column,
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return "".join(f"R {ch},{pc},0,{bg},{ba},{row},{col}\n" for ch, pc, bg, ba, row, col in rows)


def read_trace(text: str) -> Reads:
    """The reads of a trace file; `InvalidArgument` names the line that is none."""
    places = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line.strip())
        if match is None or match[3] != "0":
            raise InvalidArgument(
                f"line {number} = {line!r}: must be R channel,pch,0,bank group,bank,row,column"
            )
        ch, pc, _, bg, ba, row, column = map(int, match.groups())
        places.append((2 * ch + pc, bg * _BANKS_PER_GROUP + ba, row, column))
    return Reads(*np.array(places, dtype=np.int64).reshape(-1, 4).T)


def count_rows(reads: Reads) -> RowCounts:
    """Hits, misses and conflicts of open rows, each bank served in order.

    FR-FCFS serves a bank's row visits in the same order, so it opens rows as often.
    """
    place = reads.channel * (EXACTLY["bank_groups"] * _BANKS_PER_GROUP) + reads.bank
    order = np.argsort(place, kind="stable")
    place, row = place[order], reads.row[order]
    same_bank = place[1:] == place[:-1]
    hits = int(np.count_nonzero(same_bank & (row[1:] == row[:-1])))
    misses = min(1, len(reads)) + int(np.count_nonzero(~same_bank))
    return RowCounts(hits, misses, len(reads) - hits - misses)


def simulator_config(trace_name: str) -> str:
    """The YAML config that runs a trace file of the same folder; row hits do not depend on its timing."""
    return f"""\
# Runs {trace_name} on Ramulator 2 with open rows and no refresh. The reader of pre-decoded addresses that it needs,
# and the names marked "assumed", are described in docs/validation.md.
Frontend:
  impl: ReadWriteTrace
  path: {trace_name}
  clock_ratio: 1

MemorySystem:
  impl: GenericDRAM
  clock_ratio: 1
  DRAM:
    impl: HBM3
    org:
      preset: HBM3_8Gb_8hi
      channel: {CHANNELS}
    timing:
      preset: HBM3_6.4Gbps
  Controller:
    impl: Generic
    Scheduler:
      impl: FRFCFS
    RefreshManager:
      impl: NoRefresh  # assumed
    RowPolicy:
      impl: OpenRowPolicy  # assumed
    plugins:
  AddrMapper:
    impl: RoBaRaCoCh  # has to be named, must not be applied
"""


def rows_of(output: str) -> RowCounts | None:
    """The row counts that the simulator printed, over all its controllers; None if one is missing."""
    hits, misses, conflicts = (counter(output, name) for name in ROW_STATISTICS)
    if hits is None or misses is None or conflicts is None:
        return None
    return RowCounts(hits, misses, conflicts)
