"""Recorded placements: what a run wrote is what its block manager held, and a damaged file is refused by offset."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

import pimkv
from pimkv.allocators import kinds
from pimkv.cli import main
from pimkv.config import load
from pimkv.errors import ConfigError, LogError
from pimkv.placement import BLOCK, CHUNK, DTYPE, HEADER, HEADER_BYTES, LEAVE, STEP, TOKENS, Recorder
from pimkv.simulation import Simulation

Held = list[tuple[int, int, int, int]]


def config(allocator: str, workload: str = "steady", **scheduler: Any) -> pimkv.Config:
    return load({
        "workload": {"kind": workload, "requests": 60},
        "allocator": {"kind": allocator},
        "scheduler": scheduler,
    })  # fmt: skip


def recorded(asked: pimkv.Config, path: Path, every: int = 1, backend: str = "rust") -> dict[int, Held]:
    """Records a run to `path`; what the block manager held at each recorded step, taken apart from it."""
    run = Simulation(asked, backend=backend)
    recorder = Recorder(asked, run.pool_blocks, every)
    seen: dict[int, Held] = {}

    def look(step: int, seqs: Any, manager: Any) -> None:
        recorder.step(step, seqs, manager)
        held = []
        for seq in seqs.tolist():
            for index, block in enumerate(manager.table(seq).tolist()):
                held.append((block, seq, index, min(16, manager.length(seq) - 16 * index)))
        seen[step] = sorted(held)

    run.run(on_step=look)
    recorder.write(path)
    return {step: held for i, (step, held) in enumerate(seen.items()) if i % every == 0}


CASES = [
    ("paged", "steady", {}, 1),
    ("pim-aware", "spec", {"headroom": 0.6, "admission": "vllm"}, 1),
    ("pim-gather", "steady", {"headroom": 0.5, "admission": "vllm"}, 7),
    ("paged", "steady", {"headroom": 0.4, "admission": "vllm"}, 40),
    ("contiguous", "spec", {}, 3),
    ("pim-aware", "prefix", {}, 1),
]


@pytest.mark.parametrize(("allocator", "workload", "scheduler", "every"), CASES)
def test_a_placement_reads_as_the_tables_were(
    tmp_path: Path, allocator: str, workload: str, scheduler: dict[str, Any], every: int
) -> None:
    path = tmp_path / "run.placement"
    asked = config(allocator, workload, **scheduler)
    held = recorded(asked, path, every)
    read = pimkv.read_placement(path)
    assert read.steps.tolist() == list(held) and len(held) > 10
    assert {step: table.tolist() for step, table in read.frames()} == held
    assert (read.blocks_per_region, read.block_tokens, read.every) == (8, 16, every)
    assert read.config["allocator"]["kind"] == allocator
    some = list(held)[len(held) // 2]
    assert read.at(some).tolist() == held[some]
    if allocator == "pim-gather":
        moved = read.records[read.records["kind"] == BLOCK]
        assert len(moved) > len(np.unique(moved[["sequence", "index"]])), "no block has moved"
    if workload == "prefix":
        blocks = read.at(some)["block"].tolist()
        assert len(set(blocks)) < len(blocks), "no block is shared"


def test_both_backends_and_every_run_write_the_same_bytes(tmp_path: Path) -> None:
    asked = config("pim-aware", "spec")
    for name, backend in (("a", "rust"), ("b", "rust"), ("c", "reference")):
        recorded(asked, tmp_path / name, 2, backend)
    files = [(tmp_path / name).read_bytes() for name in "abc"]
    assert files[0] == files[1] == files[2]


def test_a_step_that_was_not_recorded_is_refused_with_the_nearest(tmp_path: Path) -> None:
    held = recorded(config("paged"), tmp_path / "p", 10)
    first, second = list(held)[:2]
    read = pimkv.read_placement(tmp_path / "p")
    with pytest.raises(ConfigError, match=rf"step = {first + 1}: not recorded; nearest {first} or {second}"):
        read.at(first + 1)


def _cli(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def test_recording_changes_no_result(tmp_path: Path) -> None:
    for name, more in (("plain", ()), ("recorded", ("--record-placement", str(tmp_path / "p")))):
        done = _cli("run", "--requests", "20", "--out", str(tmp_path / name), *more)
        assert done.exit_code == 0, done.stderr
    for file in ("config.toml", "summary.json", "samples.csv"):
        assert (tmp_path / "plain" / file).read_bytes() == (tmp_path / "recorded" / file).read_bytes()
    assert len(pimkv.read_placement(tmp_path / "p").steps) > 100


@pytest.mark.parametrize("kind", kinds())
def test_what_any_allocator_records_can_be_read_or_is_refused_before_the_run(
    kind: str, tmp_path: Path
) -> None:
    """Row groups of K and V pages are no blocks that hold some tokens; such a file could not be read back."""
    done = _cli("run", "--requests", "15", "--allocator", kind, "--record-placement", str(tmp_path / "p"))
    if kind == "neupims":
        assert done.exit_code == 2 and done.stdout == "" and not (tmp_path / "p").exists()
        assert 'allocator.kind = "neupims" (--allocator): owns row groups' in done.stderr
    else:
        assert done.exit_code == 0, done.stderr
        read = pimkv.read_placement(tmp_path / "p")
        assert all(len(table) for _, table in read.frames()) and len(read.steps) > 100


def test_mistakes_of_the_options_come_in_one_report_with_those_of_the_config(tmp_path: Path) -> None:
    where = str(tmp_path / "no" / "p")
    refused = _cli("run", "--record-placement", where, "--record-every", "0", "--max-batch", "-1")
    assert refused.exit_code == 2 and refused.stdout == ""
    assert "3 mistakes" in refused.stderr
    assert "every = 0 (--record-every): must be an integer from 1" in refused.stderr
    assert "(--record-placement): its folder does not exist" in refused.stderr
    assert "--max-batch" in refused.stderr
    alone = _cli("run", "--record-every", "5")
    assert alone.exit_code == 2 and "(--record-every): goes with --record-placement FILE" in alone.stderr


@pytest.fixture
def file(tmp_path: Path) -> Path:
    recorded(config("pim-gather", headroom=0.5, admission="vllm"), tmp_path / "run.placement", 2)
    return tmp_path / "run.placement"


def _refused(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(LogError) as caught:
        pimkv.read_placement(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: placement, offset ")
    return message.partition(": placement, ")[2]


def test_a_file_that_was_cut_damaged_or_is_foreign_is_refused(file: Path) -> None:
    data = file.read_bytes()
    begin = HEADER_BYTES + int.from_bytes(data[48:52], "little")
    assert _refused(file, b"") == _refused(file, b"a,b\n" * 50)
    assert _refused(file, data[:5]).startswith("offset 5: the file ends here; its header has 64 bytes")
    assert (
        _refused(file, data[:2000]) == f"offset 2000: the file ends here; its header says {len(data):,} bytes"
    )
    assert _refused(file, data + b"x").startswith(f"offset {len(data)}: the file goes on")
    assert _refused(file, data[:8] + b"\2" + data[9:]).startswith("offset 8: version 2 of the format")
    assert _refused(file, data[:17] + b"\7" + data[18:]).startswith("offset 60: the header is damaged")
    assert _refused(file, data[:70] + b"\0" + data[71:]).startswith("offset 64: the description is damaged")
    spoiled = bytearray(data)
    spoiled[begin + 3 * DTYPE.itemsize] ^= 4
    assert _refused(file, bytes(spoiled)).startswith(f"offset {begin}: records 0 to ")


@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_flipped_bit_goes_unnoticed(tmp_path_factory: pytest.TempPathFactory, at: float, bit: int) -> None:
    path = tmp_path_factory.getbasetemp() / "flipped.placement"
    data = bytearray(_small())
    data[int(at * len(data))] ^= 1 << bit
    _refused(path, bytes(data))


def _small() -> bytes:
    asked = load({"workload": {"requests": 3}})
    run = Simulation(asked)
    recorder = Recorder(asked, run.pool_blocks)
    run.run(on_step=recorder.step)
    return recorder.to_bytes()


def _file(*records: tuple[int, int, int, int], frames: int) -> bytes:
    """A file of these records that is sound but for what they say: pool of 10 blocks, 4 tokens each."""
    told = b'{"config": {}, "versions": {}}'
    body = np.array(list(records), dtype=DTYPE).tobytes()
    counts = (frames, len(records), len(told), zlib.crc32(told), 0)
    head = HEADER.pack(b"PIMKVPLC", 1, HEADER_BYTES, 10, 2, 4, 1, *counts)
    assert len(records) <= CHUNK
    parts = (head, zlib.crc32(head).to_bytes(4, "little"), told, body, zlib.crc32(body).to_bytes(4, "little"))
    return b"".join(parts)


START = ((STEP, 1, 7, 0), (TOKENS, 3, 5, 0), (BLOCK, 3, 0, 9), (BLOCK, 3, 1, 4))


def test_made_up_records_read_as_they_mean(tmp_path: Path) -> None:
    path = tmp_path / "p"
    # Four steps later nine tokens need a third block; then the sequence has gone and another has come.
    path.write_bytes(
        _file(
            *START,
            *((STEP, 1, 11, 0), (BLOCK, 3, 2, 0), (BLOCK, 3, 0, 1)),
            *((STEP, 1, 12, 1), (LEAVE, 3, 0, 0), (TOKENS, 4, 1, 0), (BLOCK, 4, 0, 9)),
            frames=3,
        )
    )
    frames = [(step, table.tolist()) for step, table in pimkv.read_placement(path).frames()]
    assert frames == [
        (7, [(4, 3, 1, 1), (9, 3, 0, 4)]),
        (11, [(0, 3, 2, 1), (1, 3, 0, 4), (4, 3, 1, 4)]),
        (12 + 2**32, [(9, 4, 0, 1)]),
    ]


def test_a_run_without_a_decode_step_reads_as_none(tmp_path: Path) -> None:
    recorder = Recorder(load({}), 8)
    recorder.write(tmp_path / "p")
    read = pimkv.read_placement(tmp_path / "p")
    assert len(read.steps) == 0 and list(read.frames()) == []
    with pytest.raises(ConfigError, match="step = 0: not recorded; the file holds no step"):
        read.at(0)


@pytest.mark.parametrize(
    ("records", "at", "what"),
    [
        (START[1:], 0, "the first record must begin a step"),
        ((*START, (9, 0, 0, 0)), 4, "there is no record of kind 9"),
        ((*START, (BLOCK, 5, 0, 1)), 4, "sequence 5 is not running"),
        ((*START, (LEAVE, 5, 0, 0)), 4, "sequence 5 is not running"),
        ((*START, (BLOCK, 3, 0, 10)), 4, "block 10: the pool has 10"),
        ((*START, (BLOCK, 3, 3, 1)), 4, "entry 3 of sequence 3, whose table has 2"),
        ((*START, (STEP, 1, 7, 0)), 4, "step 7 after step 7"),
        ((*START, (STEP, 2, 8, 0)), 4, "step 8 says 2 running sequences; there are 1"),
        ((*START, (STEP, 1, 12, 0)), 4, "step 12: sequence 3 has 10 tokens and 2 blocks"),
    ],
)
def test_records_that_cannot_follow_one_another_are_refused(
    tmp_path: Path, records: tuple[tuple[int, int, int, int], ...], at: int, what: str
) -> None:
    begin = HEADER_BYTES + len('{"config": {}, "versions": {}}')
    told = _refused(tmp_path / "p", _file(*records, frames=1))
    assert told == f"offset {begin + at * DTYPE.itemsize}: {what}"
    assert _refused(tmp_path / "p", _file(*START, frames=2)).startswith("offset 32: the header says 2")
