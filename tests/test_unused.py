"""Is the user told of options that change nothing, and only of those?"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pimkv.cli import main
from pimkv.cli.unused import unused
from pimkv.config import load
from pimkv.run import main as published


def run(*args: str) -> Result:
    result = CliRunner().invoke(main, ["run", "--requests", "12", "--max-batch", "6", *args, "--json"])
    assert result.exit_code == 0, result.stderr
    return result


def figures(result: Result) -> Any:
    return json.loads(result.stdout)["summary"]


# What the run is, the option as field and flag, two values of it, and a word of the reason.
UNUSED = [
    ("", "workload.step_ms", "--step-ms", "10", "500", "trace"),
    ("--trace {trace} --arrival-rate 0.5", "workload.step_ms", "--step-ms", "10", "500", "arrival_rate"),
    ("", "speculation.width", "--spec-width", "2", "4", '"steady"'),
    ("", "speculation.depth", "--spec-depth", "2", "4", '"steady"'),
    ("--workload prefix", "speculation.accept", "--spec-accept", "0", "1", '"prefix"'),
    ("", "speculation.adopt", "--spec-adopt", "splice", "copyback", '"steady"'),
    ("--allocator pim-aware", "allocator.options.scratch", "--pim-scratch", "shared", "separate", '"steady"'),
    ("--pool-blocks 512", "scheduler.headroom", "--headroom", "0.5", "3", "pool_blocks = 512"),
    (
        "--allocator contiguous",
        "scheduler.free_order",
        "--free-order",
        "reversed",
        "shuffled",
        '"contiguous"',
    ),
    ("--coalesce inorder", "scoring.window", "--window", "1", "64", '"inorder"'),
    ("--allocator neupims --headroom 20", "scoring.window", "--window", "1", "64", "pages"),
    ("--allocator neupims --headroom 20", "scoring.coalesce", "--coalesce", "window", "inorder", "pages"),
    (
        "--allocator neupims --headroom 20",
        "layout.addrmap",
        "--addrmap",
        "host-centric",
        "pim-friendly",
        "pages",
    ),
    (
        "--allocator neupims --headroom 20",
        "layout.kv_layout",
        "--kv-layout",
        "split",
        "merged-block",
        "pages",
    ),
    ("", "dram.pin_gbps", None, "100", "900", "traffic.writes"),
]
# The same options where they count.
USED = [
    ("--trace {trace}", "--step-ms", "10", "500"),
    ("--workload spec", "--spec-width", "2", "4"),
    ("--workload spec", "--spec-depth", "2", "4"),
    ("--workload spec", "--spec-accept", "0", "1"),
    ("--workload spec", "--spec-adopt", "splice", "copyback"),
    ("--workload spec --allocator pim-aware", "--pim-scratch", "shared", "separate"),
    ("", "--headroom", "1.5", "3"),
    ("--pool-blocks 512", "--free-order", "reversed", "shuffled"),
    ("--allocator neupims --pool-blocks 1120", "--free-order", "reversed", "shuffled"),
    ("", "--window", "1", "64"),
    ("--writes on", "dram.pin_gbps", "100", "900"),
]


def parts(text: str, tmp_path: Path) -> list[str]:
    trace = tmp_path / "trace.csv"
    rows = "".join(f"{20 + 7 * i},{5 + i},{i / 3}\n" for i in range(12))
    trace.write_text("num_prefill_tokens,num_decode_tokens,arrived_at\n" + rows)
    return shlex.split(text.format(trace=trace))


@pytest.mark.parametrize(("of", "field", "flag", "one", "other", "why"), UNUSED, ids=lambda v: v and str(v))
def test_what_changes_nothing_is_said(
    of: str, field: str, flag: str | None, one: str, other: str, why: str, tmp_path: Path
) -> None:
    """And it is true: another value gives the same figures."""
    start = parts(of, tmp_path)
    plain = run(*start)
    assert plain.stderr == ""
    for value in (one, other):
        result = run(*start, *((flag, value) if flag else ("--set", f"{field}={value}")))
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"pimkv: {field} ({flag}) has" if flag else f"pimkv: {field} has")
        assert " has no effect: " in line and why in line
        assert figures(result) == figures(plain)


@pytest.mark.parametrize(("of", "option", "one", "other"), USED, ids=str)
def test_what_counts_is_not_warned_of(of: str, option: str, one: str, other: str, tmp_path: Path) -> None:
    start = parts(of, tmp_path)
    give = (lambda v: (option, v)) if option.startswith("--") else (lambda v: ("--set", f"{option}={v}"))
    results = [run(*start, *give(value)) for value in (one, other)]
    assert [result.stderr for result in results] == ["", ""]
    assert figures(results[0]) != figures(results[1])


def test_a_warning_comes_once_and_in_order() -> None:
    told = run("--window", "8", "--spec-width", "2", "--coalesce", "inorder", "--set", "speculation.width=3")
    assert [line.split()[1] for line in told.stderr.splitlines()] == ["speculation.width", "scoring.window"]


def test_quiet_is_quiet() -> None:
    assert run("--spec-width", "2", "--quiet").stderr == ""


def test_a_complete_file_is_not_blamed(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    run("--out", str(folder))
    assert run("--config", str(folder / "config.toml")).stderr == ""
    assert "--spec-depth" in run("--config", str(folder / "config.toml"), "--spec-depth", "2").stderr


def test_every_reason_is_of_a_field() -> None:
    nothing_counts = load(
        {
            "allocator": {"kind": "contiguous"},
            "scheduler": {"pool_blocks": 512},
            "scoring": {"coalesce": "inorder"},
        }
    )
    fields = {field for _, field, *_ in UNUSED}
    of_pages = load({"allocator": {"kind": "neupims"}})
    assert {*unused(nothing_counts), *unused(of_pages)} == fields
    everything_counts = {"workload": {"kind": "spec", "trace": "a"}, "traffic": {"writes": True}}
    assert unused(load(everything_counts)) == {}


def test_the_published_program_says_nothing(tmp_path: Path) -> None:
    for command in (
        "--spec-width 4 --pim-scratch separate --coalesce inorder --window 64",
        "--workload steady --allocator contiguous --spec-adopt copyback",
    ):
        result = CliRunner().invoke(published, ["--requests", "12", *command.split()])
        assert (result.exit_code, result.stderr) == (0, "")
