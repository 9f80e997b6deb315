"""The commands as a person runs them: output, exit codes, error reports, files."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pimkv.cli import COMMANDS, main
from pimkv.run import main as published


def pimkv(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def module_run(*args: str) -> Result:
    return CliRunner().invoke(published, args, prog_name="python -m pimkv.run")


def refused(result: Result) -> str:
    """The report of a bad request: exit 2, nothing on stdout, no traceback."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def test_help_lists_every_command_and_imports_none_of_the_heavy_modules() -> None:
    listed = pimkv("--help").output
    assert all(name in listed for name in COMMANDS)
    code = (
        "import sys; from pimkv.cli import main; main(['--help'], standalone_mode=False); "
        "heavy = {'numpy', 'pydantic', 'pimkv._pimkv', 'matplotlib'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert pimkv(name, "--help").exit_code == 0
    assert "default: host-cacheline" in pimkv("run", "--help").output


def test_run_prints_the_published_figures() -> None:
    out = pimkv("run").output
    assert "0.7695" in out
    assert "1,226.3" in out
    assert "6.10" in out


def test_run_json_has_the_promised_keys() -> None:
    result = json.loads(pimkv("run", "--requests", "50", "--json").stdout)
    assert list(result) == ["schema_version", "config", "versions", "summary", "timing"]
    summary = result["summary"]
    promised = [
        "decode_steps",
        "samples",
        "completed",
        "dropped",
        "pool_blocks",
        "peak_live_blocks",
        "blocks_allocated",
        "admission_failures",
        "preemptions",
        "cow_copies",
        "spec_stalls",
        "copied_bytes",
        "published",
        "exact",
        "placement",
    ]
    assert set(promised) <= set(summary)
    assert set(summary["published"]) == {"m1", "m2", "m3_gbps", "m4_ns"}
    assert {"m1", "m2", "m3_gbps", "commands", "hits", "bursts", "bytes"} <= set(summary["exact"])
    assert set(summary["placement"]) == {"adjacent", "same_region", "region_spread", "runs"}
    assert summary["completed"] == 50
    assert result["config"]["workload"]["requests"] == 50
    assert result["timing"]["wall_s"] > 0


def test_undefined_figures_are_null() -> None:
    """Blocks of a whole region: no spread is defined."""
    summary = json.loads(pimkv("run", "--requests", "20", "--block-tokens", "128", "--json").stdout)[
        "summary"
    ]
    assert summary["placement"]["region_spread"] is None


def test_a_run_with_only_dropped_requests_is_a_result(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n500,5\n600,6\n")
    summary = json.loads(pimkv("run", "--trace", str(trace), "--pool-blocks", "8", "--json").stdout)[
        "summary"
    ]
    assert (summary["dropped"], summary["completed"], summary["samples"]) == (2, 0, 0)
    assert summary["exact"]["m3_gbps"] is None
    assert pimkv("run", "--trace", str(trace), "--pool-blocks", "8").exit_code == 0
    assert pimkv("compare", "--trace", str(trace), "--pool-blocks", "8").exit_code == 0


def test_backends_agree_through_the_command_line() -> None:
    summaries = [
        json.loads(pimkv("run", "--requests", "10", "--backend", name, "--json").stdout)["summary"]
        for name in ("rust", "reference")
    ]
    assert summaries[0] == summaries[1]


def test_compare_ends_with_the_headline() -> None:
    lines = pimkv("compare").output.strip().splitlines()
    paged, aware = lines[-2].split(), lines[-1].split()
    assert paged[:6] == ["paged", "0.7695", "0.9894", "1226.3", "1.00x", "6.10"]
    assert aware[:6] == ["pim-aware", "0.9633", "0.9898", "2805.4", "2.29x", "1.00"]
    assert (paged[8], aware[8]) == ("1204.6", "2853.9")


def test_compare_json_and_folders(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    args = ("compare", "--requests", "30", "--allocators", "pim-aware,paged", "--json", "--out", str(out))
    result = json.loads(pimkv(*args).stdout)
    assert result["base"] == "pim-aware"
    assert result["ratios"]["pim-aware"]["exact_m3_gbps"] == 1
    assert result["ratios"]["paged"]["exact_m3_gbps"] < 1
    for name in ("paged", "pim-aware"):
        assert sorted(f.name for f in (out / name).iterdir()) == [
            "config.toml",
            "samples.csv",
            "summary.json",
        ]
    again = pimkv("run", "--config", str(out / "paged" / "config.toml"), "--json")
    assert json.loads(again.stdout)["summary"] == result["runs"][1]["summary"]


def test_files_of_a_run_hold_no_clock(tmp_path: Path) -> None:
    pimkv("run", "--requests", "30", "--out", str(tmp_path / "a"))
    pimkv("run", "--requests", "30", "--out", str(tmp_path / "b"), "--backend", "reference")
    for name in ("config.toml", "summary.json", "samples.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert "wall_s" not in (tmp_path / "a" / "summary.json").read_text()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--dram", "hbm3-pin"], ["dram.preset", "hbm3-pin", "hbm3-pim"]),
        (["--model", "llama-3-70"], ["llama-3-70b"]),
        (["--allocator", "pim-awre"], ["allocator.kind", "pim-aware"]),
        (["--pool-blocks", "200000"], ["--pool-blocks", "131072"]),
        (["--headroom", "100"], ["GiB", "131072"]),
        (["--block-tokens", "24"], ["--block-tokens", "16", "32"]),
        (["--allocator", "pim-aware", "--pool-blocks", "100"], ["pool_blocks = 100", "96", "104"]),
        (["--set", "dram.rows=1000"], ["dram.rows", "1000", "power of two"]),
        (["--addrmap", "row:14 col:4 bg:2 ba:2 ch:5"], ["--addrmap", "col"]),
        (["--seed", "-1"], ["seed = -1", "--seed"]),
        (["--requests", "0"], ["workload.requests = 0", "1"]),
        (["--requests", "ten"], ["workload.requests", "ten"]),
        (["--max-batch", "0"], ["scheduler.max_batch = 0"]),
        (["--window", "0"], ["scoring.window = 0"]),
        (["--arrival-rate", "0"], ["workload.arrival_rate"]),
        (["--arrival-rate", "1e-300"], ["arrival_rate"]),
        (["--headroom", "0.00001"], ["headroom"]),
        (["--kv-shards", "16"], ["kv_shards", "8"]),
        (["--model", "phi-4"], ["phi-4", "not supported yet"]),
        (["--backend", "rusty"], ["backend", "rust"]),
        (["--set", "nonsense"], ["nonsense"]),
        (["--config", "no/such/file.toml"], ["no/such/file.toml"]),
        (["--trace", "no/such/trace.csv"], ["no/such/trace.csv"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_request_names_what_is_wrong(args: list[str], told: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    for command in ("run", "compare"):
        if command == "compare" and "--allocator" in args:
            continue
        report = refused(pimkv(command, *args, "--out", str(out)))
        assert all(word in report for word in told), report
        assert not out.exists()


def test_all_mistakes_come_in_one_report() -> None:
    args = "--dram hbm9 --seed -1 --headroom nan --requests x --set allocatr.kind=paged --set nonsense --backend rusty"
    for command in ("run", "compare"):
        report = refused(pimkv(command, *args.split()))
        for word in (
            "hbm9",
            "seed = -1",
            "headroom = nan",
            '"x"',
            "allocatr",
            "rusty",
            "nonsense",
            "7 mistakes",
        ):
            assert word in report, word
        assert len(report.splitlines()) == 8


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "empty"),
        ("a,b\n1,2\n", "a,b"),
        ("num_prefill_tokens,num_decode_tokens\n5,x\n", ":2"),
        ("num_prefill_tokens,num_decode_tokens\n", "no"),
        ('{"timestamp": 1, "input_length": 5}\n', "output_length"),
    ],
)
def test_a_bad_trace_names_file_line_and_value(text: str, told: str, tmp_path: Path) -> None:
    trace = tmp_path / "requests.trace"
    trace.write_text(text)
    report = refused(pimkv("run", "--trace", str(trace)))
    assert "requests.trace" in report
    assert told in report


def test_skipped_requests_are_logged_and_counted(tmp_path: Path) -> None:
    trace = tmp_path / "requests.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n5,5\n0,5\n5,0\n")
    result = pimkv("run", "--trace", str(trace), "--json")
    assert json.loads(result.stdout)["summary"]["skipped_requests"] == 2
    assert "requests.csv:3" in result.stderr
    assert pimkv("run", "--trace", str(trace), "--quiet", "--json").stderr == ""
    report = refused(pimkv("run", "--trace", str(trace), "--requests", "2"))
    assert "allowed 1" in report


def test_six_real_traces_run(shared: Path) -> None:
    names = (
        "azure2023_conv.csv", "mooncake_conversation.jsonl.gz", "sharegpt_v3_firstturn.csv.gz",
        "sharegpt4_multiturn_8k.csv.gz", "arxiv_summarization_4k.csv.gz", "agent_miniswe.jsonl.gz",
    )  # fmt: skip
    for name in names:
        result = pimkv(
            "run", "--trace", str(shared / "traces" / name), "--requests", "100", "--max-batch", "8", "--json"
        )
        summary = json.loads(result.stdout)["summary"]
        assert summary["completed"] + summary["dropped"] == 100


def test_derive_and_presets() -> None:
    one = json.loads(pimkv("derive", "--json").stdout)
    assert (one["blocks_per_region"], one["region_bytes"], one["region_tokens"]) == (8, 524288, 128)
    table = pimkv("derive", "--model", "all", "--block-tokens", "16,24").output
    assert "refused" in table
    assert "mqa-1kv" in table
    assert json.loads(pimkv("presets", "dram", "--json").stdout)["dram"]["hbm3-pim"]["channels"] == 32
    assert "host-cacheline" in pimkv("presets").output
    assert json.loads(pimkv("presets", "schema").stdout)["type"] == "object"
    assert "dram, model, addrmap" in refused(pimkv("presets", "drams"))


def test_the_published_command_line(tmp_path: Path) -> None:
    out = tmp_path / "samples.csv"
    result = module_run("--requests", "200", "--addrmap", "host-cacheline", "--out", str(out))
    assert result.exit_code == 0, result.output
    samples = list(csv.DictReader(out.read_text().splitlines()))
    meta: dict[str, Any] = json.loads((tmp_path / "samples.csv.meta.json").read_text())
    assert len(samples) == meta["summary"]["samples"] > 0
    mean = sum(float(s["m1"]) for s in samples) / len(samples)
    assert mean == pytest.approx(meta["summary"]["published"]["m1"], rel=1e-6)
    assert "timing" not in meta


def test_the_published_defaults_differ_in_two() -> None:
    out = module_run().output
    assert "2000 requests" in out
    assert "host-centric" in out
    assert "0.9703" in out


def test_the_published_command_line_refuses_what_is_to_come() -> None:
    report = refused(module_run("--workload", "spec", "--spec-width", "8", "--allocator", "contiguous"))
    for word in ("spec", "--spec-width", "contiguous"):
        assert word in report
    assert "--block-tokens" in refused(module_run("--block-tokens", "24"))
    assert pimkv("run", "--block-tokens", "0", "--requests", "5").exit_code == 0


def test_no_such_folder_is_a_message(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert "--out" in refused(pimkv("run", "--requests", "5", "--out", str(file / "x")))
    assert file.read_text() == ""
