"""`neupims`: pages of whole row groups of one channel, what they leave empty, and runs of it."""

from __future__ import annotations

import csv
import gzip
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from click.testing import CliRunner
from hypothesis import given

from pimkv import _pimkv, reference
from pimkv.cli import main
from pimkv.config import Config, geometry, load
from pimkv.errors import ConfigError
from pimkv.row_groups import row_groups_of
from pimkv.simulation import Simulation, pool_blocks, requests_of


def config_of(tables: dict[str, Any] | None = None, **workload: Any) -> Config:
    return load({"allocator": {"kind": "neupims"}, "workload": workload} | (tables or {}))


# ---- what pages leave empty ----


def rounded(tokens: int, unit: int) -> int:
    return -(-tokens // unit) * unit


def empty_share(config: Config, lengths: list[int]) -> Fraction:
    """Bytes that blocks of these requests hold beyond the tokens', as a share of those."""
    shape = geometry(config)
    reserved = sum(shape.blocks_for(length) * shape.block_bytes for length in lengths)
    return Fraction(reserved, sum(lengths) * shape.token_bytes) - 1


@given(lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=20))
@pytest.mark.parametrize("dram", ["hbm2-neupims", "hbm3-pim", "gddr6-aim"])
def test_pages_leave_empty_what_the_source_says(dram: str, lengths: list[int]) -> None:
    used = 2 * sum(lengths)
    reserved = sum(rounded(length, 32) + rounded(length, 512) for length in lengths)
    config = config_of({"dram": {"preset": dram}})
    assert empty_share(config, lengths) == Fraction(reserved - used, used)
    # The manager hands out as many row groups.
    groups = row_groups_of(config)
    assert groups is not None
    for module in (_pimkv, reference):
        manager = module.BlockManager(
            "neupims", 20_000, block_tokens=32, blocks_per_region=20_000, pages=groups.pages
        )
        for seq, length in enumerate(lengths):
            assert manager.admit(seq, length, reserve_tokens=length)
        tables = sum(len(manager.table(seq)) for seq in range(len(lengths)))
        assert tables * groups.bytes == reserved * 2 * 1024


def test_what_blocks_leave_empty_on_sharegpt(shared: Path) -> None:
    """Lengths of all 58,787 first turns of ShareGPT V3: prompts, answers, and both together."""
    path = shared / "traces" / "sharegpt_v3_firstturn.csv.gz"
    if not path.is_file():
        pytest.skip("no ShareGPT lengths beside this checkout")
    with gzip.open(path, "rt") as file:
        rows = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]
    assert len(rows) == 58_787
    measured = {}
    for name, lengths in (
        ("prompts", [prompt for prompt, _ in rows]),
        ("answers", [answer for _, answer in rows]),
        ("both", [prompt + answer for prompt, answer in rows]),
    ):
        paged = (load({"layout": {"block_tokens": size}}) for size in (16, 128, 256))
        measured[name] = [round(float(empty_share(config, lengths)), 4) for config in (*paged, config_of())]
    # Blocks of 16, 128 and 256 tokens; pages of 32 and 512.
    assert measured == {
        "prompts": [0.0251, 0.2935, 0.6508, 0.7298],
        "answers": [0.0233, 0.2086, 0.4378, 0.473],
        "both": [0.0121, 0.104, 0.2162, 0.2307],
    }


@pytest.mark.parametrize(
    ("tables", "channels", "banks", "pages", "waste"),
    [
        # A command of hbm3-pim acts on two pseudo-channels of 16 banks: together they are one channel.
        ({}, 16, 32, ((32, 2), (512, 32)), 0),
        ({"dram": {"preset": "hbm2-neupims"}}, 32, 32, ((32, 2), (512, 32)), 0),
        ({"dram": {"preset": "gddr6-aim"}}, 32, 16, ((32, 2), (512, 32)), 0),
        ({"dram": {"preset": "hbm2-pim"}}, 16, 16, ((32, 4), (512, 64)), 0),
        ({"layout": {"kv_shards": 2}}, 8, 32, ((32, 1), (512, 16)), 0),
        ({"layout": {"stacks": 4}}, 16, 32, ((32, 1), (512, 8)), Fraction(1, 3)),
        ({"dram": {"channels": 1}}, 1, 16, ((32, 4), (512, 64)), 0),
        ({"model": {"preset": "mqa-1kv"}}, 16, 32, ((32, 1), (512, 4)), Fraction(3, 5)),
    ],
)  # fmt: skip
def test_pages_of_other_devices(
    tables: dict[str, Any], channels: int, banks: int, pages: Any, waste: float
) -> None:
    config = config_of(tables)
    groups = row_groups_of(config)
    assert groups is not None
    assert (groups.channels, groups.banks, groups.pages) == (channels, banks, pages)
    assert groups.waste == pytest.approx(float(waste), abs=1e-12)
    shape = geometry(config)
    assert (shape.block_tokens, shape.block_bytes) == (32, banks * config.dram.row_bytes)
    assert shape.capacity_blocks * shape.block_bytes * config.layout.kv_shards == config.dram.capacity_bytes


# ---- runs ----


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"dram": {"preset": "hbm2-neupims"}},
        {
            "traffic": {"writes": True},
            "layout": {"kv_layout": "split", "kv_shards": 2},
            "controller": {"queries_per_command": 1},
            "workload": {"kind": "prefix", "requests": 12},
        },
    ],
)
def test_both_backends_give_the_same_result(tables: dict[str, Any]) -> None:
    config = config_of({"workload": {"requests": 25}} | tables)
    rust, twin = (
        Simulation(config, backend=backend, check_every_step=True).run() for backend in ("rust", "reference")
    )
    assert rust.report() == twin.report()
    assert rust.samples.to_csv() == twin.samples.to_csv()
    summary = rust.summary
    assert summary["completed"] + summary["dropped"] == config.workload.requests
    exact = summary["exact"]
    # Limits have all channels equally busy; refresh costs where it has figures.
    assert exact["m3_gbps"] < exact["m3_limit_gbps"]
    assert exact["controller_gbps_no_refresh"] < exact["controller_limit_gbps_no_refresh"]
    assert sum(n["cycles_no_refresh"] for n in summary["passes"]) <= exact["controller_cycles"]
    # Regions are of no use to it; the order of ids is.
    assert (summary["placement"]["same_region"], summary["placement"]["region_spread"]) == (None, None)
    assert summary["placement"]["runs"] >= 1
    assert resolved_passes(rust) == 2


def resolved_passes(result: Any) -> int:
    passes: int = json.loads(result.to_json())["config"]["layout"]["passes"]
    return passes


def test_bytes_and_times_follow_from_the_lengths() -> None:
    """The exact aggregate against a second count of every step, from the lengths and the channels alone."""
    config = config_of(requests=15)
    groups = row_groups_of(config)
    assert groups is not None
    tokens = time_ps = 0

    def hear(_step: int, seqs: Any, manager: Any) -> None:
        nonlocal tokens, time_ps
        busy: dict[int, int] = {}
        for seq in seqs.tolist():
            length = manager.length(seq)
            tokens += length
            channel = int(manager.table(seq)[0]) // (simulation.pool_blocks // groups.channels)
            columns = [32] * (rounded(length, 32) // 16) + [32] * 32 * (length // 512)
            columns += [-(-(length % 512) // 16)] * 32 * (length % 512 > 0)
            misses = len(columns)
            busy[channel] = busy.get(channel, 0) + (sum(columns) - misses) * 4300 + misses * 45000
        time_ps += max(busy.values())

    simulation = Simulation(config)
    exact = simulation.run(on_step=hear).summary["exact"]
    assert exact["bytes"] == tokens * 4096
    assert exact["m3_gbps"] == exact["bytes"] * 1000 / time_ps


@pytest.mark.parametrize("dram", ["hbm3-pim", "hbm2-neupims"])
def test_the_pool_has_the_bytes_of_the_others(dram: str) -> None:
    tables = {"dram": {"preset": dram}}
    config, paged = config_of(tables), load(tables)
    requests = requests_of(config)
    of_pages, of_blocks = (pool_blocks(c, requests) * geometry(c).block_bytes for c in (config, paged))
    groups = row_groups_of(config)
    assert groups is not None
    # Whole row groups in every channel, none more.
    assert 0 <= of_blocks - of_pages < groups.channels * groups.bytes


def test_a_request_waits_until_a_channel_can_promise_it() -> None:
    # 36 row groups a channel: one K page and one V page, and one K page more.
    config = config_of({"scheduler": {"pool_blocks": 16 * 36}}, requests=40)
    result = Simulation(config, check_every_step=True).run()
    summary = result.summary
    # Longer ones are never placed, and never block the others for good.
    lengths = requests_of(config).prompt + requests_of(config).output
    assert summary["dropped"] == int((lengths > 64).sum()) > 0
    assert summary["completed"] == 40 - summary["dropped"]
    assert summary["peak_live_blocks"] <= 16 * 36


@pytest.mark.parametrize(
    ("tables", "field"),
    [
        ({"scheduler": {"admission": "vllm"}}, "scheduler.admission"),
        ({"workload": {"kind": "spec"}}, "workload.kind"),
        ({"layout": {"kv_layout": "published-split"}}, "layout.kv_layout"),
        ({"layout": {"passes": 1}}, "layout.passes"),
        ({"layout": {"block_tokens": 16}}, "layout.block_tokens"),
        ({"model": {"preset": "deepseek-v3"}}, "model.v_dim"),
        ({"model": {"window": 512, "window_layers": 4}}, "model.window_layers"),
        ({"dram": {"rows": 32}}, "allocator.kind"),
        ({"allocator": {"kind": "neupims", "options": {"k_tokens": 0}}}, "allocator.options.k_tokens"),
    ],
)
def test_a_config_that_is_not_defined_is_refused(tables: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config_of(tables)
    assert [problem.field for problem in refused.value.problems] == [field]


@pytest.mark.parametrize(("blocks", "words"), [(100, "nearest 96 or 112"), (16 * 16385, "at most 262144")])
def test_a_pool_that_cannot_be_is_refused(blocks: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Simulation(config_of({"scheduler": {"pool_blocks": blocks}}, requests=5))


def test_every_command_takes_it(tmp_path: Path) -> None:
    def cli(*args: str) -> Any:
        return CliRunner().invoke(main, args)

    few = ("--requests", "20")
    done = cli("compare", *few, "--allocators", "paged,neupims", "--json")
    assert done.exit_code == 0, done.stderr
    log = tmp_path / "run.log"
    run = cli(
        "run", *few, "--allocator", "neupims", "--oplog", str(log), "--out", str(tmp_path / "run"), "--json"
    )
    assert run.exit_code == 0, run.stderr
    # The resolved config runs the same again.
    again = cli("run", "--config", str(tmp_path / "run" / "config.toml"), "--json")
    assert json.loads(again.stdout)["summary"] == json.loads(run.stdout)["summary"]
    # Every id of the log is handed out again.
    replayed = cli("bench", "ops", "--log", str(log), "--json")
    assert replayed.exit_code == 0, replayed.stderr
    exported = cli(
        "export", "--format", "attacc", *few, "--allocator", "neupims", "--out", str(tmp_path / "traces")
    )
    assert exported.exit_code == 2 and "allocator.kind" in exported.stderr
