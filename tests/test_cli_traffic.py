"""Traffic on the command line: drawn chat lengths, traces with hash chains, the prefix cache and its replay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pimkv.cli import main


def pimkv(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stdout == "" and "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Four turns of one conversation, 20 tokens more each time, with 16-token hashes; the tails are their own."""
    path = tmp_path / "turns.jsonl"
    lines = []
    for turn in range(4):
        prompt = 40 + 32 * turn
        hashes = [*range(prompt // 16), 100 + turn]
        row = {"timestamp": 3000 * turn, "input_length": prompt, "output_length": 20, "hash_ids": hashes}
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines))
    return str(path)


def test_run_with_sharegpt_lengths() -> None:
    done = pimkv("run", "--workload", "sharegpt", "--requests", "40", "--json")
    assert done.exit_code == 0
    result = json.loads(done.stdout)
    assert result["summary"]["completed"] == 40
    assert result["summary"]["prefix_cache"] is None
    assert result["config"]["workload"]["arrival_rate"] == 0.25
    assert "sharegpt" in pimkv("run", "--help").output


def test_run_with_a_prefix_cache(trace: str) -> None:
    args = ("run", "--trace", trace, "--prefix-cache", "on")
    out = pimkv(*args).output
    # 2, 4, 6 full blocks of the turns before, of 3 + 5 + 7 + 9 blocks.
    assert "50.00 % of 24 prompt blocks found, 192 tokens" in out
    assert "at most 8 kept, 0 evicted" in out
    rust, twin = (
        json.loads(pimkv(*args, "--json", "--backend", name).stdout) for name in ("rust", "reference")
    )
    assert rust["summary"] == twin["summary"]
    assert rust["summary"]["prefix_cache"] == {
        "hit_blocks": 12,
        "looked_up_blocks": 24,
        "hit_share": 0.5,
        "hit_tokens": 192,
        "recovered_blocks": 0,
        "evicted_blocks": 0,
        "peak_blocks": 8,
    }
    limited = json.loads(pimkv(*args, "--json", "--set", "scheduler.cache_blocks=3").stdout)
    assert limited["summary"]["prefix_cache"]["peak_blocks"] == 3
    assert limited["summary"]["prefix_cache"]["hit_blocks"] == 2 + 3 + 3


def test_a_run_folder_runs_again(trace: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert pimkv("run", "--trace", trace, "--prefix-cache", "on", "--out", str(folder)).exit_code == 0
    again = json.loads(pimkv("run", "--config", str(folder / "config.toml"), "--json").stdout)
    assert again["summary"] == json.loads((folder / "summary.json").read_text())["summary"]


def test_an_operation_log_of_a_run_with_a_cache_replays(trace: str, tmp_path: Path) -> None:
    log = str(tmp_path / "run.log")
    args = ("--trace", trace, "--prefix-cache", "on", "--set", "scheduler.cache_blocks=3")
    for kind in ("pim-gather", "pim-aware"):
        assert pimkv("run", *args, "--allocator", kind, "--oplog", log).exit_code == 0
        replayed = pimkv("bench", "ops", "--log", log, "--repeat", "1").output
        assert "every id as recorded" in replayed
        # The three that the cache still has are taken and not given back.
        counts = {
            row[0]: int(row[1])
            for line in replayed.splitlines()
            if (row := line.split())[:1] in (["take"], ["give"])
        }
        assert counts["take"] - counts["give"] == 3


def test_compare_shows_the_caches(trace: str) -> None:
    out = pimkv("compare", "--trace", trace, "--prefix-cache", "on", "--allocator", "paged,pim-gather").output
    rows = [
        line.split()
        for line in out.splitlines()
        if line.strip().startswith(("paged, pub", "pim-gather, pub"))
    ]
    assert [row[2:6] for row in rows] == [["24", "12", "50.00", "%"]] * 2
    assert "prefix cache" not in pimkv("compare", "--trace", trace).output


def test_trace_prints_lengths_and_hit_shares(trace: str) -> None:
    out = pimkv("trace", trace, "--cache-blocks", "1,3").output
    assert "4 requests" in out
    table = [line.split() for line in out.splitlines() if "%" in line]
    assert [(row[0], row[1], row[2]) for row in table] == [
        ("1", "24", "3"),
        ("3", "24", "8"),
        ("any", "number", "24"),
    ]
    facts = json.loads(pimkv("trace", trace, "--json", "--block-tokens", "32").stdout)
    assert facts["lengths"]["prompt"]["mean"] == 88
    assert facts["prefix_cache"]["hash_tokens"] == 16
    # 1, 2, 3 full blocks of 32 tokens of the turns before, of 2 + 3 + 4 + 5.
    assert [(r["hit_blocks"], r["looked_up_blocks"]) for r in facts["prefix_cache"]["sizes"]] == [(6, 14)]


def test_trace_of_lengths_only(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("ContextTokens,GeneratedTokens\n10,20\n30,40\n")
    assert "no hash chains" in pimkv("trace", str(path)).output
    assert json.loads(pimkv("trace", str(path), "--json").stdout)["prefix_cache"] is None
    told = refused(pimkv("trace", str(path), "--cache-blocks", "4"))
    assert "has no hash chains" in told


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["trace", "{trace}", "--cache-blocks", "0"], "cache_blocks = 0: allowed an integer from 1"),
        (["trace", "{trace}", "--cache-blocks", "4,x"], "cache_blocks = 'x': allowed an integer from 1"),
        (["trace", "{trace}", "--block-tokens", "x"], "block_tokens = 'x': allowed an integer from 1"),
        (["trace", "{trace}", "--hash-tokens", "x"], "hash_tokens = 'x': allowed an integer from 1"),
        (["trace", "{trace}", "--hash-tokens", "8"], ":1: hash_ids: 3 hashes of a prompt of 40 tokens"),
        (["trace", "{trace}", "--requests", "0"], "requests = 0: allowed an integer from 1"),
        (["trace", "{trace}", "--step-ms", "0"], "step_ms = 0.0: allowed a number above 0"),
        (["trace", "no/such/file"], "no/such/file: cannot be read"),
        (
            ["run", "--prefix-cache", "on"],
            "scheduler.prefix_cache = true (--prefix-cache): finds equal beginnings",
        ),
        (["run", "--workload", "sharegpt", "--trace", "{trace}"], "workload.kind = sharegpt"),
        (["run", "--trace", "{trace}", "--prefix-cache", "maybe"], "scheduler.prefix_cache"),
        (["run", "--trace", "{trace}", "--set", "scheduler.cache_blocks=4"], "scheduler.cache_blocks = 4"),
        (
            ["run", "--trace", "{trace}", "--prefix-cache", "on", "--allocator", "contiguous"],
            "scheduler.prefix_cache = true (--prefix-cache): shares blocks",
        ),
        (
            ["run", "--trace", "{trace}", "--prefix-cache", "on", "--set", "workload.hash_tokens=8"],
            ":1: hash_ids: 3 hashes of a prompt of 40 tokens",
        ),
    ],
)
def test_a_bad_request_names_what_is_wrong(trace: str, args: list[str], told: str) -> None:
    report = refused(pimkv(*(arg.format(trace=trace) for arg in args)))
    assert told in report.replace('"', ""), report


def test_the_conversation_trace_runs_with_a_prefix_cache(shared: Path) -> None:
    path = shared / "traces" / "mooncake_conversation.jsonl.gz"
    if not path.is_file():
        pytest.skip("no Mooncake conversation trace in the folder of shared reference data")
    args = ("--trace", str(path), "--requests", "300", "--set", "scheduler.prefix_cache=true")
    result = json.loads(pimkv("run", *args, "--json").stdout)
    assert result["summary"]["completed"] == 300
    assert result["summary"]["prefix_cache"]["hit_share"] > 0.02
