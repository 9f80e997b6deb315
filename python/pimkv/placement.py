"""Which block holds what, step by step: recorded from a run, written as a file, read back as arrays.

`pimkv run --record-placement FILE` writes one, `read_placement` reads it. The file holds what changed from one
recorded step to the next; its format is described in docs/formats.md.
"""

from __future__ import annotations

import json
import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pimkv.backend import BlockManager, Ints
from pimkv.config import Config, geometry
from pimkv.errors import ConfigError, LogError, Problem
from pimkv.result import resolved, write_file
from pimkv.wording import config_error

MAGIC = b"PIMKVPLC"
VERSION = 1
HEADER = struct.Struct("<8sIIIIII QQ II I")
"""Magic, version, header bytes, blocks, blocks per region, tokens per block, every; frames, records;
bytes and CRC-32 of the description; a zero. The CRC-32 of these 60 bytes follows."""

HEADER_BYTES = HEADER.size + 4
CHUNK = 4096
"""Records under one checksum."""

DTYPE = np.dtype([("kind", "<u4"), ("sequence", "<u4"), ("index", "<u4"), ("value", "<u4")])
"""A record as the file holds it."""

STEP, LEAVE, TOKENS, BLOCK = range(4)
"""Kinds of records: a recorded step begins; a sequence runs no more; its tokens; one entry of its table."""

TABLE = np.dtype([("block", "i8"), ("sequence", "i8"), ("index", "i8"), ("tokens", "i8")])
"""What one block holds for one sequence: `index` is the logical block, `tokens` how many of them are in it."""

Records = npt.NDArray[np.void]


class Recorder:
    """Records the block tables of the running sequences; `step` goes to `Simulation.run` as `on_step`.

    Every `every`-th decode step is recorded, the first included. Raises `ConfigError` for an allocator that has
    no blocks (`neupims`).
    """

    def __init__(self, config: Config, pool_blocks: int, every: int = 1) -> None:
        problem = every_problem(every)
        if problem:
            raise config_error([problem])
        shape = geometry(config)
        if shape.row_groups:
            # Its tables list row groups of K and of V pages; no block of theirs holds some tokens of a sequence.
            kind = config.allocator.kind
            message = (
                f"owns row groups of one channel, which are no blocks of a row map; {kind} cannot be recorded"
            )
            raise config_error([Problem("allocator.kind", kind, message, flag="--allocator")])
        self._config = config
        self._head = (pool_blocks, shape.blocks_per_region, shape.block_tokens, every)
        self._every = every
        self._seen = 0
        self._frames = 0
        self._last_step = 0
        self._known: dict[int, tuple[int, Ints]] = {}
        self._words: list[int] = []
        self._done: list[bytes] = []

    def step(self, step: int, seqs: Ints, manager: BlockManager) -> None:
        """Sees one decode step, between decode and release."""
        self._seen += 1
        if (self._seen - 1) % self._every:
            return
        words = self._words
        words += (STEP, len(seqs), step & 0xFFFFFFFF, step >> 32)
        running = sorted(seqs.tolist())
        for seq in sorted(self._known.keys() - set(running)):
            words += (LEAVE, seq, 0, 0)
            del self._known[seq]
        for seq in running:
            tokens, table = manager.length(seq), manager.table(seq)
            before, old = self._known.get(seq, (0, table[:0]))
            if seq not in self._known or tokens != before + step - self._last_step:
                words += (TOKENS, seq, tokens & 0xFFFFFFFF, tokens >> 32)
            both = min(len(old), len(table))
            changed = np.flatnonzero(old[:both] != table[:both]).tolist()
            for index in (*changed, *range(both, len(table))):
                words += (BLOCK, seq, index, int(table[index]))
            self._known[seq] = (tokens, table)
        self._frames += 1
        self._last_step = step
        if len(words) > 1 << 16:
            self._flush()

    def _flush(self) -> None:
        # A list of Python numbers is some ten times as large as the bytes.
        self._done.append(np.array(self._words, dtype="<u4").tobytes())
        self._words.clear()

    def to_bytes(self) -> bytes:
        """The file: equal runs give equal bytes."""
        self._flush()
        body = b"".join(self._done)
        told = {"config": resolved(self._config), "versions": {"pimkv": version("pimkv")}}
        description = json.dumps(told, sort_keys=True, allow_nan=False).encode()
        records = len(body) // DTYPE.itemsize
        counts = (self._frames, records, len(description), zlib.crc32(description), 0)
        head = HEADER.pack(MAGIC, VERSION, HEADER_BYTES, *self._head, *counts)
        return b"".join((head, _crc(head), description, body, _checksums(body)))

    def write(self, path: str | Path) -> None:
        """Writes the file: whole or not at all."""
        try:
            write_file(Path(path), self.to_bytes())
        except OSError as error:
            flag = "--record-placement"
            raise config_error([Problem("placement", str(path), error.strerror or "", flag=flag)]) from error


def every_problem(every: object) -> Problem | None:
    """What is wrong with a distance between recorded steps."""
    if isinstance(every, int) and not isinstance(every, bool) and 1 <= every < 2**32:
        return None
    return Problem("every", every, "must be an integer from 1 to 4294967295", flag="--record-every")


@dataclass(frozen=True)
class Placement:
    """A recorded placement. Blocks are numbered 0 to `blocks` - 1; block b is slot b % `blocks_per_region` of
    region b // `blocks_per_region`. A block that no running sequence holds is in no table."""

    config: dict[str, Any]
    """The resolved config of the run, as in `summary.json`."""

    versions: dict[str, str]
    blocks: int
    blocks_per_region: int
    block_tokens: int
    every: int
    steps: Ints
    """(frames,) the recorded decode steps, ascending."""

    records: Records
    """(records,) the changes as the file holds them, of `DTYPE`."""

    def frames(self) -> Iterator[tuple[int, Records]]:
        """(step, table) for each recorded step: table is an array of `TABLE`, by block, then sequence."""
        for step, running in _replay(self.records, self.blocks, self.block_tokens, 0):
            yield step, _table(running, self.block_tokens)

    def at(self, step: int) -> Records:
        """The table of one recorded step; `ConfigError` names the nearest one if this is not recorded."""
        at = bisect_left(self.steps, step)
        if at == len(self.steps) or self.steps[at] != step:
            near = sorted({int(self.steps[i]) for i in (at - 1, at) if 0 <= i < len(self.steps)})
            hint = f"; nearest {' or '.join(map(str, near))}" if near else "; the file holds no step"
            raise ConfigError(f"step = {step}: not recorded{hint}")
        replayed = _replay(self.records, self.blocks, self.block_tokens, 0)
        return next(_table(running, self.block_tokens) for found, running in replayed if found == step)


def read_placement(path: str | Path) -> Placement:
    """The placement in a file. `LogError` names the file and the offset of what is wrong with it.

    A file is checked as a whole: sizes, checksums, and that its records can follow one another.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}") from error
    try:
        return _parsed(data)
    except LogError as error:
        raise LogError(f"{path}: {error}") from error


def _parsed(data: bytes) -> Placement:
    if data[:8] != MAGIC[: len(data)] or not data:
        raise _wrong(0, "this is not a recorded placement (pimkv run --record-placement FILE)")
    if len(data) < HEADER_BYTES:
        raise _wrong(len(data), f"the file ends here; its header has {HEADER_BYTES} bytes")
    head = data[: HEADER.size]
    (_, number, head_bytes, blocks, per_region, block_tokens, every, frames, count, told, told_crc, zero) = (
        HEADER.unpack(head)
    )
    if number != VERSION or head_bytes != HEADER_BYTES:
        raise _wrong(8, f"version {number} of the format; this pimkv reads version {VERSION}")
    if data[HEADER.size : HEADER_BYTES] != _crc(head):
        raise _wrong(HEADER.size, "the header is damaged: its checksum differs")
    if not (blocks and per_region and block_tokens and every) or zero:
        raise _wrong(16, "the header says what cannot be: a size of 0, or no 0 at its end")
    begin = HEADER_BYTES + told
    sums = begin + count * DTYPE.itemsize
    size = sums + 4 * -(-count // CHUNK)
    if len(data) != size:
        what = "the file ends here" if len(data) < size else "the file goes on"
        raise _wrong(min(len(data), size), f"{what}; its header says {size:,} bytes")
    description = data[HEADER_BYTES:begin]
    if zlib.crc32(description) != told_crc:
        raise _wrong(HEADER_BYTES, "the description is damaged: its checksum differs")
    body = data[begin:sums]
    for chunk, offset in enumerate(range(0, len(body), CHUNK * DTYPE.itemsize)):
        part = body[offset : offset + CHUNK * DTYPE.itemsize]
        if _crc(part) != data[sums + 4 * chunk : sums + 4 * chunk + 4]:
            last = chunk * CHUNK + len(part) // DTYPE.itemsize - 1
            raise _wrong(
                begin + offset, f"records {chunk * CHUNK} to {last} are damaged: their checksum differs"
            )
    try:
        meaning = json.loads(description)
        config, versions = dict(meaning["config"]), dict(meaning["versions"])
    except (ValueError, KeyError, TypeError) as error:
        raise _wrong(HEADER_BYTES, "the description is not a JSON object with config and versions") from error
    records: Records = np.frombuffer(body, dtype=DTYPE)
    steps = np.array([step for step, _ in _replay(records, blocks, block_tokens, begin)], dtype=np.int64)
    if len(steps) != frames:
        raise _wrong(32, f"the header says {frames} recorded steps; there are {len(steps)}")
    return Placement(config, versions, blocks, per_region, block_tokens, every, steps, records)


_Running = dict[int, tuple[int, list[int]]]


def _replay(records: Records, blocks: int, block_tokens: int, begin: int) -> Iterator[tuple[int, _Running]]:
    """(step, sequence -> (tokens, blocks)) per recorded step; the dict is the replay's own and changes.

    `begin` is the offset of the first record, for messages.
    """
    starts = np.flatnonzero(records["kind"] == STEP).tolist()
    if len(records) and starts[:1] != [0]:
        raise _wrong(begin, "the first record must begin a step")
    running: _Running = {}
    last = -1
    for start, end in pairwise([*starts, len(records)]):
        (_, count, low, high), *changes = records[start:end].tolist()
        at = begin + start * DTYPE.itemsize
        step = low | high << 32
        if step <= last:
            raise _wrong(at, f"step {step} after step {last}")
        if last >= 0:
            running = {seq: (tokens + step - last, table) for seq, (tokens, table) in running.items()}
        for number, change in enumerate(changes, 1):
            wrong = _apply(running, change, blocks)
            if wrong:
                raise _wrong(at + number * DTYPE.itemsize, wrong)
        if len(running) != count:
            raise _wrong(at, f"step {step} says {count} running sequences; there are {len(running)}")
        for seq, (tokens, table) in running.items():
            held = -(-tokens // block_tokens)
            if len(table) < held or tokens < 1:
                raise _wrong(at, f"step {step}: sequence {seq} has {tokens} tokens and {len(table)} blocks")
            del table[held:]
        yield step, running
        last = step


def _apply(running: _Running, change: tuple[int, int, int, int], blocks: int) -> str:
    """Applies one record; says what is wrong with it, if anything is."""
    kind, seq, index, value = change
    if kind not in (LEAVE, TOKENS, BLOCK):
        return f"there is no record of kind {kind}"
    if kind == TOKENS:
        running[seq] = (index | value << 32, running[seq][1] if seq in running else [])
        return ""
    if seq not in running:
        return f"sequence {seq} is not running"
    table = running[seq][1]
    if kind == LEAVE:
        del running[seq]
    elif value >= blocks:
        return f"block {value}: the pool has {blocks}"
    elif index > len(table):
        return f"entry {index} of sequence {seq}, whose table has {len(table)}"
    else:
        table[index : index + 1] = [value]
    return ""


def _table(running: _Running, block_tokens: int) -> Records:
    """One recorded step as an array of `TABLE`."""
    lengths = np.array([len(table) for _, table in running.values()], dtype=np.int64)
    table = np.empty(int(lengths.sum()), dtype=TABLE)
    table["block"] = [block for _, blocks in running.values() for block in blocks]
    table["sequence"] = np.repeat(np.array(list(running), dtype=np.int64), lengths)
    table["index"] = np.concatenate([np.arange(n) for n in lengths.tolist()]) if len(lengths) else []
    tokens = np.repeat(np.array([n for n, _ in running.values()], dtype=np.int64), lengths)
    table["tokens"] = np.minimum(block_tokens, tokens - table["index"] * block_tokens)
    return table[np.lexsort((table["sequence"], table["block"]))]


def _crc(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "little")


def _checksums(body: bytes) -> bytes:
    size = CHUNK * DTYPE.itemsize
    return b"".join(_crc(body[i : i + size]) for i in range(0, len(body), size))


def _wrong(offset: int, what: str) -> LogError:
    return LogError(f"placement, offset {offset}: {what}")
