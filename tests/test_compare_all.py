"""Every allocator in one table: who is in it, its order, whom it marks, the grid, and how it fails."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pimkv.allocators import kinds
from pimkv.cli import main
from pimkv.config import Config, geometry, load
from pimkv.report import rivals
from pimkv.report.rivals import Entry, Table
from pimkv.simulation import Simulation
from pimkv.sweep import runner
from pimkv.sweep.runner import Failure

SMALL = ("--requests", "12", "--jobs", "1", "--quiet")


def compare(*args: str) -> Result:
    return CliRunner().invoke(main, ("compare", *SMALL, *args))


def tables(*args: str) -> list[dict[str, Any]]:
    result = compare(*args, "--json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["tables"]
    return found


def entry(name: str, gbps: float, batch: float, dropped: int = 0) -> Entry:
    summary = {"exact": {"controller_gbps": gbps}, "capacity": {"mean_batch": batch}, "dropped": dropped}
    return Entry(name, Config(), summary)


def table(*entries: Entry) -> Table:
    return Table("llama-gqa-8kv", "hbm3-pim", "steady", entries)


def test_rows_are_ranked_by_bandwidth_times_batch_and_gains_are_over_paged() -> None:
    ranked = table(
        entry("attacc", 3000.0, 10.0),
        Entry("neupims", refused="no"),
        entry("paged", 1000.0, 40.0),
        entry("a", 2000.0, 30.0),
    )
    assert [e.allocator for e in ranked.ranked()] == ["a", "paged", "attacc", "neupims"]
    assert ranked.gains(ranked.entries[3]) == (2.0, 1.5)
    assert ranked.gains(ranked.entries[1]) == (None, None)
    without = table(Entry("neupims", refused="no"), entry("b", 1.0, 1.0), entry("c", 2.0, 1.0))
    assert without.gains(without.entries[2]) == (2.0, 2.0)
    assert table(Entry("b", refused="no")).base is None


def test_an_allocator_is_beaten_by_one_that_reaches_both_and_passes_in_one() -> None:
    points = table(
        entry("fast", 3.0, 1.0), entry("full", 1.0, 3.0), entry("between", 2.0, 2.0), entry("twin", 2.0, 2.0),
        entry("slower", 1.9, 2.0), entry("emptier", 2.0, 1.9), Entry("none", refused="no"), entry("dropper", 9.0, 9.0, 1),
    )  # fmt: skip
    assert points.unbeaten() == {"fast", "full", "between", "twin"}


def test_every_allocator_of_a_config_has_its_row_and_figures_are_those_of_a_run() -> None:
    (found,) = tables("--all")
    assert sorted(row["allocator"] for row in found["rows"]) == list(kinds())
    products = [row["throughput_gbps_sequences"] for row in found["rows"] if "summary" in row]
    assert products == sorted(products, reverse=True)
    for row in found["rows"]:
        if "summary" in row:
            alone = load({"workload": {"requests": 12}, "allocator": {"kind": row["allocator"]}})
            assert row["summary"] == json.loads(json.dumps(Simulation(alone).run().summary))
            assert row["timing"]["policy_ns_per_token"] is not None
            exact, room = row["summary"]["exact"], row["summary"]["capacity"]
            assert row["throughput_gbps_sequences"] == exact["controller_gbps"] * room["mean_batch"]


def test_the_text_fits_a_wide_terminal_and_shows_the_same_rows() -> None:
    result = compare("--all", "--workloads", "steady,longctx", "--pareto")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= rivals.WIDTH
    for workload in ("steady", "longctx"):
        start = next(i for i, line in enumerate(lines) if line.startswith(f"{workload}, 12 requests"))
        end = next(i for i in range(start + 3, len(lines)) if not lines[i])
        shown = [line.split()[0].rstrip(":") for line in lines[start + 5 : end]]
        # One that dropped requests has a line of remarks too.
        assert sorted(set(shown)) == list(kinds())
        assert any(line.split()[1] == "*" for line in lines[start + 5 : end])


def test_an_allocator_that_is_not_defined_says_why_and_the_others_run() -> None:
    args = ("--all", "--admission", "vllm", "--untimed")
    result = compare(*args)
    assert result.exit_code == 0
    assert "  contiguous: scheduler.admission = " in result.stdout
    rows = {row["allocator"]: row for row in tables(*args)[0]["rows"]}
    assert "is not defined for the contiguous" in rows["contiguous"]["refused"]
    assert "summary" in rows["paged"]


def test_a_pool_that_does_not_fit_one_allocator_is_its_row_alone() -> None:
    # 2,020 blocks are no whole number of regions of 8.
    rows = {
        row["allocator"]: row
        for row in tables("--allocators", "paged,pim-aware", "--pareto", "--pool-blocks", "2020")[0]["rows"]
    }
    assert "needs whole regions" in rows["pim-aware"]["refused"]
    assert "summary" in rows["paged"]


def test_dropped_requests_are_told() -> None:
    """A pool of 10 blocks holds 160 tokens: longer requests never run, and a row must not hide that."""
    result = compare("--allocators", "paged,contiguous", "--pareto", "--pool-blocks", "10")
    dropped = {
        row["allocator"]: row["summary"]["dropped"]
        for row in tables("--allocators", "paged,contiguous", "--pareto", "--pool-blocks", "10")[0]["rows"]
    }
    assert dropped["paged"] > 0
    for name, count in dropped.items():
        assert f"  {name}: {count} of 12 requests never fit and were dropped" in result.stdout


def test_an_option_goes_to_the_allocators_that_have_it() -> None:
    (found,) = tables("--allocators", "paged,attacc", "--pareto", "--set", "allocator.options.max_tokens=512")
    configs = {row["allocator"]: row["config"]["allocator"]["options"] for row in found["rows"]}
    assert configs == {"paged": {}, "attacc": {"max_tokens": 512}}


@pytest.mark.parametrize("pool", [(), ("--pool-blocks", "2048"), ("--pool-blocks", "40960")])
def test_every_pool_has_the_bytes_of_the_others(pool: tuple[str, ...]) -> None:
    """Up to one unit: of 1 MiB, a group of 16 blocks, or a row group of every channel."""
    (found,) = tables("--all", *pool)
    held = {
        row["allocator"]: row["summary"]["pool_blocks"] * geometry(load(row["config"])).block_bytes
        for row in found["rows"]
    }
    if pool:
        assert held["paged"] == int(pool[1]) * 65536
    assert max(abs(size - held["paged"]) for size in held.values()) < 2**20


def test_a_pool_without_room_for_a_unit_is_told() -> None:
    rows = {
        row["allocator"]: row
        for row in tables("--allocators", "paged,pimphony", "--pareto", "--pool-blocks", "15")[0]["rows"]
    }
    assert "no unit of it fits the pool" in rows["pimphony"]["refused"]
    assert "summary" in rows["paged"]


def test_a_grid_has_a_table_per_model_and_dram_and_the_home_grounds() -> None:
    args = (
        "--allocators",
        "paged,pim-aware",
        "--dram",
        "hbm3-pim,gddr6-aim",
        "--model",
        "llama-gqa-8kv,mqa-1kv",
    )
    found = tables(*args)
    grounds = [(t["model"], t["dram"]) for t in found]
    assert grounds == [
        ("llama-gqa-8kv", "hbm3-pim"), ("llama-gqa-8kv", "gddr6-aim"), ("mqa-1kv", "hbm3-pim"), ("mqa-1kv", "gddr6-aim"),
    ]  # fmt: skip
    for of, (model, dram) in zip(found, grounds, strict=True):
        for row in of["rows"]:
            assert (row["config"]["model"]["preset"], row["config"]["dram"]["preset"]) == (model, dram)
            assert row["config"]["dram"]["row_bytes"] == {"hbm3-pim": 1024, "gddr6-aim": 2048}[dram]


def grounds(gains: Sequence[tuple[str, float, float]]) -> list[Table]:
    """A table per DRAM with `paged` at 1 GB/s and a batch of 4, and pimphony at (GB/s, batch)."""
    return [
        Table("m", dram, "steady", (entry("paged", 1.0, 4.0), entry("pimphony", gbps, batch)))
        for dram, gbps, batch in gains
    ]


def test_the_home_ground_is_where_the_rival_was_designed_for_beside_its_best() -> None:
    (row,) = rivals.home_rows(grounds([("hbm3-pim", 3.0, 4.0), ("gddr6-aim", 4.0, 2.0)]))
    assert (row["allocator"], row["home"], row["best"]) == ("pimphony", "gddr6-aim", "hbm3-pim")
    assert (row["home_bandwidth_gain"], row["home_throughput_gain"], row["best_throughput_gain"]) == (
        4.0,
        2.0,
        3.0,
    )
    (abroad,) = rivals.home_rows(grounds([("hbm3-pim", 3.0, 4.0)]))
    assert (abroad["home_bandwidth_gain"], abroad["best"]) == (None, "hbm3-pim")
    text = rivals.home_cells([row])[1]
    assert text[0] == "pimphony"
    assert "4.00x" in text


def test_every_home_ground_is_a_preset() -> None:
    for dram in rivals.HOME.values():
        load({"dram": {"preset": dram}})


def test_a_file_holds_no_clock_and_does_not_depend_on_jobs(tmp_path: Path) -> None:
    written = []
    for jobs in ("1", "2"):
        folder = tmp_path / jobs
        assert (
            compare(
                "--allocators", "paged,pim-aware", "--pareto", "--jobs", jobs, "--out", str(folder)
            ).exit_code
            == 0
        )
        written.append((folder / "compare.json").read_bytes())
    assert written[0] == written[1]
    assert b'timing":' not in written[0].replace(b'"controller_timing":', b"").replace(b'"timing": "', b"")
    assert len(json.loads(written[0])["tables"][0]["rows"]) == 2


@pytest.mark.parametrize("backend", ["rust", "reference"])
def test_backends_give_one_table(backend: str) -> None:
    (found,) = tables("--allocators", "paged,contiguous", "--pareto", "--backend", backend)
    (rust,) = tables("--allocators", "paged,contiguous", "--pareto")
    for mine, other in zip(found["rows"], rust["rows"], strict=True):
        assert mine["summary"] == other["summary"]
        assert (mine["timing"]["policy_ns_per_token"] is None) == (backend == "reference")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--all", "--dram", "hbm3-pim,hbm9"), ('dram.preset = "hbm9"',)),
        (("--all", "--allocators", "paged"), ("all of them or these",)),
        (("--pareto", "--allocators", "pagd"), ('"pagd"', 'did you mean "paged"?')),
        (("--pareto", "--allocators", "paged,paged"), ("each at most once",)),
        (("--workloads", "steady,steady"), ("each at most once",)),
        (("--workloads", "steady", "--workload", "spec"), ("leave one of them out",)),
        (("--workloads", "stedy", "--jobs", "0", "--seed", "-1"), ('did you mean "steady"?', "jobs = 0", "seed = -1")),
        (("--ablation", "gather", "--all"), ("goes without",)),
        (("--all", "--set", "allocator.options.max_token=9"), ("max_token = 9", 'did you mean "max_tokens"?')),
        (("--jobs", "1"), ("--jobs: goes with --all",)),
        (("--untimed",), ("--untimed: goes with --all",)),
        (("--all", "--headroom", "1000"), ("do not fit",)),
    ],
)  # fmt: skip
def test_bad_requests_are_told_at_once(args: tuple[str, ...], told: tuple[str, ...]) -> None:
    result = compare(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    for words in told:
        assert words in result.stderr


def test_a_run_that_fails_is_a_row_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    good = Simulation(load({"workload": {"requests": 12}})).run().summary
    monkeypatch.setattr(
        runner, "run_all", lambda configs, **_: [good, Failure("BrokenInvariant", "a defect")]
    )
    result = compare("--allocators", "paged,pim-aware", "--pareto")
    assert result.exit_code == 1
    assert "pim-aware: the run failed: BrokenInvariant: a defect" in result.stdout
    assert "paged *" in result.stdout


@pytest.mark.parametrize("workload", ["steady", "spec"])
@pytest.mark.parametrize("kind", ["paged", "random", "contiguous", "pim-gather"])
def test_the_operations_alone_are_those_of_the_whole_run(kind: str, workload: str) -> None:
    config = load(
        {
            "workload": {"kind": workload, "requests": 30},
            "allocator": {"kind": kind},
            "scheduler": {"headroom": 0.6},
        }
    )
    recorded = Simulation(config, record=True).run().oplog
    assert recorded is not None
    assert Simulation(config).operations().to_bytes() == recorded.to_bytes()


def test_an_untimed_table_has_no_clock_and_prints_the_same_twice() -> None:
    args = ("--allocators", "paged,pim-aware", "--pareto")
    assert "ns/tok." in compare(*args).stdout
    assert "ns/" in compare(*args).stdout.splitlines()[3]
    untimed = [compare(*args, "--untimed").stdout for _ in range(2)]
    assert untimed[0] == untimed[1]
    assert "ns/" not in untimed[0]
    (found,) = tables(*args, "--untimed")
    assert found["rows"][0]["timing"] == {"policy_ns_per_token": None}


def test_one_model_and_dram_without_all_is_the_comparison_as_before() -> None:
    result = CliRunner().invoke(
        main, ("compare", "--requests", "12", "--dram", "gddr6-aim", "--model", "mqa-1kv")
    )
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].startswith("  pim-aware")
    assert "published" in result.stdout
