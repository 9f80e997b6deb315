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

from pimkv.allocators import kinds
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
    # Lines may break anywhere, also after a hyphen.
    told = "".join(pimkv("run", "--help").output.split())
    for default in ("host-cacheline", "published", "merged-token", "paired", "33"):
        assert f"[default:{default}]" in told
    for choices in (
        "published|realistic",
        "merged-token|merged-block|split|published-split",
        "|".join(kinds()),
    ):
        assert f"[{choices}]" in told


def test_run_prints_the_published_figures() -> None:
    out = pimkv("run").output
    assert "0.7695" in out
    assert "1,226.3" in out
    assert "6.10" in out


def test_run_json_has_the_promised_keys() -> None:
    result = json.loads(pimkv("run", "--requests", "50", "--json").stdout)
    assert list(result) == ["schema_version", "config", "controller_timing", "versions", "summary", "timing"]
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


@pytest.mark.parametrize(
    "args",
    [
        ["--block-tokens", "24"],
        ["--block-tokens", "96"],
        ["--model", "phi-4"],
        ["--model", "phi-3-mini"],
        ["--model", "deepseek-v3"],
        ["--model", "phi-4", "--kv-layout", "split", "--allocator", "pim-aware"],
    ],
    ids=" ".join,
)
def test_blocks_that_do_not_divide_a_region_run(args: list[str]) -> None:
    result = pimkv("run", "--requests", "5", *args, "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)["summary"]
    assert summary["completed"] == 5 and summary["exact"]["m3_gbps"] > 0


def test_on_and_off_may_be_written_as_in_a_file() -> None:
    for on, off in (("on", "off"), ("true", "false")):
        config = json.loads(
            pimkv("run", "--requests", "2", "--writes", on, "--refresh", off, "--json").stdout
        )["config"]
        assert (config["traffic"]["writes"], config["controller"]["refresh"]) == (True, False)


def test_compare_prints_the_realistic_experiment_too_unless_one_is_named() -> None:
    args = ("compare", "--requests", "10")
    both = pimkv(*args).output.splitlines()
    label = "realistic experiment: split, 2 passes, vllm admission, writes charged"
    realistic, published = both.index(label), both.index("published:")
    tables = both[realistic + 1 : published], both[published + 1 :]
    for table in tables:
        assert [line.split()[0] for line in table if line][1:] == ["allocator", "paged", "pim-aware"]
    assert tables[0] != tables[1]
    for name, table in (("realistic", tables[0]), ("published", tables[1])):
        alone = pimkv(*args, "--experiment", name).output.splitlines()
        assert alone[1].startswith(f"{name} experiment: ")
        assert not {"published:", "realistic:"} & set(alone)
        assert alone[-2:] == [line for line in table if line][-2:]
    # What was given explicitly holds in both.
    assert "realistic experiment: merged-block, 2 passes, oracle admission, writes charged" in pimkv(
        *args, "--kv-layout", "merged-block", "--admission", "oracle"
    ).output.splitlines()  # fmt: skip


def test_compare_json_has_both_experiments_and_one_query_per_command() -> None:
    args = ("compare", "--requests", "10", "--json")
    result = json.loads(pimkv(*args).stdout)
    assert [run["config"]["experiment"] for run in result["runs"]] == ["published"] * 2
    assert [run["config"]["experiment"] for run in result["realistic"]] == ["realistic"] * 2
    for run, kind in zip(result["realistic"], ("paged", "pim-aware"), strict=True):
        config = run["config"]
        assert (config["allocator"]["kind"], config["layout"]["kv_layout"]) == (kind, "split")
        assert (config["scheduler"]["admission"], config["traffic"]["writes"]) == ("vllm", True)
        alone = pimkv("run", "--requests", "10", "--experiment", "realistic", "--allocator", kind, "--json")
        assert json.loads(alone.stdout)["summary"] == run["summary"]
    one = result["one_query_per_command"]
    assert list(one) == ["paged", "pim-aware"]
    for run in result["runs"]:
        kind = run["config"]["allocator"]["kind"]
        alone = pimkv("run", "--requests", "10", "--allocator", kind, "--queries-per-command", "1", "--json")
        assert json.loads(alone.stdout)["summary"]["exact"] == one[kind] != run["summary"]["exact"]
    named = json.loads(pimkv(*args, "--experiment", "realistic").stdout)
    assert named["realistic"] == [] and named["runs"] == result["realistic"]
    # One query head per KV head: a command serves no fewer.
    assert json.loads(pimkv(*args, "--model", "mha-32kv").stdout)["one_query_per_command"] == {}


def test_compare_leaves_out_what_the_realistic_experiment_cannot_run() -> None:
    result = pimkv("compare", "--requests", "10", "--allocators", "contiguous,random", "--json")
    assert result.exit_code == 0
    assert [run["config"]["allocator"]["kind"] for run in json.loads(result.stdout)["realistic"]] == [
        "random"
    ]
    assert "without the realistic contiguous: scheduler.admission" in result.stderr


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
        (["--block-tokens", "-24"], ["layout.block_tokens = -24", "--block-tokens", "0 to 1048576"]),
        (
            ["--model", "mha-32kv", "--block-tokens", "1048576"],
            ["--block-tokens", "32768 rows", "did you mean 524288?"],
        ),
        (
            ["--set", "dram.rows=2", "--block-tokens", "17"],
            ["--block-tokens", "128 blocks of 17 tokens", "17 rows"],
        ),
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
        (
            ["--kv-shards", "8", "--stacks", "2"],
            ["layout.stacks = 2 (--stacks)", "the 1 KV heads of a shard"],
        ),
        (
            ["--kv-layout", "splt"],
            ["layout.kv_layout", "--kv-layout", "merged-block", 'did you mean "split"?'],
        ),
        (["--passes", "3"], ["layout.passes = 3 (--passes)", "from 1 to 2"]),
        (["--passes", "1", "--kv-layout", "split"], ["layout.passes = 1 (--passes)", "two streams"]),
        (["--passes", "1", "--model", "deepseek-v3"], ["layout.passes = 1 (--passes)", "latent"]),
        (
            ["--passes", "2", "--kv-layout", "published-split"],
            ["layout.passes = 2 (--passes)", "reads it once"],
        ),
        (["--traversal", "rows"], ["layout.traversal", 'did you mean "row"?']),
        (["--stacks", "3"], ["layout.stacks = 3 (--stacks)", "choose from 1, 2, 4, 8"]),
        (["--set", "model.window_layers=90"], ["model.window_layers = 90", "model.layers = 32"]),
        (["--timing", "nope"], ["controller.timing", "--timing", "nope", "hbm2-pim"]),
        (["--queries-per-command", "9"], ["controller.queries_per_command = 9", "1 to 4", "did you mean 4?"]),
        (["--queue", "0"], ["controller.queue = 0 (--queue)", "1 to 64"]),
        (["--refresh", "on", "--dram", "gddr6-aim"], ["controller.refresh = true (--refresh)", "aim-gddr6"]),
        (["--refresh", "maybe"], ["controller.refresh", "maybe", "true or false"]),
        (["--writes", "yes"], ["traffic.writes", "yes", "true or false"]),
        (["--feed", "pared"], ["controller.feed", "per-pch", 'did you mean "paired"?']),
        (["--experiment", "real"], ["experiment", "--experiment", 'did you mean "realistic"?']),
        (
            ["--allocator", "contiguous", "--admission", "vllm"],
            ["scheduler.admission", "contiguous", "oracle"],
        ),
        (
            ["--allocator", "contiguous", "--experiment", "realistic"],
            ["scheduler.admission", "contiguous", "oracle"],
        ),
        (
            ["--set", "controller.presets=no/such/timings.toml"],
            ["no/such/timings.toml: there is no such file"],
        ),
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
        assert len(report.splitlines()) == 1
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


def test_where_it_cannot_be_written_comes_in_the_same_report(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    wrong = ("--trace", "no/such/trace.csv", "--seed", "-1")
    run = pimkv("run", *wrong, "--out", str(file / "x" / "y"), "--oplog", str(tmp_path / "no" / "log"))
    for report, words in (
        (
            refused(run),
            (f"{file} is no folder", "its folder does not exist", "no/such/trace.csv", "seed = -1"),
        ),
        (
            refused(pimkv("run", "--seed", "-1", "--out", " ", "--oplog", "")),
            ("name a folder", "name a file", "seed = -1"),
        ),
        (
            refused(pimkv("run", "--out", "a", "--oplog", str(tmp_path))),
            (f'oplog = "{tmp_path}" (--oplog): is a folder',),
        ),
        (
            refused(module_run("--seed", "-1", "--out", str(tmp_path / "no" / "x.csv"))),
            ('x.csv" (--out): its folder does not exist', "seed = -1"),
        ),
        (refused(module_run("--out", str(file / "x.csv"))), (f"{file} is no folder",)),
    ):
        assert all(word in report for word in words), report
        assert len(report.splitlines()) == len(words) + (len(words) > 1)
    assert sorted(tmp_path.iterdir()) == [file]


def test_a_folder_without_leave_to_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda place, mode: False)  # whoever runs the tests may be allowed all
    assert f"{tmp_path} cannot be written to" in refused(pimkv("run", "--out", str(tmp_path / "a" / "b")))
    assert f"{tmp_path} cannot be written to" in refused(module_run("--out", str(tmp_path / "a.csv")))


def test_what_does_not_fit_together_comes_in_one_report(tmp_path: Path) -> None:
    timings = tmp_path / "timings.toml"
    timings.write_text('[mine]\nbase = "attacc-hbm3-5.2"\nnRCD = 0\n')
    args = "--passes 1 --kv-layout split --stacks 3 --queries-per-command 9 --queue 0 --feed pared --set model.window=9"
    for command in ("run", "compare"):
        report = refused(
            pimkv(command, *args.split(), "--set", f"controller.presets={timings}", "--timing", "mine")
        )
        head, *lines = report.splitlines()
        assert "7 mistakes" in head
        expected = ("timing.mine.nRCD", "model.window_layers", "layout.passes", "layout.stacks", "controller.queue",
                    "controller.feed", "controller.queries_per_command")  # fmt: skip
        assert [line.split()[0] for line in lines] == list(expected)
        assert str(timings) in lines[0]


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
    more = pimkv("run", "--trace", str(trace), "--requests", "2", "--json")
    assert json.loads(more.stdout)["summary"]["completed"] == 1
    assert "asked for 2 requests, the trace has 1" in more.stderr


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
    assert "refused" not in table
    lines = {tuple(line.split()[:3:2]): line for line in table.splitlines()}
    assert len(lines) == 1 + 2 * len(json.loads(pimkv("presets", "model", "--json").stdout)["model"])
    assert "exact 8 in 1" in lines["llama-gqa-8kv", "16"]
    assert "padded 5 in 1" in lines["llama-gqa-8kv", "24"] and "6.2 %" in lines["llama-gqa-8kv", "24"]
    assert "span 4 in 3" in lines["mha-32kv", "24"]
    assert "padded 6 in 1" in lines["phi-4", "16"]
    mixed = pimkv("derive", "--model", "mqa-1kv,mha-32kv", "--block-tokens", "16,1048576").output
    (refused_line,) = [line for line in mixed.splitlines() if "refused" in line]
    assert refused_line.split()[:3] == ["mha-32kv", "hbm3-pim", "1048576"]
    assert mixed.rstrip().endswith("the DRAM has 16384; did you mean 524288?")
    one = json.loads(pimkv("derive", "--block-tokens", "24", "--json").stdout)
    assert (one["unit"], one["unit_blocks"], one["unit_regions"], one["waste"]) == ("padded", 5, 1, 0.0625)
    assert "--stacks" in refused(pimkv("derive", "--stacks", "3"))
    assert json.loads(pimkv("presets", "dram", "--json").stdout)["dram"]["hbm3-pim"]["channels"] == 32
    assert "host-cacheline" in pimkv("presets").output
    assert json.loads(pimkv("presets", "schema").stdout)["type"] == "object"
    assert "dram, model, addrmap, timing" in refused(pimkv("presets", "drams"))


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


def test_the_published_commands_of_every_kind(tmp_path: Path) -> None:
    commands = [
        "--workload spec --allocator paged --spec-adopt copyback --pim-scratch separate",
        "--workload spec --allocator pim-aware --spec-adopt copyback --pim-scratch separate --spec-width 2",
        "--workload prefix --allocator contiguous",
        "--workload longctx --max-batch 16 --allocator random --addrmap pim-friendly",
        "--admission vllm --pool-blocks 400 --coalesce inorder --block-tokens 0 --kv-shards 2",
    ]
    for command in commands:
        result = module_run("--requests", "30", *command.split())
        assert result.exit_code == 0, result.output


def test_the_published_command_line_reports_all_mistakes() -> None:
    report = refused(module_run("--workload", "spek", "--spec-width", "0", "--allocator", "contigous"))
    for word in ("spek", "--spec-width", "contiguous", "3 mistakes"):
        assert word in report
    assert "--block-tokens" in refused(module_run("--block-tokens", "-24"))
    assert module_run("--block-tokens", "24", "--requests", "5").exit_code == 0
    assert "oracle" in refused(module_run("--admission", "vllm", "--allocator", "contiguous"))


def test_options_of_an_allocator_that_has_none_are_refused() -> None:
    report = refused(pimkv("run", "--allocator", "paged", "--pim-plan", "best-fit"))
    assert "plan" in report
    # compare gives each allocator the options it knows.
    assert pimkv("compare", "--requests", "20", "--pim-plan", "best-fit").exit_code == 0


def test_no_such_folder_is_a_message(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert "--out" in refused(pimkv("run", "--requests", "5", "--out", str(file / "x")))
    assert file.read_text() == ""


def test_the_ablation_of_gather_shows_every_lever() -> None:
    small = ("--requests", "30", "--headroom", "0.4", "--admission", "vllm", "--max-batch", "16")
    table = pimkv("compare", "--ablation", "gather", *small, "--quiet")
    assert table.exit_code == 0, table.stderr
    for lever in ("own region first", "relocation in growth", "repair, budget 32", "reserve 64"):
        assert lever in table.output
    runs = json.loads(pimkv("compare", "--ablation", "gather", *small, "--quiet", "--json").output)["runs"]
    kinds = {run["lever"]: run["config"]["allocator"]["kind"] for run in runs}
    assert kinds["paged"] == "paged" and kinds["no lever"] == kinds["pim-gather"] == "pim-gather"
    shares = {run["lever"]: run["copy_share"] for run in runs}
    assert shares["own region first"] == 0 < shares["pim-gather"] < 0.05


@pytest.mark.parametrize("arguments", [("--ablation", "x"), ("--ablation", "gather", "--allocator", "paged")])
def test_a_wrong_ablation_is_a_bad_request(arguments: tuple[str, ...]) -> None:
    refused = pimkv("compare", *arguments)
    assert refused.exit_code == 2
    assert "--ablation" in refused.stderr
