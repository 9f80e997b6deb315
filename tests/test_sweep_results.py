"""What sweeps have stored, as `pimkv results` and data frames show it."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from sweep_tools import pimkv

from pimkv.cli.results import _ratio, _varying
from pimkv.config import load
from pimkv.errors import ConfigError, MissingExtra
from pimkv.result import COLUMNS, flat, resolved
from pimkv.simulation import Simulation
from pimkv.sweep.execute import SweepResult, run_sweep
from pimkv.sweep.store import Row
from pimkv.sweep.table import columns, to_csv

SPEC = {
    "base": {"workload.requests": 12},
    "grid": {"allocator.kind": ["paged", "pim-aware"], "traffic.writes": [False, True]},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four finished points and a failed one."""
    path = tmp_path_factory.mktemp("results") / "s.db"
    run_sweep(SPEC, store=path, jobs=1)
    run_sweep([load({"scheduler": {"headroom": 100.0}})], store=path, jobs=1)
    return path


def listed(store: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(pimkv("results", "ls", "--store", store, "--json").stdout)
    return found


def keys(store: Path) -> list[str]:
    return [point["key"] for point in listed(store)]


def test_ls_shows_what_tells_the_points_apart(store: Path) -> None:
    lines = pimkv("results", "ls", "--store", store).stdout.splitlines()
    titles = lines[0].split()
    shown = ["allocator.kind", "scheduler.headroom", "traffic.writes", "workload.requests"]
    assert titles[: 1 + len(shown)] == ["key", *shown]
    assert lines[0].endswith("M3 exact GB/s  M1 exact  controller GB/s  M3 published GB/s")
    assert lines[-1] == "5 points: 4 finished, 1 failed"
    assert len(lines) == 7
    assert sum("ConfigError" in line for line in lines) == 1
    assert next(point for point in listed(store) if point["error"] is None)["figures"]["exact.m3_gbps"] > 0
    told = json.loads(pimkv("results", "ls", "--store", store, "--failed", "--json").stdout)
    assert [(point["fields"]["scheduler.headroom"], point["error"][:11]) for point in told] == [
        (100.0, "ConfigError")
    ]


def test_ls_leaves_out_what_only_follows_from_a_preset() -> None:
    configs = [load({"dram": {"preset": name}}) for name in ("hbm3-pim", "gddr6-pim")]
    rows = [Row(str(index), resolved(config), {}, None) for index, config in enumerate(configs)]
    assert "dram.channels" not in _varying(rows, rows)[0]
    assert _varying(rows, rows)[0]["dram.preset"] == "hbm3-pim"
    other = resolved(load({"dram": {"preset": "hbm3-pim", "trc_ns": 50.0}}))
    rows.append(Row("2", other, {}, None))
    assert [fields["dram.trc_ns"] for fields in _varying(rows, rows)] == [45.0, 45.0, 50.0]


def test_show_prints_a_config_that_runs_the_point_again_and_every_figure(store: Path, tmp_path: Path) -> None:
    key = keys(store)[0]
    text = pimkv("results", "show", key[:6], "--store", store).stdout
    config, _, figures = text.partition("decode_steps")
    (tmp_path / "again.toml").write_text(config)
    again = json.loads(pimkv("run", "--config", tmp_path / "again.toml", "--json").stdout)
    told = json.loads(pimkv("results", "show", key, "--store", store, "--json").stdout)
    assert told["key"] == key
    assert again["summary"] == told["summary"]
    assert all(name in f"decode_steps{figures}" for name in flat(told["summary"]))
    assert " s on " in text
    failed = next(point["key"] for point in listed(store) if point["error"] is not None)
    assert "failed: ConfigError" in pimkv("results", "show", failed, "--store", store).stdout


def test_diff_shows_fields_and_figures_with_their_ratio(store: Path) -> None:
    finished = [point for point in listed(store) if point["error"] is None]
    a, b = (
        next(p["key"] for p in finished if p["fields"]["allocator.kind"] == kind)
        for kind in ("paged", "pim-aware")
    )
    lines = pimkv("results", "diff", a, b, "--store", store).stdout.splitlines()
    assert lines[0].split() == [a[:12], b[:12], "B", "/", "A"]
    assert lines[1].split() == ["allocator.kind", "paged", "pim-aware"]
    told = json.loads(pimkv("results", "diff", a, b, "--store", store, "--json").stdout)
    x, y = told["summary"]["exact.m3_gbps"]
    assert f"{y / x:.4g}" in next(line for line in lines if line.startswith("exact.m3_gbps"))
    assert "seed" not in told["config"]
    assert pimkv("results", "diff", a, a, "--store", store).stdout == "the same point\n"
    assert (_ratio(0, 1), _ratio("a", "b"), _ratio(2, 1), _ratio(True, True)) == ("", "", "0.5", "")


def test_rm_removes_all_it_was_told_or_nothing(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(store.read_bytes())
    first, second, *rest = keys(copy)
    refused = pimkv("results", "rm", first[:10], "zz", "--store", copy)
    assert refused.exit_code == 2
    assert 'key = "zz"' in refused.stderr
    assert len(keys(copy)) == 5
    assert pimkv("results", "rm", first[:10], second, "--store", copy).stdout.startswith("2 points removed")
    assert keys(copy) == rest


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["ls", "--store", "no.db"], "there is no such file"),
        (["rm", "a", "--store", "no.db"], "there is no such file"),
        (["rm"], "name at least one point"),
        (["export", "--format", "cvs"], 'did you mean "csv"?'),
        (["export", "--format", "parquet"], "name a file with --out"),
        (["export", "--format", "xls", "--out", "no/such/file"], "2 mistakes"),
        (["export", "--out", "."], "must name a file"),
    ],
    ids=" ".join,
)
def test_a_bad_request_names_what_is_wrong(args: list[str], told: str) -> None:
    result = pimkv("results", *args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert told in result.stderr


def test_csv_and_parquet_hold_the_same_table(store: Path, tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    files = [tmp_path / name for name in ("t.csv", "t.parquet", "u.parquet")]
    for file in files:
        kind = file.suffix[1:]
        assert pimkv("results", "export", "--store", store, "--format", kind, "--out", file).exit_code == 0
    assert files[1].read_bytes() == files[2].read_bytes()
    table = polars.read_parquet(files[1])
    rows = list(csv.DictReader(io.StringIO(files[0].read_text())))
    assert table.columns == list(rows[0])
    assert table.columns[1:] == [
        c for part in (True, False) for c in sorted(table.columns[1:]) if c.startswith("config.") == part
    ]
    for row, typed in zip(rows, table.to_dicts(), strict=True):
        for name, value in typed.items():
            text = (
                {None: "", True: "true", False: "false"}.get(value)
                if not isinstance(value, int | float) or isinstance(value, bool)
                else None
            )
            assert row[name] == (str(value) if text is None else text), name
    assert table["config.traffic.writes"].dtype == polars.Boolean
    assert table["exact.m3_gbps"].dtype == polars.Float64
    assert table["traffic.write_bytes"].null_count() == 2


def test_a_column_without_any_value_is_left_out() -> None:
    rows = [Row("a", {"x": None, "y": 1}, {"m": 1, "n": [{"o": 0.5}]}, None), Row("b", {}, None, "failed")]
    assert columns(rows) == {"key": ["a"], "config.y": [1], "m": [1], "n.0.o": [0.5]}
    assert to_csv(columns([])) == "key\n"


def test_a_figure_that_is_whole_in_some_rows_is_a_float_in_all() -> None:
    pytest.importorskip("polars")
    from pimkv.sweep.table import frame

    assert frame({"key": ["a", "b"], "m": [1, 0.5]})["m"].to_list() == [1.0, 0.5]


@pytest.fixture(scope="module")
def result() -> Any:
    return Simulation(load({"workload": {"requests": 30}})).run()


def test_samples_become_a_polars_frame(result: Any) -> None:
    polars = pytest.importorskip("polars")
    frame = result.to_polars()
    assert tuple(frame.columns) == COLUMNS
    assert len(frame) == result.summary["samples"]
    assert frame["m3_gbps"].mean() == pytest.approx(result.summary["published"]["m3_gbps"])
    assert frame["step"].dtype == polars.Int64
    # Undefined is null, not NaN: means leave it out.
    assert frame["region_spread"].mean() == pytest.approx(result.summary["placement"]["region_spread"])
    assert frame["region_spread"].is_nan().sum() == 0


def test_samples_become_a_pandas_frame(result: Any) -> None:
    pytest.importorskip("pandas")
    frame = result.to_pandas()
    assert tuple(frame.columns) == COLUMNS
    assert frame["m1"].mean() == pytest.approx(result.summary["published"]["m1"])
    assert frame["region_spread"].mean() == pytest.approx(result.summary["placement"]["region_spread"])


def test_a_result_is_one_flat_row(result: Any) -> None:
    row = result.to_row()
    assert row["config.workload.requests"] == 30
    assert row["exact.m3_gbps"] == result.summary["exact"]["m3_gbps"]
    assert row["passes.0.m1"] == result.summary["passes"][0]["m1"]


def test_a_missing_library_names_its_extra(
    result: Any, store: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    for module in ("polars", "pandas", "distributed"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r"pip install \"pimkv\[report\]\""):
        result.to_polars()
    with pytest.raises(ImportError, match=r"pimkv\[pandas\]"):
        result.to_pandas()
    with pytest.raises(ConfigError, match=r"pimkv\[report\]"):
        run_sweep([], jobs=1).to_polars()
    refused = pimkv("results", "export", "--store", store, "--format", "parquet", "--out", tmp_path / "t")
    assert (refused.exit_code, "pimkv[report]" in refused.stderr) == (2, True)
    dask = pimkv(
        "sweep", "headline", "--engine", "dask", "--scheduler", "tcp://x:1", "--store", tmp_path / "s"
    )
    assert (dask.exit_code, "pimkv[dask]" in dask.stderr) == (2, True)


def test_a_sweep_becomes_a_polars_frame() -> None:
    pytest.importorskip("polars")
    swept: SweepResult = run_sweep(
        [load({"workload": {"requests": 12}, "seed": seed}) for seed in (1, 0)], jobs=1
    )
    assert swept.to_polars()["config.seed"].to_list() == [0, 1]
