"""Sweeps on a Dask cluster of real processes: a scheduler and two workers, one of which is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sweep_tools import exported, pimkv, small, started

pytest.importorskip("distributed", reason="Dask is not installed (pimkv[dask])")
pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="kills processes"),
    pytest.mark.timeout(180),
]


class Cluster:
    """A scheduler and its workers, each a process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        facts = folder / "scheduler.json"
        self.scheduler = self._start(
            "scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--no-dashboard",
            "--scheduler-file",
            str(facts),
        )
        until(lambda: facts.exists() and facts.read_text().strip() != "")
        self.address = json.loads(facts.read_text())["address"]

    def worker(self) -> subprocess.Popen[bytes]:
        return self._start("worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard")

    def _start(self, what: str, *args: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *args]
        process = subprocess.Popen(command, cwd=self.folder, stderr=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Any]:
    cluster = Cluster(tmp_path)
    try:
        yield cluster
    finally:
        cluster.end()


def rows(store: Path) -> int:
    from pimkv.sweep.store import Store

    if not store.exists():
        return 0
    with Store.open(store) as opened:
        return len(opened.finished())


def test_a_worker_killed_in_the_middle_costs_nothing(cluster: Any, tmp_path: Path) -> None:
    spec, store, whole = small(tmp_path, seeds=60, requests=40), tmp_path / "dask.db", tmp_path / "whole.db"
    workers = [cluster.worker(), cluster.worker()]
    sweep = started(spec, "--store", store, "--engine", "dask", "--scheduler", cluster.address)
    until(lambda: rows(store) >= 10 or sweep.poll() is not None)
    workers[0].send_signal(signal.SIGKILL)
    out, err = sweep.communicate(timeout=120)
    assert sweep.returncode == 0, (out, err)
    assert "120 run, 0 failed" in out
    assert "Traceback" not in err
    assert pimkv("sweep", spec, "--store", whole, "--jobs", 2).exit_code == 0
    assert exported(store) == exported(whole)


def test_a_sweep_ends_when_its_scheduler_does_and_goes_on_elsewhere(cluster: Any, tmp_path: Path) -> None:
    spec, store = small(tmp_path, seeds=100, requests=40), tmp_path / "dask.db"
    cluster.worker()
    sweep = started(spec, "--store", store, "--engine", "dask", "--scheduler", cluster.address)
    until(lambda: rows(store) >= 5 or sweep.poll() is not None)
    cluster.end()
    out, err = sweep.communicate(timeout=120)
    assert sweep.returncode == 1, (out, err)
    assert "points failed; the same command tries them again" in err
    assert "Traceback" not in err
    kept = rows(store)
    assert 5 <= kept < 200
    again = pimkv("sweep", spec, "--store", store, "--jobs", 2)
    assert f"{kept} stored before, {200 - kept} run, 0 failed" in again.stdout


def test_a_scheduler_without_workers_or_none_at_all_is_refused(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pimkv.sweep.engines._CONNECT_S", 1)
    store = tmp_path / "s.db"
    for address, told in (
        (cluster.address, "has no worker"),
        ("tcp://127.0.0.1:9", "no Dask scheduler answers"),
    ):
        refused = pimkv("sweep", "headline", "--store", store, "--engine", "dask", "--scheduler", address)
        assert refused.exit_code == 2, refused.output
        assert told in refused.stderr


def test_a_worker_with_another_pimkv_is_refused(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pimkv.sweep import engines

    cluster.worker()
    # What is asked is pickled by its name, so that the worker answers for itself.
    monkeypatch.setattr(engines, "version", lambda _: "0.0.0")
    refused = pimkv(
        "sweep", "headline", "--store", tmp_path / "s.db", "--engine", "dask", "--scheduler", cluster.address
    )
    assert refused.exit_code == 2, refused.output
    assert "every worker needs pimkv 0.0.0: tcp://127.0.0.1:" in refused.stderr
