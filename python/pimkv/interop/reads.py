"""A sequence's KV cache on an HBM3 stack: the bursts that reading it once takes, in token order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pimkv.backend import AddressMap, Ints, choose
from pimkv.config import Config, explicit_map, geometry, passes_of
from pimkv.errors import Problem
from pimkv.row_groups import owns_row_groups
from pimkv.wording import choose_from

# What both simulators model: fixed by the standard, and the most that fits.
EXACTLY = {"bank_groups": 4, "banks_per_group": 4, "row_bytes": 1024, "burst_bytes": 32}
CHANNELS = 16  # of a stack, each of two pseudo-channels
MOST_ROWS = 2**14


@dataclass(frozen=True)
class Table:
    """The block table of one running sequence as a decode step left it."""

    sequence: int
    tokens: int
    blocks: Ints


@dataclass(frozen=True)
class Reads:
    """Bursts in the order they are read, a column each; `channel` counts pseudo-channels, `bank` is flat."""

    channel: Ints
    bank: Ints
    row: Ints
    column: Ints

    def __len__(self) -> int:
        return len(self.row)


def stream_problems(config: Config) -> list[Problem]:
    """What of the config is no stream of merged tokens on HBM3 as the simulators have it."""
    problems = []
    if owns_row_groups(config):
        message = "its pages follow no address map, and an export does; choose another allocator"
        problems.append(Problem("allocator.kind", config.allocator.kind, message))
    for name, value in EXACTLY.items():
        given = getattr(config.dram, name)
        if given != value:
            problems.append(Problem(f"dram.{name}", given, f"the simulator's HBM3 has {value}"))
    channels = geometry(config).channels
    if channels > 2 * CHANNELS:
        message = (
            f"one shard has {channels} pseudo-channels, the simulator's HBM3 stack has {2 * CHANNELS}; "
            f"at most {2 * CHANNELS * config.layout.kv_shards}"
        )
        problems.append(Problem("dram.channels", config.dram.channels, message))
    if config.dram.rows > MOST_ROWS:
        message = f"a row number must fit the 14 bits of an address; at most {MOST_ROWS}"
        problems.append(Problem("dram.rows", config.dram.rows, message))
    for name, given, taken in (
        ("kv_layout", config.layout.kv_layout, ("merged-token", "published-split")),
        ("passes", passes_of(config), (1,)),
        ("traversal", config.layout.traversal, ("token",)),
    ):
        if given not in taken:
            message = f"an export reads tokens whole, once and in order; {choose_from(taken)}"
            problems.append(Problem(f"layout.{name}", given, message))
    return problems


def reads_of(table: Table, config: Config) -> Reads:
    """The bursts of the sequence's tokens, first to last."""
    shape = geometry(config)
    # Whole blocks fill a unit, which may be a region with an empty rest.
    unit, place = np.divmod(table.blocks, shape.unit.blocks)
    first = (unit * shape.unit.bytes + place * shape.block_bytes) // shape.burst_bytes
    bursts = first[:, None] + np.arange(shape.block_bytes // shape.burst_bytes, dtype=np.int64)
    used = table.tokens * (shape.token_bytes // shape.burst_bytes)
    return Reads(*_address_map(config).decode(bursts.reshape(-1)[:used]))


def _address_map(config: Config) -> AddressMap:
    shape = geometry(config)
    return choose("rust").address_map(
        explicit_map(config),
        channels=shape.channels,
        bank_groups=shape.bank_groups,
        banks_per_group=shape.banks_per_group,
        rows=shape.rows,
        row_bytes=shape.row_bytes,
        burst_bytes=shape.burst_bytes,
    )
