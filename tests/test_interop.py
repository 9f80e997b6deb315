"""Do exported traces hold the commands that the scorer times, and does `validate` tell truth from lies?"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attacc_data import needs_data, table
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from pimkv import export, validation
from pimkv.backend import BlockManager, Ints
from pimkv.cli import main
from pimkv.config import Config, load, merge
from pimkv.controller import Controller
from pimkv.errors import ConfigError, InvalidArgument
from pimkv.interop import attacc, ramulator2
from pimkv.interop.attacc import FIELDS, Mac
from pimkv.interop.reads import CHANNELS, Reads, Table, reads_of
from pimkv.interop.statistics import counter
from pimkv.reference import row_model
from pimkv.simulation import Simulation

STEADY = {"workload": {"requests": 100}, "scoring": {"sample_seqs": 2}}
# A block is 16 tokens of 4 KiB: 64 bursts in each of 32 pseudo-channels, 4 in each bank, and 8 fill a row.
BLOCK_COMMANDS = 4


def pimkv(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def config_of(*tables: dict[str, Any]) -> Config:
    merged: dict[str, Any] = {}
    for one in tables:
        merged = merge(merged, one)
    return load(merged)


def blocks(*ids: int, tokens: int | None = None) -> Table:
    return Table(0, 16 * len(ids) if tokens is None else tokens, np.array(ids, dtype=np.int64))


def of_channel(macs: list[Mac], channel: int) -> list[tuple[int, int]]:
    return [(mac.pseudo_channel, mac.row) for mac in macs if mac.channel == channel]


# ---- addresses ----


def test_an_address_by_hand() -> None:
    # Most significant first: ch 4, pch 1, rank 1, bank group 2, bank 2, row 14, column 5, 5 bits within a burst.
    assert attacc.encode(column=1) == 1 << 5
    assert attacc.encode(row=1) == 1 << 10
    assert attacc.encode(bank=1) == 1 << 24
    assert attacc.encode(bank_group=1) == 1 << 26
    assert attacc.encode(rank=1) == 1 << 28
    assert attacc.encode(pseudo_channel=1) == 1 << 29
    assert attacc.encode(channel=1) == 1 << 30
    assert attacc.encode(channel=15, row=3, column=2) == 15 << 30 | 3 << 10 | 2 << 5
    assert attacc.trace([Mac(1, 1, 275, 0)]) == "PIM_MAC_AB 0x60044c00\n"


@given(fields=st.fixed_dictionaries({name: st.integers(0, (1 << bits) - 1) for name, bits in FIELDS.items()}))
def test_addresses_round_trip(fields: dict[str, int]) -> None:
    assert attacc.decode(attacc.encode(**fields)) == fields


def test_traces_round_trip() -> None:
    macs = [Mac(0, 0, 5, 31), Mac(15, 1, 16383, 0)]
    assert attacc.read_trace(attacc.trace(macs)) == macs
    reads = reads_of(blocks(3, 9), config_of())
    text = ramulator2.trace(reads)
    assert text.splitlines()[0] == "R 0,0,0,0,0,0,12"
    back = ramulator2.read_trace(text)
    assert all(np.array_equal(*pair) for pair in zip(columns(back), columns(reads), strict=True))
    assert len(ramulator2.read_trace("")) == 0


def columns(reads: Reads) -> tuple[Ints, ...]:
    return reads.channel, reads.bank, reads.row, reads.column


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: attacc.encode(row=1 << 14), "row = 16384: must be between 0 and 16383"),
        (lambda: attacc.encode(column=-1), "column = -1"),
        (lambda: attacc.encode(colum=1), 'colum: no such field.*did you mean "column"'),
        (lambda: attacc.decode(1 << 34), "address = 0x400000000"),
        (lambda: attacc.read_trace("PIM_MAC_AB 0x0\nPIM_BARRIER 0x0\n"), "line 2 = 'PIM_BARRIER 0x0'"),
        (lambda: ramulator2.read_trace("R 0,0,0,0,0,0\n"), "line 1 = 'R 0,0,0,0,0,0'"),
        (lambda: ramulator2.read_trace("R 0,0,1,0,0,0,0\n"), "line 1"),
    ],
)
def test_bad_addresses_and_lines_are_named(wrong: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        wrong()


# ---- small tables by hand ----


def test_a_block_is_four_commands_of_each_channel() -> None:
    macs = attacc.stream(blocks(17), config_of())
    assert len(macs) == BLOCK_COMMANDS * CHANNELS
    assert [mac.channel for mac in macs] == [*range(CHANNELS)] * BLOCK_COMMANDS
    # Block 17 is the second of region 2: its bursts are columns 4 to 7 of row 2.
    assert [(m.pseudo_channel, m.row, m.column) for m in macs[::CHANNELS]] == [
        (0, 2, 4),
        (0, 2, 5),
        (0, 2, 6),
        (0, 2, 7),
    ]


def test_a_short_last_block_fills_fewer_commands() -> None:
    # A token is 4 bursts of each pseudo-channel, two in each of two banks; eight tokens fill all banks.
    for tokens, commands in ((1, 2), (8, 2), (9, 4), (16, 4), (17, 6)):
        macs = attacc.stream(blocks(0, 1, tokens=tokens), config_of())
        assert len(of_channel(macs, 3)) == commands


def test_rows_follow_the_table() -> None:
    macs = attacc.stream(blocks(80, 0, 81), config_of())
    assert of_channel(macs, 0) == [(0, 10)] * 4 + [(0, 0)] * 4 + [(0, 10)] * 4


def test_the_row_left_open_comes_first_in_a_window() -> None:
    # Two blocks per window: 0 and 8 leave together, then 16 and 8, of which 8's row is open.
    macs = attacc.stream(blocks(0, 8, 16, 8), config_of({"scoring": {"window": 128}}))
    assert [row for _, row in of_channel(macs, 0)] == [0] * 4 + [1] * 4 + [1] * 4 + [2] * 4


def test_fed_per_pseudo_channel_every_command_comes_twice() -> None:
    paired = attacc.stream(blocks(80, 0), config_of())
    both = attacc.stream(blocks(80, 0), config_of({"controller": {"feed": "per-pch"}}))
    assert len(both) == 2 * len(paired)
    assert [mac for mac in both if mac.pseudo_channel == 0] == paired
    assert [mac._replace(pseudo_channel=0) for mac in both if mac.pseudo_channel == 1] == paired
    assert [mac.channel for mac in both] == [*range(CHANNELS)] * 2 * 2 * BLOCK_COMMANDS
    assert of_channel(both, 5)[:4] == [(0, 10), (1, 10)] * 2


def test_a_pair_issues_the_larger_of_its_counts() -> None:
    # Tokens of one cache line, so of one pseudo-channel; in row 1 the hash makes it 1 before 0. After 512 tokens
    # each bank has a line, two commands; one more is a second line of pseudo-channel 1's first bank.
    tables = [
        {"model": {"preset": "mqa-1kv", "head_dim": 16}},
        {"layout": {"addrmap": "row:* col:* bg:* ba:* ch:* col:L; ch^row:0"}},
    ]
    one = blocks(*range(512, 545), tokens=513)
    assert of_channel(attacc.stream(one, config_of(*tables)), 0) == [(0, 1)] * 4
    both = attacc.stream(one, config_of(*tables, {"controller": {"feed": "per-pch"}}))
    assert of_channel(both, 0) == [(0, 1), (1, 1), (0, 1), (1, 1), (1, 1), (1, 1)]


def test_fewer_queries_per_command_repeat_it() -> None:
    once = attacc.stream(blocks(80, 0), config_of())
    four = attacc.stream(blocks(80, 0), config_of({"controller": {"queries_per_command": 1}}))
    assert of_channel(four, 0) == [place for place in of_channel(once, 0) for _ in range(4)]


def test_reads_by_hand() -> None:
    reads = reads_of(blocks(17, tokens=1), config_of())
    assert len(reads) == 128
    assert ramulator2.trace(reads).splitlines()[:5] == [
        "R 0,0,0,0,0,2,4",
        "R 0,0,0,0,0,2,5",
        "R 0,1,0,0,0,2,4",
        "R 0,1,0,0,0,2,5",
        "R 1,0,0,0,0,2,4",
    ]
    # 128 bursts are one cache line of each of two banks of 32 pseudo-channels.
    assert ramulator2.count_rows(reads) == ramulator2.RowCounts(hits=64, misses=64, conflicts=0)


# ---- against the scorer and the row model ----

VARIED: dict[str, dict[str, Any]] = {
    "default": {},
    "per-pch": {"controller": {"feed": "per-pch"}},
    "one query": {"controller": {"queries_per_command": 1}},
    "per-pch, two queries": {"controller": {"queries_per_command": 2, "feed": "per-pch"}},
    "pim-aware": {"allocator": {"kind": "pim-aware"}},
    "contiguous": {"allocator": {"kind": "contiguous"}},
    "random": {"allocator": {"kind": "random"}},
    "host-centric": {"layout": {"addrmap": "host-centric"}},
    "pim-friendly": {"layout": {"addrmap": "pim-friendly"}},
    "pim-friendly, per-pch": {"layout": {"addrmap": "pim-friendly"}, "controller": {"feed": "per-pch"}},
    "inorder": {"scoring": {"coalesce": "inorder"}},
    "window of 7": {"scoring": {"window": 7}},
    "large window": {"scoring": {"window": 1000}},
    "blocks of 4 tokens": {"layout": {"block_tokens": 4}},
    "shards": {"layout": {"kv_shards": 2}},
    "one KV head": {"model": {"preset": "mqa-1kv"}},
    "6.4 Gbps": {"controller": {"timing": "attacc-hbm3-6.4-npc"}},
    "one pseudo-channel": {"dram": {"channels": 1}, "controller": {"feed": "per-pch"}},
    "padded regions": {"model": {"preset": "phi-4"}},
    "blocks across rows": {"layout": {"block_tokens": 24}},
    "published split": {"layout": {"kv_layout": "published-split"}},
    "speculation": {"workload": {"kind": "spec", "requests": 60}},
}
# Pairs whose two pseudo-channels differ, and channels that differ from each other.
UNLIKE: dict[str, dict[str, Any]] = {
    "hashed": {"layout": {"addrmap": "row:* col:* bg:* ba:* ch:* col:L; ch^row:0 ba^row:1"}},
    "row below channel": {"layout": {"addrmap": "row:12 ch:2 row:2 ch:3 col:5 bg:2 ba:2"}},
    "channel at the top and bottom": {"layout": {"addrmap": "ch:2 row:11 col:4 bg:2 row:3 ba:2 ch:3 col:1"}},
}


def sampled(config: Config) -> Iterator[tuple[Table, int]]:
    """Tables and scored cycles of all samples of three steps: early, full and late."""
    kept: dict[tuple[int, int], Table] = {}

    def keep(step: int, seqs: Ints, manager: BlockManager) -> None:
        if step % config.scoring.sample_every == 0:
            kept.update({(step, s): Table(s, manager.length(s), manager.table(s)) for s in seqs.tolist()})

    cells = Simulation(config).run(on_step=keep).samples.columns()
    steps = np.unique(cells["step"])
    wanted = steps[[len(steps) // 8, len(steps) // 2, -len(steps) // 8]]
    for step, seq, cycles in zip(
        *(cells[name].tolist() for name in ("step", "seq_id", "cycles")), strict=True
    ):
        if step in wanted:
            yield kept[step, seq], cycles


def check_against_scorer(config: Config) -> None:
    controller = Controller(config.controller.timing or "attacc-hbm3-5.2", refresh=False)
    seen = 0
    for one, cycles in sampled(config):
        rows = attacc.rows(attacc.stream(one, config))
        assert controller.run(rows, channels=CHANNELS).cycles == cycles
        seen += 1
    assert seen >= 5


@pytest.mark.parametrize("name", VARIED)
def test_an_exported_stream_takes_what_the_scorer_says(name: str) -> None:
    check_against_scorer(config_of(STEADY, VARIED[name]))


@pytest.mark.parametrize("feed", ["paired", "per-pch"])
@pytest.mark.parametrize("name", UNLIKE)
def test_unlike_channels_take_what_the_scorer_says(name: str, feed: str) -> None:
    check_against_scorer(config_of(STEADY, UNLIKE[name], {"controller": {"feed": feed}}))


@pytest.mark.parametrize("addrmap", ["host-cacheline", "host-centric", "pim-friendly"])
def test_row_counts_are_the_row_models(addrmap: str) -> None:
    config = config_of(STEADY, {"layout": {"addrmap": addrmap}})
    for one, _ in list(sampled(config))[:3]:
        reads = reads_of(one, config)
        places = zip(reads.channel.tolist(), reads.bank.tolist(), reads.row.tolist(), strict=True)
        slow = row_model.count_rows(((channel, bank), row) for channel, bank, row in places)
        fast = ramulator2.count_rows(reads)
        assert (fast.hits, fast.misses, fast.conflicts) == (slow.hits, slow.misses, slow.conflicts)
        assert fast.hit_rate == slow.hit_rate


@needs_data
def test_exported_reads_hit_as_often_as_ramulator_measured() -> None:
    """One channel of an exported table is the read stream that was measured."""
    measured = [r for r in table("ramulator21_hbm3_reads.csv") if r["refresh"] == "0"]
    assert measured
    for record in measured:
        reads = reads_of(blocks(*map(int, record["block_ids"].split())), config_of())
        mine = reads.channel < 2
        counts = ramulator2.count_rows(Reads(*(column[mine] for column in columns(reads))))
        assert counts.reads == int(record["n_reads_accepted"])
        assert (counts.misses, counts.conflicts) == (int(record["row_misses"]), int(record["row_conflicts"]))
        assert abs(counts.hit_rate - float(record["hit_rate"])) <= validation.HIT_RATE_TOLERANCE


# ---- what cannot be exported ----


@pytest.mark.parametrize(
    ("tables", "format_", "message"),
    [
        ({"dram": {"preset": "gddr6-aim"}}, "attacc", "dram.row_bytes = 2048: the simulator's HBM3 has 1024"),
        ({"dram": {"preset": "gddr6-aim"}}, "attacc", "dram.pch_per_command = 1"),
        ({"dram": {"preset": "gddr6-aim"}}, "attacc", 'dram.timing = "aim-gddr6"'),
        ({"dram": {"preset": "hbm2-neupims"}}, "ramulator2", "dram.bank_groups = 8"),
        ({"dram": {"channels": 64}}, "ramulator2", "dram.channels = 64: .*at most 32"),
        ({"dram": {"rows": 32768}}, "attacc", "dram.rows = 32768: .*at most 16384"),
        (
            {"controller": {"timing": "hbm2-pim"}},
            "attacc",
            'controller.timing = "hbm2-pim" .*choose from attacc',
        ),
        (
            {"layout": {"kv_layout": "split"}},
            "attacc",
            'layout.kv_layout = "split": .*choose from merged-token',
        ),
        ({"layout": {"passes": 2}}, "ramulator2", "layout.passes = 2: .*choose from 1"),
        ({"layout": {"traversal": "row"}}, "attacc", 'layout.traversal = "row": .*choose from token'),
        ({"controller": {"queue": 32}}, "attacc", "controller.queue = 32 .*must be 33"),
        ({"controller": {"refresh": True}}, "ramulator2", "controller.refresh = true"),
    ],
)
def test_what_a_simulator_does_not_model_is_refused(
    tables: dict[str, Any], format_: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        export.check(load(tables), format_)


def test_shards_make_a_wide_memory_fit() -> None:
    export.check(load({"dram": {"channels": 64}, "layout": {"kv_shards": 2}}), "attacc")


def test_names_of_the_simulators_presets() -> None:
    assert attacc.simulator_preset("attacc-hbm3-5.2") == "HBM3_5.2Gbps"
    assert attacc.simulator_preset("attacc-hbm3-6.4-npc") == "HBM3_6.4Gbps_NPC"


# ---- pimkv export ----


def exported(folder: Path, *args: str) -> dict[str, Any]:
    result = pimkv("export", "--requests", "100", "--out", str(folder), *args)
    assert result.exit_code == 0, result.output
    manifest: dict[str, Any] = json.loads((folder / export.MANIFEST).read_text())
    return manifest


def test_the_manifest_describes_every_file(tmp_path: Path) -> None:
    manifest = exported(tmp_path, "--allocator", "pim-aware")
    assert (manifest["format"], manifest["step"]) == ("attacc", 400)
    assert manifest["config"]["allocator"]["kind"] == "pim-aware"
    assert manifest["sequences"] == [e["sequence"] for e in manifest["exports"]]
    assert len(manifest["sequences"]) == 3
    files = {e["trace"]["file"]: e["trace"]["sha256"] for e in manifest["exports"]}
    files |= {r["config"]["file"]: r["config"]["sha256"] for _, r in export.runs_of(manifest)}
    assert {f.name for f in tmp_path.iterdir()} == {*files, export.MANIFEST}
    for name, sha in files.items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == sha
    for entry in manifest["exports"]:
        macs = attacc.read_trace((tmp_path / entry["trace"]["file"]).read_text())
        assert len(macs) == entry["trace"]["commands"]
        assert [run["refresh"] for run in entry["runs"]] == [False, True]
        for run in entry["runs"]:
            again = Controller(refresh=run["refresh"]).run(attacc.rows(macs), channels=CHANNELS)
            assert run["predicted"] == {
                "cycles": again.cycles,
                "activations": again.activations,
                "precharges": again.precharges,
                "refreshes": again.refreshes,
            }
            text = (tmp_path / run["config"]["file"]).read_text()
            assert f"path: {entry['trace']['file']}\n" in text
            # Without the quotes YAML reads No as false.
            assert ("impl: AllBankHBM3 " in text, 'impl: "No" ' in text) == (
                run["refresh"],
                not run["refresh"],
            )
            assert "preset: HBM3_5.2Gbps\n" in text


def test_exports_are_the_same_bytes_every_time(tmp_path: Path) -> None:
    for format_ in export.FORMATS:
        folders = [tmp_path / format_ / name for name in ("rust", "reference")]
        for folder in folders:
            exported(folder, "--requests", "8", "--format", format_, "--backend", folder.name)
        names = sorted(f.name for f in folders[0].iterdir())
        assert names == sorted(f.name for f in folders[1].iterdir())
        for name in names:
            assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


def test_refresh_is_as_asked(tmp_path: Path) -> None:
    for asked, told in (("on", True), ("off", False)):
        manifest = exported(tmp_path / asked, "--refresh", asked)
        assert {run["refresh"] for _, run in export.runs_of(manifest)} == {told}


def test_refresh_shows_in_a_long_stream(tmp_path: Path) -> None:
    manifest = exported(tmp_path, "--addrmap", "host-centric", "--feed", "per-pch")
    (off, on) = (run["predicted"] for run in manifest["exports"][0]["runs"])
    assert off["refreshes"] == 0 < on["refreshes"]
    assert off["cycles"] < on["cycles"]


def test_which_step_and_sequences(tmp_path: Path) -> None:
    cells = Simulation(config_of({"workload": {"requests": 100}})).run().samples.columns()
    later = exported(tmp_path / "a", "--step", "97", "--sequences", "2")
    assert later["step"] == 112
    assert later["sequences"] == cells["seq_id"][cells["step"] == 112][:2].tolist()
    everyone = exported(tmp_path / "b", "--sequences", "0", "--step", "112", "--format", "ramulator2")
    assert set(later["sequences"]) < set(everyone["sequences"])
    # A run that ends before step 400 gives its last sampled step.
    last = int(
        Simulation(config_of(STEADY, {"workload": {"requests": 2}})).run().samples.columns()["step"][-1]
    )
    assert last < 400
    short = exported(tmp_path / "c", "--requests", "2")
    assert short["step"] == last
    assert 0 < len(short["sequences"]) <= 2


def test_export_prints_what_it_predicts(tmp_path: Path) -> None:
    out = pimkv("export", "--requests", "100", "--out", str(tmp_path)).stdout
    manifest = json.loads((tmp_path / export.MANIFEST).read_text())
    for _, run in export.runs_of(manifest):
        assert f"{run['predicted']['cycles']:,}" in out
    printed = pimkv("export", "--requests", "100", "--out", str(tmp_path), "--json").stdout
    assert json.loads(printed) == manifest


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--format", "ramulator"], ["--format", "attacc, ramulator2", 'did you mean "ramulator2"']),
        (["--step", "-1"], ["step = -1 (--step)"]),
        (["--step", "two"], ['step = "two"']),
        (["--sequences", "-3"], ["sequences = -3"]),
        (["--format", "x", "--step", "-1", "--seed", "-1"], ["3 mistakes", "seed = -1"]),
        (["--step", "100000", "--requests", "20"], ["step = 100000", "the last"]),
        (["--sequences", "9", "--requests", "100"], ["sequences = 9", "8 sampled", "did you mean 8"]),
        (["--queue", "8"], ["controller.queue = 8 (--queue)"]),
        (["--dram", "gddr6-pim"], ["dram.row_bytes = 2048", "dram.pch_per_command", "dram.timing"]),
        (["--format", "ramulator2", "--refresh", "on"], ["controller.refresh = true (--refresh)"]),
    ],
)
def test_a_bad_export_names_what_is_wrong(args: list[str], told: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    for command in (["export"], ["validate", "--simulator", sys.executable]):
        result = pimkv(*command, *args, "--out", str(out))
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        for words in told:
            assert words in result.stderr
        assert not out.exists()


def test_a_run_without_a_step_has_nothing_to_export(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n500,5\n")
    args = ("export", "--trace", str(trace), "--pool-blocks", "8", "--out", str(tmp_path / "out"))
    result = pimkv(*args)
    assert result.exit_code == 2
    assert "no decode step" in result.stderr
    (tmp_path / "file").write_text("")
    result = pimkv("export", "--requests", "5", "--out", str(tmp_path / "file" / "x"))
    assert (result.exit_code, "--out" in result.stderr) == (2, True)


# ---- pimkv validate ----

SIMULATOR = """#!{python}
# Stands in for an installed simulator: reads the config and the trace that were exported.
import re, sys
if sys.argv[1] != "-f":
    sys.exit("usage: -f CONFIG")
config = open(sys.argv[2]).read()
trace = open(re.search(r"path: (\\S+)", config)[1]).read()
lie = {lie}
if "PIM" in config:
    from pimkv.controller import Controller
    from pimkv.interop import attacc
    rate, variant = re.search(r"preset: HBM3_([0-9.]+)Gbps(\\S*)", config).groups()
    refresh = "AllBankHBM3" in config
    name = "attacc-hbm3-" + rate + variant.lower().replace("_", "-")
    run = Controller(name, refresh=refresh).run(attacc.rows(attacc.read_trace(trace)), channels=16)
    print("Frontend:\\n  impl: PIMLoadStoreTrace\\n\\nMemorySystem:\\n  impl: PIMDRAM")
    print(f"  memory_system_cycles: {{run.cycles + lie}}")
else:
    from pimkv.interop import ramulator2
    reads = ramulator2.read_trace(trace)
    print("MemorySystem:\\n  memory_system_cycles: 12345\\n  Controller:")
    for channel in range(16):
        mine = reads.channel // 2 == channel
        columns = (reads.channel, reads.bank, reads.row, reads.column)
        counts = ramulator2.count_rows(ramulator2.Reads(*(column[mine] for column in columns)))
        # As the real one, it leaves its last reads in the queue.
        print(f"    row_hits_{{channel}}: {{counts.hits - 30}}")
        print(f"    row_misses_{{channel}}: {{counts.misses}}")
        print(f"    row_conflicts_{{channel}}: {{counts.conflicts + lie}}")
        print(f"    read_row_hits_core_0: {{counts.hits}}")
"""


def simulator(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def replaying(path: Path, lie: int = 0) -> Path:
    return simulator(path, SIMULATOR.format(python=sys.executable, lie=lie))


@pytest.mark.parametrize("format_", export.FORMATS)
def test_a_simulator_that_agrees(format_: str, tmp_path: Path) -> None:
    sim = replaying(tmp_path / "sim")
    args = ("validate", "--requests", "100", "--sequences", "2", "--simulator", str(sim), "--format", format_)
    result = pimkv(*args)
    assert result.exit_code == 0, result.output
    runs = 4 if format_ == "attacc" else 2
    assert f"{runs} of {runs} runs agree" in result.stdout
    assert all(word in result.stdout for word in ("ours", "theirs", "error"))
    kept = tmp_path / "kept"
    told = json.loads(pimkv(*args, "--out", str(kept), "--json", "--feed", "per-pch").stdout)
    assert (kept / export.MANIFEST).exists()
    assert [run["agrees"] for run in told["runs"]] == [True] * runs
    assert all(run["error"] == 0 for run in told["runs"])


@pytest.mark.parametrize("format_", export.FORMATS)
def test_a_simulator_that_lies(format_: str, tmp_path: Path) -> None:
    sim = replaying(tmp_path / "sim", lie=1 if format_ == "attacc" else 20)
    args = ("--requests", "100", "--sequences", "1", "--format", format_)
    result = pimkv("validate", "--simulator", str(sim), *args)
    assert result.exit_code == 1, result.output
    assert "0 of" in result.stdout
    assert "differs" in result.stdout


def test_a_simulator_that_stops_early(tmp_path: Path) -> None:
    text = f"#!{sys.executable}\nprint('row_hits: 5\\nrow_misses: 512\\nrow_conflicts: 6000')\n"
    sim = simulator(tmp_path / "sim", text)
    args = ("validate", "--requests", "100", "--simulator", str(sim), "--format", "ramulator2")
    result = pimkv(*args)
    assert result.exit_code == 1
    assert "differs: served 6,517 of" in result.stdout


def test_a_simulator_is_found_by_name_or_relative_path(tmp_path: Path, monkeypatch: Any) -> None:
    replaying(tmp_path / "sim-by-name")
    args = ("validate", "--requests", "20", "--sequences", "1", "--refresh", "off", "--simulator")
    monkeypatch.chdir(tmp_path)
    assert pimkv(*args, "sim-by-name").exit_code == 0
    assert pimkv(*args, "./sim-by-name").exit_code == 0
    monkeypatch.chdir("/")
    assert pimkv(*args, "sim-by-name").exit_code == 2
    monkeypatch.setenv("PATH", str(tmp_path))
    assert pimkv(*args, "sim-by-name").exit_code == 0


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        (None, 0, "there is no such file"),
        ("#!{python}\n", 0o644, "is not executable"),
        (
            "#!{python}\nimport sys; sys.exit('bad key: PIM')\n",
            0o755,
            "exit code 1 .*last line: bad key: PIM",
        ),
        ("#!{python}\nimport os; os.kill(os.getpid(), 9)\n", 0o755, "died of signal 9"),
        ("#!{python}\nprint('memory_system_cycles:')\n", 0o755, "printed no memory_system_cycles"),
        ("#!/no/such/interpreter\n", 0o755, "cannot be run"),
    ],
)
def test_no_simulator_to_compare_with(text: str | None, mode: int, told: str, tmp_path: Path) -> None:
    path = tmp_path / "sim"
    if text is not None:
        path.write_text(text.format(python=sys.executable))
        path.chmod(mode)
    result = pimkv("validate", "--requests", "20", "--simulator", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr
    assert "--simulator" in result.stderr
    assert re.search(told, result.stderr), result.stderr
    assert "is a directory" in pimkv("validate", "--simulator", str(tmp_path)).stderr


def test_counters_are_read_as_they_are_printed() -> None:
    assert counter("a:\n  row_hits_0: 3\n  row_hits_1: 4\n", "row_hits") == 7
    assert counter("row_hits: 7\n row_hits_0: 3\n row_hits_1: 4\n", "row_hits") == 7
    assert counter("- row_hits: 3\n- row_hits: 4\n", "row_hits") == 7
    assert counter("read_row_hits: 3\nrow_hits_core_0: 4\nrow_hits: many\n", "row_hits") is None
    assert ramulator2.rows_of("row_hits: 1\nrow_misses: 2\n") is None
    assert ramulator2.RowCounts(0, 0, 0).hit_rate == 0
