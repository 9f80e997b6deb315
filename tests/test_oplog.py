"""Operation logs from Python: recorded, written, read as arrays, refused; replayed by `pimkv bench`. Nothing is timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import pimkv
from pimkv import _pimkv
from pimkv.bench import ops
from pimkv.bench.calls import CallTrace, replay_ns
from pimkv.bench.cost import cost_table
from pimkv.bench.host import host, spread
from pimkv.bench.twins import replay_twin, replay_vllm
from pimkv.cli import main
from pimkv.config import load
from pimkv.errors import ConfigError, InvalidArgument, LogError
from pimkv.oplog import DTYPE, HEADER_BYTES, names, records_of
from pimkv.report.cost import cost_report, ops_table
from pimkv.simulation import Simulation

ALLOCATORS = ("paged", "pim-aware", "contiguous", "random", "pim-gather")


def simulation(allocator: str, **workload: Any) -> Simulation:
    config = load({"workload": {"requests": 20, **workload}, "allocator": {"kind": allocator}})
    return Simulation(config, record=True)


def log_of(allocator: str, **workload: Any) -> Any:
    return simulation(allocator, **workload).run().oplog


def cli(*args: str) -> Result:
    return CliRunner().invoke(main, args)


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    done = cli("run", "--requests", "20", "--allocator", "pim-aware", "--oplog", str(path), "--json")
    assert done.exit_code == 0, done.stderr
    return path


def test_a_run_records_a_log_that_reads_as_an_array(log_file: Path) -> None:
    header, records = pimkv.read_oplog(log_file)
    assert header["policy"] == "pim-aware"
    assert (header["blocks_per_region"], header["block_tokens"]) == (8, 16)
    assert records.dtype == DTYPE and DTYPE.itemsize == 16
    code = {name: number for number, name in header["operations"].items()}
    takes = records[records["operation"] == code["Take"]]
    gives = records[records["operation"] == code["Give"]]
    # All blocks have come back in the end, each as often as it was taken.
    assert sorted(takes["block"].tolist()) == sorted(gives["block"].tolist())
    assert (records["operation"] == code["Admit"]).sum() == 20
    assert (records["operation"] == code["Release"]).sum() == 20
    assert takes["block"].max() < header["blocks"]


def test_recording_changes_no_result_and_no_file(tmp_path: Path) -> None:
    for name, more in (("plain", ()), ("recorded", ("--oplog", str(tmp_path / "x.log")))):
        assert cli("run", "--requests", "20", "--out", str(tmp_path / name), *more).exit_code == 0
    for file in ("config.toml", "summary.json", "samples.csv"):
        assert (tmp_path / "plain" / file).read_bytes() == (tmp_path / "recorded" / file).read_bytes()


def test_the_same_run_writes_the_same_log(log_file: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.log"
    cli("run", "--requests", "20", "--allocator", "pim-aware", "--oplog", str(again))
    assert again.read_bytes() == log_file.read_bytes()


@pytest.mark.parametrize("kind", ALLOCATORS)
@pytest.mark.parametrize("workload", ["steady", "spec", "prefix"])
def test_every_allocator_repeats_its_own_log(kind: str, workload: str) -> None:
    log = log_of(kind, kind=workload)
    assert log.kind == kind
    figures = ops.measure(log, kind, repeats=1)
    assert figures["takes"] == figures["takes_with_recorded_id"] > 100
    assert figures["ids_checked"]
    assert figures["all"]["operations"] == figures["operations"]
    assert sum(figures["kinds"][k]["operations"] for k in ("take", "give")) == figures["operations"]


def test_index_and_heaps_give_one_log() -> None:
    tables = {"workload": {"requests": 60}, "scheduler": {"headroom": 0.5, "admission": "vllm"}}
    logs = []
    for impl in ("indexed", "heaps"):
        options = {"kind": "pim-aware", "options": {"region_impl": impl, "compact": 0.5, "plan": "best-fit"}}
        result = Simulation(load({**tables, "allocator": options}), record=True).run()
        assert result.summary["relocated_blocks"] > 0 and result.summary["preemptions"] > 0
        assert result.oplog is not None
        logs.append(result.oplog.to_bytes())
    assert logs[0] == logs[1]
    log = _pimkv.OpLog.parse(logs[0])
    assert log.best_fit
    for impl in ("indexed", "heaps"):
        assert ops.measure(log, "pim-aware", repeats=1, region_impl=impl)["ids_checked"]


def test_a_damaged_log_is_refused_with_its_offset(log_file: Path) -> None:
    data = bytearray(log_file.read_bytes())
    data[HEADER_BYTES + 5 * 16] ^= 1
    log_file.write_bytes(data)
    with pytest.raises(LogError, match=rf"run\.log: operation log, offset {HEADER_BYTES}: operations 0 to "):
        pimkv.read_oplog(log_file)
    log_file.write_bytes(data[:1000])
    with pytest.raises(LogError, match="offset 1000: the log ends here"):
        pimkv.read_oplog(log_file)
    log_file.write_bytes(b"step,seq_id\n1,2\n" * 10)
    refused = cli("bench", "ops", "--log", str(log_file))
    assert refused.exit_code == 2 and refused.stdout == ""
    assert "offset 0: this is not an operation log" in refused.stderr
    absent = cli("bench", "ops", "--log", str(log_file.with_name("absent")))
    assert absent.exit_code == 2 and "No such file" in absent.stderr


def test_a_log_of_another_policy_is_refused_at_its_first_other_id() -> None:
    log = log_of("paged")
    code = {name: number for number, name in names().items()}
    first = int(np.flatnonzero(records_of(log)["operation"] == code["Take"])[0])
    offset = HEADER_BYTES + first * DTYPE.itemsize
    with pytest.raises(LogError, match=rf"offset {offset}: block \d+ was taken; the policy hands out 0"):
        log.replay("pim-aware", strict=True, repeats=1)


def test_another_pool_is_refused(log_file: Path) -> None:
    refused = cli("bench", "ops", "--log", str(log_file), "--pool-blocks", "128")
    assert refused.exit_code == 2
    assert "blocks = 128: the log is of a pool of" in refused.stderr
    with pytest.raises(InvalidArgument, match="region_impl"):
        ops.measure(log_of("paged"), "pim-aware", region_impl="tree")


def test_what_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only the Rust core records"):
        Simulation(load({"workload": {"requests": 5}}), backend="reference", record=True)
    refused = cli("run", "--requests", "5", "--oplog", str(tmp_path / "no" / "folder.log"))
    assert refused.exit_code == 2 and "--oplog" in refused.stderr
    manager = _pimkv.BlockManager("paged", 8, block_tokens=16)
    assert manager.oplog() is None
    manager.admit(0, 1)
    with pytest.raises(InvalidArgument, match="fresh pool"):
        manager.record()


def test_bench_ops_prints_every_kind(log_file: Path) -> None:
    done = cli(
        "bench", "ops", "--log", str(log_file), "--policies", "pim-aware,paged", "--repeat", "1", "--json"
    )
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result) == {"schema_version", "host", "log", "policies"}
    ours, paged = result["policies"]
    assert set(ours["kinds"]) == {"take", "give", "admit", "grow", "release"}
    assert ours["ids_checked"] and not paged["ids_checked"]
    assert paged["takes_with_recorded_id"] < paged["takes"]
    text = cli("bench", "ops", "--log", str(log_file), "--repeat", "1").stdout
    assert "every id as recorded" in text and "grow" in text
    assert ops_table([ours, paged]).count("ns per operation") == 2
    refused = cli("bench", "ops", "--log", str(log_file), "--repeat", "0")
    assert refused.exit_code == 2 and "--repeat" in refused.stderr


def test_batches_hold_256_operations_and_leave_the_rest() -> None:
    sizes = np.array([200, 100, 256, 40], dtype=np.int64)
    net = np.array([200.0, 200.0, 512.0, 1e9])
    assert ops._batches(sizes, net).tolist() == [400 / 300, 2.0]
    assert ops._batches(sizes[:1], net[:1]).tolist() == [1.0]
    assert len(ops._batches(sizes[:0], net[:0])) == 0


@pytest.mark.parametrize("kind", ["paged", "pim-aware", "contiguous", "random"])
def test_the_twins_repeat_the_log(kind: str) -> None:
    figures = replay_twin(log_of(kind), 1)
    assert figures["operations"] > 100


def test_vllm_is_skipped_with_a_reason_where_it_is_not_installed() -> None:
    got = replay_vllm(log_of("paged"), 1)
    assert "skipped" in got or got["operations"] > 100


@pytest.mark.parametrize("kind", ALLOCATORS)
def test_the_calls_of_a_run_can_be_made_again(kind: str) -> None:
    traces: list[CallTrace] = []

    def through(manager: Any) -> Any:
        traces.append(CallTrace(manager))
        return traces[0]

    config = load({"workload": {"requests": 20, "kind": "spec"}, "allocator": {"kind": kind}})
    run = Simulation(config, through=through)
    allocated = run.run().summary["blocks_allocated"]
    replay_ns(traces[0].calls, run.block_manager(), allocated)


def test_the_cost_table_has_every_row_and_prints() -> None:
    table = cost_table(requests=12, twin_requests=12, repeats=1, scale=0.001)
    assert set(table["workloads"]) == {"steady", "spec", "prefix", "longctx", "0.6x preemption"}
    steady = table["workloads"]["steady"]
    contenders = {"paged", "pim-aware, indexed", "pim-aware, heaps", "pim-gather", "contiguous"}
    assert set(steady) == contenders | {"vLLM BlockPool"}
    assert steady["paged"]["saved_us_per_step"] == 0
    twins = {name for name in contenders if steady[name]["twin_us_per_step"] is not None}
    assert twins == {"paged", "pim-aware, heaps", "contiguous"}
    for name in twins:
        assert steady[name]["twin_us_per_step"] > steady[name]["policy_us_per_step"]
    assert (
        steady["pim-aware, indexed"]["saved_us_per_step"] == steady["pim-aware, heaps"]["saved_us_per_step"]
    )
    assert steady["pim-aware, indexed"]["saved_us_per_step"] > 0
    exact = {
        kind: Simulation(load({"workload": {"requests": 12}, "allocator": {"kind": kind}})).run().summary
        for kind in ("paged", "pim-aware")
    }
    saved = [exact[kind]["exact"]["controller_cycles"] / exact[kind]["decode_steps"] for kind in exact]
    # Layers, and clocks of 0.769 ns; the controller's figures include refresh.
    in_us = 32 * 0.769e-3 * (saved[0] - saved[1])
    assert steady["pim-aware, indexed"]["saved_us_per_step_controller"] == pytest.approx(in_us, rel=1e-9)
    assert steady["paged"]["saved_us_per_step_controller"] == 0
    for row in (steady["pim-aware, indexed"], steady["pim-gather"]):
        for suffix in ("", "_controller"):
            if row["added_us_per_step"] > 0:
                expected = row[f"saved_us_per_step{suffix}"] / row["added_us_per_step"]
                assert row[f"benefit_cost{suffix}"] == pytest.approx(expected)
    assert "refused" in table["workloads"]["0.6x preemption"]["contiguous"]
    assert {row["what"] for row in table["worst_case"]} == {"grow", "admit"}
    for row in table["worst_case"]:
        assert row["worst_state_operations"] == row["operations"]
    json.dumps(table, allow_nan=False)
    text = cost_report(table)
    assert "benefit/cost" in text and "worst case" in text


def test_bench_facts() -> None:
    assert set(host()) >= {"cpu", "cores", "python", "pimkv"}
    assert spread([3.0, 1.0, 2.0]) == {"min": 1.0, "median": 2.0, "max": 3.0}


def test_made_up_logs_refuse_what_cannot_be() -> None:
    make = _pimkv.OpLog
    for call in (
        lambda: make.mix(64, 8, 0, 10),
        lambda: make.mix(64, 8, 17, 10),
        lambda: make.growing(64, 1, 4, 10),
        lambda: make.growing(16, 8, 4, 10),
        lambda: make.admitting(64, 8, 3, 10),
    ):
        with pytest.raises(InvalidArgument):
            call()
