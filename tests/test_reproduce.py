"""The ledger of published claims, and the runner that makes its runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pimkv import published
from pimkv.cli import main
from pimkv.config import Config, load
from pimkv.errors import ConfigError
from pimkv.published import Row
from pimkv.reproduce import (
    DIFFERS,
    EXACT,
    WITHIN,
    Claim,
    alike,
    at_most,
    beside,
    choose,
    equal,
    judge,
    more_than,
    rounded,
    row_claims,
)
from pimkv.sentences import SENTENCES
from pimkv.simulation import Simulation
from pimkv.sweep.runner import Failure, run_all, run_many

PREFIX = [row for row in published.rows() if row.name.startswith("prefix/")]


def reproduce(*args: str) -> Result:
    return CliRunner().invoke(main, ["reproduce", *args])


def changed(row: Row, **values: str) -> Row:
    return Row(row.values | values)


def with_rows(monkeypatch: pytest.MonkeyPatch, *rows: Row) -> None:
    monkeypatch.setattr(published, "rows", lambda: rows)


def short(**given: Any) -> Config:
    """A run of a few milliseconds."""
    return load({"workload": {"requests": 12}} | given)


TOO_LARGE = short(scheduler={"headroom": 100.0, "max_batch": 60000})


# --- verdicts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "verdict"),
    [
        (rounded("gain", 6.483, "6.5", "x"), WITHIN),
        (rounded("gain", 6.45, "6.5"), WITHIN),
        (rounded("gain", 6.4499, "6.5"), DIFFERS),
        (rounded("gain", 6.5501, "6.5"), DIFFERS),
        (rounded("M3", 1173.41, "1173"), WITHIN),
        (rounded("M3", 1173.51, "1173"), DIFFERS),
        (rounded("share", 12.4, "12", about="0.5"), WITHIN),
        (rounded("share", 12.6, "12", about="0.5"), DIFFERS),
        (at_most("range", 0.0079, "0.0079"), EXACT),
        (at_most("range", 0.00794, "0.0079"), WITHIN),
        (at_most("range", 0.00796, "0.0079"), DIFFERS),
        (more_than("copies", 10_001, 10_000), EXACT),
        (more_than("copies", 10_000, 10_000), DIFFERS),
        (equal("M1", "31/32", "31/32"), EXACT),
        (equal("blocks", 9, "8"), DIFFERS),
        (alike("M1", [0.5, 0.5]), EXACT),
        (alike("M1", [0.5, 0.5 + 1e-16, 0.5 + 2e-16]), DIFFERS),
        (alike("M1", [0.5, 0.5004], 0.0005), WITHIN),
        (alike("M1", [0.5, 0.5006], 0.0005), DIFFERS),
    ],
    ids=lambda value: f"{value.published}-{value.measured}" if hasattr(value, "measured") else "",
)
def test_a_figure_is_judged_by_what_was_printed(check: Any, verdict: str) -> None:
    assert check.verdict == verdict


def test_a_tolerance_is_printed_with_the_verdict() -> None:
    assert rounded("gain", 6.483, "6.5", "x").judged == "within tolerance (±0.05)"
    assert rounded("share", 11.9, "12", " %", about="0.5").published == "about 12 %"
    assert rounded("gain", 7, "6.5", "x").measured == "7.000x"


def test_a_claim_is_as_good_as_its_worst_figure_and_says_what_differs() -> None:
    def claim(*checks: Any) -> Claim:
        return Claim("name", "says", {}, lambda _: checks)

    good, near, bad = equal("a", 1, "1"), rounded("b", 1.01, "1.0"), equal("c", 1, "2")
    entries = judge([claim(good, beside("d", 9, 1)), claim(good, near), claim(near, bad, good)])
    assert [entry.verdict for entry in entries] == [EXACT, WITHIN, DIFFERS]
    assert [entry.why for entry in entries] == [[], [], ["c: published 2, measured 1"]]


def test_every_row_is_a_claim_and_names_are_unique() -> None:
    names = [claim.name for claim in (*row_claims(), *SENTENCES)]
    assert len(row_claims()) == 47
    assert len(set(names)) == len(names)


def test_what_the_writeup_says_in_words() -> None:
    # Of the 108 runs over the seeds those with the blocks that move most; `pimkv reproduce` makes them all.
    claims = [
        replace(claim, runs={label: run for label, run in claim.runs.items() if "/4/" in label})
        if claim.name == "seeds"
        else claim
        for claim in SENTENCES
    ]
    entries = {entry.claim.name: entry for entry in judge(claims, jobs=2)}
    assert {name: entry.why for name, entry in entries.items() if entry.why} == {}
    assert [check.verdict for check in entries["seeds"].checks] == [WITHIN, EXACT, "not judged"]


def test_claims_share_their_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Config] = []

    def run(configs: Sequence[Config], **_: Any) -> list[Any]:
        asked.extend(configs)
        return run_all(configs, jobs=1)

    monkeypatch.setattr("pimkv.reproduce.run_all", run)
    tables = {"workload": {"requests": 12}}
    # Spelled differently, the same run.
    same = [tables, tables | {"seed": 0}, tables | {"allocator": {"kind": "paged"}}, tables | {"seed": 1}]
    claims = [
        Claim(str(i), "", {"it": t}, lambda s: [equal("n", s["it"]["completed"], "12")])
        for i, t in enumerate(same)
    ]
    assert {entry.verdict for entry in judge(claims)} == {EXACT}
    assert asked == [short(), short(seed=1)]


# --- the command -------------------------------------------------------------------------------------------------


def test_rows_that_fit_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    with_rows(monkeypatch, *PREFIX)
    result = reproduce("--jobs", "1")
    assert result.exit_code == 0, result.output
    line = next(line for line in result.stdout.splitlines() if "pim-aware" in line)
    assert line.split()[1:] == [
        "0.96570798", "2867.0944", "0.96570798", "2867.0944", "13", "of", "13", "exact"
    ]  # fmt: skip
    assert result.stdout.splitlines()[-1] == "3 rows: 3 exact, 0 differ."
    assert result.stderr == ""


def test_a_wrong_digit_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    paged, aware, spans = PREFIX
    with_rows(monkeypatch, paged, changed(aware, m1="0.96570799", samples="253"), spans)
    result = reproduce("--jobs", "1")
    assert result.exit_code == 1
    line = next(line for line in result.stdout.splitlines() if "pim-aware" in line)
    assert "11 of 13  differs: " in line
    assert "samples: published 253, measured 254" in line
    assert "m1: published 0.96570799, measured 0.965707" in line
    assert result.stdout.splitlines()[-1] == "3 rows: 2 exact, 1 differ."
    found = json.loads(reproduce("--jobs", "1", "--json").stdout)
    assert [claim["verdict"] for claim in found["claims"]] == [EXACT, DIFFERS, EXACT]
    assert found["verdicts"] == {"differs": 1, "exact": 2}


def test_a_run_that_fails_is_reported_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    paged, aware, spans = PREFIX
    # One is refused when its config is read, one when it is to run.
    with_rows(monkeypatch, changed(paged, max_batch="0"), changed(aware, headroom="100"), spans)
    result = reproduce("--jobs", "2")
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    lines = [line for line in result.stdout.splitlines() if line.startswith("  prefix/")]
    assert "differs: run row failed: ConfigError: scheduler.max_batch = 0" in lines[0]
    assert "differs: run row failed: ConfigError: scheduler.pool_blocks = " in lines[1]
    assert lines[2].endswith("exact")


def test_the_same_ledger_whatever_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for jobs in ("1", "2", "3"):
        file = tmp_path / f"{jobs}.md"
        result = reproduce("--only", "prefix/*", "--json", "--jobs", jobs, "--out", str(file))
        assert result.exit_code == 0, result.output
        found.append((result.stdout, file.read_bytes()))
    assert found[0] == found[1] == found[2]
    row = json.loads(found[0][0])["claims"][0]
    assert (row["claim"], row["kind"], row["verdict"]) == (PREFIX[0].name, "row", EXACT)
    assert row["runs"] == {"row": PREFIX[0].config}
    figures = {figure["figure"]: figure for figure in row["figures"]}
    assert len(figures) == 13
    assert figures["m1"]["published"] == "0.89345722"
    assert figures["m1"]["measured"] == pytest.approx(0.89345722, abs=1e-8)
    text = found[0][1].decode()
    assert (
        f"| {PREFIX[0].name} | 0.89345722 | 2041.8598 | 0.89345722 | 2041.8598 | 13 of 13 | exact |" in text
    )
    assert "3 rows: 3 exact, 0 differ." in text


def test_sentences_come_with_their_setup(tmp_path: Path) -> None:
    file = tmp_path / "ledger.md"
    result = reproduce("--sentences", "--only", "*ce?ling", "--out", str(file))
    assert result.exit_code == 0, result.output
    assert result.stdout.count("31/32") > 3
    assert "1 claim in words: 1 exact, 0 differ." in result.stdout
    assert "### ceiling: exact" in file.read_text(encoding="utf-8")
    found = json.loads(reproduce("--sentences", "--only", "blocks-per", "--json").stdout)["claims"][0]
    assert (found["kind"], found["verdict"]) == ("sentence", EXACT)
    assert [figure["measured"] for figure in found["figures"]] == [8, 64, 2]
    assert found["setup"]


def test_a_pattern_picks_by_part_of_a_name_or_as_a_glob() -> None:
    claims = row_claims()
    assert [claim.name for claim in choose(claims, "prefix")] == [row.name for row in PREFIX]
    assert [claim.name for claim in choose(claims, "prefix/*")] == [row.name for row in PREFIX]
    assert len(choose(claims, "*/bt4/*")) == 3
    assert {claim.name for claim in choose((*claims, *SENTENCES), "seeds")} == {"seeds"}


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (
            ["--only", "stedy/pim-aware"],
            ['only = "stedy/pim-aware" (--only)', "steady/pim-aware/llama-gqa-8kv"],
        ),
        (["--only", "sed"], ["no claim"]),
        (["--only", "seads"], ["nearest: seeds"]),
        (["--only", "seeds"], ["--sentences"]),
        (["--only", "mqa/bt4"], ["mqa-1kv/bt16", "bt4"]),
        (["--only", "", "--jobs", "0"], ["jobs = 0 (--jobs)"]),
        (["--only", "[", "--jobs", "two"], ["2 mistakes", "only = ", 'jobs = "two"']),
        (["--out", "no/such/folder/ledger.md"], ["no/such/folder/ledger.md", "--out"]),
    ],
    ids=" ".join,
)
def test_a_bad_request_names_what_is_wrong(args: list[str], told: list[str]) -> None:
    result = reproduce(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert all(word in result.stderr for word in told), result.stderr


# --- the runner --------------------------------------------------------------------------------------------------


def test_outcomes_do_not_depend_on_jobs_or_executor() -> None:
    configs = [short(seed=seed) for seed in range(4)] + [TOO_LARGE, short(allocator={"kind": "random"})]
    alone = [Simulation(c).run().summary if c is not TOO_LARGE else None for c in configs]
    with ThreadPoolExecutor(3) as threads:
        found = [run_all(configs, jobs=jobs) for jobs in (1, 2)] + [run_all(configs, executor=threads)]
        # The executor was left open.
        assert threads.submit(int, "7").result() == 7
    assert found[0] == found[1] == found[2]
    failure = found[0][4]
    assert isinstance(failure, Failure)
    assert str(failure).startswith("ConfigError: scheduler.pool_blocks = ")
    assert [outcome if index != 4 else None for index, outcome in enumerate(found[0])] == alone


def test_outcomes_come_as_they_finish_and_are_counted() -> None:
    configs = [load({}), *(short(seed=seed) for seed in range(3))]
    heard: list[tuple[int, int]] = []
    order = [index for index, _ in run_many(configs, jobs=2, progress=lambda *it: heard.append(it))]
    assert sorted(order) == [0, 1, 2, 3]
    assert heard == [(n, 4) for n in (1, 2, 3, 4)]
    assert run_all([], jobs=2) == []


def test_a_defect_fails_its_own_point(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Simulation.run

    def broken(self: Simulation, *args: Any) -> Any:
        return 1 / 0 if self.config.seed == 1 else run(self, *args)

    monkeypatch.setattr(Simulation, "run", broken)
    found = run_all([short(seed=seed) for seed in range(3)], jobs=1)
    assert found[1] == Failure("ZeroDivisionError", "division by zero")
    assert all(isinstance(found[i], dict) for i in (0, 2))


def test_a_pool_that_breaks_is_reported_for_every_point_it_leaves() -> None:
    class Breaking(Executor):
        """Runs one task, loses the next, takes no more."""

        submitted = 0

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            self.submitted += 1
            future: Future[Any] = Future()
            if self.submitted == 1:
                future.set_result(fn(*args, **kwargs))
            elif self.submitted == 2:
                future.set_exception(BrokenExecutor("a worker died"))
            else:
                raise BrokenExecutor("a worker died")
            return future

    found = run_all([short()] * 4, executor=Breaking())
    assert isinstance(found[0], dict)
    assert found[1:] == [Failure("BrokenExecutor", "a worker died")] * 3


def test_closing_starts_nothing_further() -> None:
    class Never(Executor):
        """Takes tasks and never begins one, but the first."""

        def __init__(self) -> None:
            self.futures: list[Future[Any]] = []

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            self.futures.append(Future())
            if len(self.futures) == 1:
                self.futures[0].set_result(fn(*args, **kwargs))
            return self.futures[-1]

    never = Never()
    outcomes = run_many([short()] * 3, executor=never, progress=lambda *_: None)
    assert next(outcomes)[0] == 0
    outcomes.close()
    assert [future.cancelled() for future in never.futures] == [False, True, True]


@pytest.mark.parametrize("jobs", [0, -1, True, 1.5, "2"])
def test_a_number_of_jobs_is_a_positive_integer(jobs: Any) -> None:
    with pytest.raises(ConfigError, match="jobs = "):
        run_many([short()], jobs=jobs)


MANY = """
import signal
from pimkv.config import load
from pimkv.sweep.runner import run_many

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for index, _ in run_many([load({"seed": n}) for n in range(2000)], jobs=2):
        print(index, flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="sends signals to a process group")
@pytest.mark.parametrize("way", ["terminal", "interrupt", "kill"])
def test_no_worker_outlives_an_interrupted_run(way: str, tmp_path: Path) -> None:
    script = tmp_path / "many.py"
    script.write_text(MANY)
    process = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    match way:
        case "terminal":
            os.killpg(process.pid, signal.SIGINT)
        case "interrupt":
            process.send_signal(signal.SIGINT)
        case "kill":
            process.kill()
    _, told = process.communicate(timeout=60)
    assert process.returncode != 0
    if way != "kill":
        assert told.count("Traceback") == 1, told
        assert told.strip().endswith("KeyboardInterrupt")
    deadline = time.monotonic() + 30
    while _alive(process.pid):
        assert time.monotonic() < deadline, "workers are still there"
        time.sleep(0.05)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
