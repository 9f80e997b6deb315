"""Sweeps as a user runs them: resumed, killed, in company, on a full disk, on any executor."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from sweep_tools import exported, pimkv, small, started

import pimkv as package
from pimkv.config import Config, load
from pimkv.errors import ConfigError
from pimkv.simulation import Simulation
from pimkv.sweep import runner
from pimkv.sweep.execute import estimate, plan, run_sweep
from pimkv.sweep.runner import Failure, run_all
from pimkv.sweep.store import Store

FAILING = """
[base]
workload.requests = 12
[grid]
scheduler.max_batch = [64, 60000]
scheduler.headroom = [1.3, 100.0]
"""


def short(**given: Any) -> Config:
    """A run of a few milliseconds."""
    return load({"workload": {"requests": 12}} | given)


# --- running and going on ----------------------------------------------------------------------------------------


def test_a_sweep_skips_what_is_stored_and_its_figures_are_those_of_single_runs(tmp_path: Path) -> None:
    spec, store = small(tmp_path), tmp_path / "s.db"
    first = pimkv("sweep", spec, "--store", store, "--jobs", 1)
    assert first.exit_code == 0, first.output
    assert first.stdout.startswith("small: 8 points, 0 stored before, 8 run, 0 failed; results in ")
    # A wider spec runs only what is new.
    wider = pimkv("sweep", small(tmp_path, seeds=5), "--store", store, "--jobs", 1, "--json")
    told = json.loads(wider.stdout)
    assert {k: told[k] for k in ("points", "distinct", "stored_before", "run", "failed")} == {
        "points": 10, "distinct": 10, "stored_before": 8, "run": 2, "failed": 0,
    }  # fmt: skip
    with Store.open(store, readonly=True) as opened:
        rows = opened.rows()
    assert len(rows) == 10
    for row in rows:
        # The stored config runs the point again.
        assert Simulation(load(row.config)).run().summary == row.summary


def test_the_export_does_not_depend_on_how_the_points_were_run(tmp_path: Path) -> None:
    spec = small(tmp_path)
    configs = list(package.load_sweep(spec).configs)
    for name, given in {"one": {"jobs": 1}, "two": {"jobs": 2}, "reversed": {"jobs": 1}}.items():
        todo = configs[::-1] if name == "reversed" else configs
        run_sweep(todo, store=tmp_path / f"{name}.db", **given)
    with ThreadPoolExecutor(3) as threads:
        run_sweep(configs, store=tmp_path / "threads.db", executor=threads)
    tables = {exported(tmp_path / f"{name}.db") for name in ("one", "two", "reversed", "threads")}
    assert len(tables) == 1
    table = tables.pop().splitlines()
    assert len(table) == 9
    assert table[0].startswith("key,config.allocator.kind,")
    assert "wall" not in table[0]


def test_a_failing_point_stops_no_other_and_is_tried_again(tmp_path: Path) -> None:
    spec, store = tmp_path / "failing.toml", tmp_path / "s.db"
    spec.write_text(FAILING)
    for ran in (4, 3):
        result = pimkv("sweep", spec, "--store", store, "--jobs", 1)
        assert result.exit_code == 1
        assert f"{4 - ran} stored before, {ran} run, 3 failed" in result.stdout
        assert result.stderr.count("failed: ConfigError: scheduler.pool_blocks = ") == 3
        assert "the same command tries them again" in result.stderr
    assert "(3 failed before and are tried again)" in result.stderr
    listed = pimkv("results", "ls", "--store", store, "--failed").stdout
    assert listed.count("ConfigError") == 3
    left_out = pimkv("results", "export", "--store", store)
    assert (left_out.stdout.count("\n"), "3 failed points left out" in left_out.stderr) == (2, True)
    assert pimkv("results", "rm", "--failed", "--store", store).stdout.startswith("3 points removed")


def test_a_dry_run_counts_and_estimates_and_writes_nothing(tmp_path: Path) -> None:
    spec, store = small(tmp_path), tmp_path / "s.db"
    dry = pimkv("sweep", spec, "--store", store, "--dry-run", "--jobs", 2)
    assert f"small: 8 points, 0 stored in {store}, 8 to run\n" in dry.stdout
    assert "from the first 3 points, run now and not stored" in dry.stdout
    assert "on 2 processes" in dry.stdout
    assert not store.exists()
    pimkv("sweep", small(tmp_path, seeds=3), "--store", store, "--jobs", 1)
    told = json.loads(pimkv("sweep", small(tmp_path), "--store", store, "--dry-run", "--json").stdout)
    assert (told["stored"], told["to_run"]) == (6, 2)
    assert told["estimate_basis"].startswith("from 6 points that were run before")


def test_an_estimate_is_the_mean_over_the_processes() -> None:
    planned = plan([short(seed=seed) for seed in range(10)])
    keys = list(planned.configs)
    known = dict.fromkeys(keys[:2], 3.0)
    assert estimate(planned, keys[2:], known, 4).seconds == 6.0
    assert estimate(planned, keys[:3], {}, 8).seconds is not None
    timed: list[Config] = []
    estimate(planned, keys, {}, 1, timed.append)
    assert timed == [planned.configs[key] for key in keys[:3]]
    assert estimate(planned, [], known, 4).seconds == 0


def test_configs_run_without_a_store_and_equal_ones_once() -> None:
    heard: list[tuple[int, int]] = []
    result = package.run_sweep(
        [short(), short(seed=1), short()], jobs=1, progress=lambda *it: heard.append(it)
    )
    assert (result.points, len(result.keys), result.ran, result.failures) == (3, 2, 2, {})
    assert heard == [(1, 2), (2, 2)]
    assert [row.config["seed"] for row in result.rows()] == [0, 1]
    assert result.columns()["config.seed"] == [0, 1]
    with pytest.raises(ConfigError, match="jobs = 0"):
        run_sweep([short()], jobs=0)


def test_what_is_no_config_is_named_by_its_place() -> None:
    with pytest.raises(ConfigError, match="sweep = 3: is an integer; must be a Sweep, a spec"):
        run_sweep(cast(Any, 3))
    with pytest.raises(ConfigError) as refused:
        run_sweep(cast(Any, [short(), {"seed": 1}, "headline"]))
    assert "sweep[1] = {seed = 1}: is a table; must be a Config" in str(refused.value)
    assert "sweep[2] =" in str(refused.value) and "sweep[0]" not in str(refused.value)


def test_a_point_that_another_process_stores_meanwhile_is_not_run_again(tmp_path: Path) -> None:
    configs = [short(seed=seed) for seed in range(3)]
    path = tmp_path / "s.db"

    def meanwhile(done: int, _total: int) -> None:
        if done == 1:
            run_sweep(configs[2:], store=path, jobs=1)

    result = run_sweep(configs, store=path, jobs=1, progress=meanwhile)
    assert (result.ran, result.stored, len(result.rows())) == (2, 1, 3)


def test_two_sweeps_at_the_same_point_go_on_from_both_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In step with another they would run every point twice."""
    configs = [short(seed=seed) for seed in range(4)]
    path = tmp_path / "s.db"
    order: list[int] = []

    class Ahead(Executor):
        """Runs a point and, of the first, an instant earlier the other sweep's."""

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            if not order:
                run_sweep([args[0]], store=path, jobs=1)
            order.append(args[0].seed)
            future: Future[Any] = Future()
            future.set_result(fn(*args, **kwargs))
            return future

    monkeypatch.setattr(runner, "_ON_EXECUTOR", 1)
    result = run_sweep(configs, store=path, executor=Ahead())
    assert order == [0, 3, 2, 1]
    assert (result.ran, len(result.rows())) == (4, 4)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], "give one of: a spec file, a study (block-size, headline"),
        (["hedline", "--jobs", "0", "--set", "x"], "3 mistakes"),
        (["headline", "--engine", "dusk"], 'did you mean "dask"?'),
        (["headline", "--engine", "dask"], "add --scheduler"),
        (["headline", "--engine", "dask", "--scheduler", "tcp://x:1", "--jobs", "2"], "jobs = 2"),
        (["headline", "--scheduler", "tcp://x:1"], "only --engine dask has a scheduler"),
        (["headline", "--store", "no/such/s.db"], "its folder does not exist"),
        (["headline", "--store", "."], "is a folder"),
        (["headline", "--set", "seed=1"], "is an axis of the sweep"),
        (["headline", "--again", "x.db"], "give one of"),
        (["--again", "x.db"], "there is no such file"),
    ],
    ids=" ".join,
)
def test_a_bad_request_runs_nothing(args: list[str], told: str) -> None:
    result = pimkv("sweep", *args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert told in result.stderr


def test_studies_are_listed() -> None:
    lines = pimkv("sweep", "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(json.loads(pimkv("sweep", "--list", "--json").stdout))


def test_a_store_of_another_version_is_run_again_by_the_command_that_its_refusal_names(
    tmp_path: Path,
) -> None:
    spec, old = small(tmp_path, seeds=1), tmp_path / "old.db"
    pimkv("sweep", spec, "--store", old, "--jobs", 1)
    before = exported(old)
    db = sqlite3.connect(old)
    db.execute("PRAGMA user_version = 99")
    db.commit()
    db.close()
    refused = pimkv("results", "ls", "--store", old)
    assert refused.exit_code == 2
    way_on = refused.stderr.strip().partition("pimkv sweep --again ")[2].split()
    assert pimkv("sweep", "--again", *way_on, "--jobs", 1).exit_code == 0
    assert exported(Path(way_on[-1])) == before


# --- kills, company, full disks ----------------------------------------------------------------------------------


def stored(store: Path) -> int:
    """Finished points, counted while the sweep writes."""
    if not store.exists():
        return 0
    try:
        with Store.open(store, readonly=True) as opened:
            return len(opened.finished())
    except ConfigError:
        return 0  # a store that is just being made


@pytest.mark.timeout(240)
@pytest.mark.skipif(os.name != "posix", reason="kills processes")
def test_a_sweep_killed_at_20_moments_ends_with_the_bytes_of_one_that_was_not(tmp_path: Path) -> None:
    spec, store, whole = small(tmp_path, seeds=150), tmp_path / "killed.db", tmp_path / "whole.db"
    moment = random.Random(1)
    counts = [0]
    for kill in range(20):
        process = started(spec, "--store", store, "--jobs", 2 if kill % 5 == 0 else 1)
        # Somewhere after it has begun to write; the next few points take a few milliseconds each.
        while stored(store) <= counts[-1] and process.poll() is None:
            time.sleep(0.005)
        time.sleep(moment.uniform(0, 0.05))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "the sweep was over before it was killed"
        counts.append(stored(store))
    # Nothing that was finished was lost, and each time something came to it.
    assert counts == sorted(set(counts))
    assert counts[-1] < 300
    assert pimkv("sweep", spec, "--store", store, "--jobs", 1).exit_code == 0
    assert pimkv("sweep", spec, "--store", whole, "--jobs", 2).exit_code == 0
    assert exported(store) == exported(whole)


@pytest.mark.timeout(120)
def test_two_sweeps_into_one_store_end_with_every_point_once(tmp_path: Path) -> None:
    spec, store = small(tmp_path, seeds=15), tmp_path / "s.db"
    both = [started(spec, "--store", store, "--jobs", 1) for _ in range(2)]
    for process in both:
        told = process.communicate(timeout=100)
        assert process.returncode == 0, told
    assert len(exported(store).splitlines()) == 31


def _little_disk() -> None:
    # No file may grow beyond this: what a full disk does, to this process alone.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
def test_a_full_disk_ends_a_sweep_plainly_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    spec, store = small(tmp_path, seeds=40), tmp_path / "s.db"
    process = started(spec, "--store", store, "--jobs", 1, preexec_fn=_little_disk)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 1, (out, err)
    assert "every point that was reported as finished is kept" in err
    assert "Traceback" not in err
    kept = stored(store)
    assert 0 < kept < 80
    result = pimkv("sweep", spec, "--store", store, "--jobs", 1)
    assert f"{kept} stored before, {80 - kept} run" in result.stdout


# --- executors ---------------------------------------------------------------------------------------------------


def _die(config: Config, attempt: Callable[..., Any] = runner.attempt) -> Any:
    if config.seed == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt(config)


@pytest.mark.skipif(os.name != "posix", reason="kills processes")
def test_a_point_that_ends_its_process_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_attempt_until_stopped", _die)
    found = run_all([short(seed=seed) for seed in range(30)], jobs=2)
    assert [index for index, outcome in enumerate(found) if isinstance(outcome, Failure)] == [3]
    assert isinstance(found[3], Failure)
    assert found[3].error == "BrokenProcessPool"
    # It is the point's own failure, and stored as such.
    result = run_sweep([short(seed=seed) for seed in (2, 3)], jobs=2)
    assert (result.ran, len(result.failures)) == (2, 1)
    assert [row.error is None for row in result.rows()] == [True, False]


class Breaking(Executor):
    """Runs two tasks, then breaks for good."""

    submitted = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted += 1
        if self.submitted > 2:
            raise BrokenExecutor("the scheduler is gone")
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def test_points_lost_with_their_executor_are_told_but_not_stored() -> None:
    result = run_sweep([short(seed=seed) for seed in range(5)], executor=Breaking())
    assert (result.ran, result.stored, len(result.failures)) == (2, 0, 3)
    assert set(result.failures.values()) == {"BrokenExecutor: the scheduler is gone"}
    assert len(result.rows()) == 2


class Counting(ThreadPoolExecutor):
    """Knows how many of its tasks were at most under way."""

    under_way = most = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        future.add_done_callback(self._done)
        return future

    def _done(self, _: Future[Any]) -> None:
        self.under_way -= 1


def test_points_are_handed_to_an_executor_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_ON_EXECUTOR", 3)
    with Counting(1) as executor:
        result = run_sweep([short(seed=seed) for seed in range(12)], executor=executor)
    assert result.ran == 12
    assert 1 < executor.most <= 3


def test_an_interrupted_sweep_keeps_what_it_has(tmp_path: Path) -> None:
    spec, store = small(tmp_path, seeds=300), tmp_path / "s.db"
    process = started(spec, "--store", store, "--jobs", 2, start_new_session=True)
    while stored(store) == 0 and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Aborted!" in err
    assert "Traceback" not in err
    assert 0 < stored(store) < 600


def test_without_a_terminal_there_is_no_bar(tmp_path: Path) -> None:
    process = started(small(tmp_path, seeds=1), "--store", tmp_path / "s.db", "--jobs", 1)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "small: 2 points, 0 stored, 2 to run\n")
    assert out.count("\n") == 1
    quiet = subprocess.run(process.args, capture_output=True, text=True, check=True)
    assert "2 stored before, 0 run" in quiet.stdout
