"""Runs a sweep into a store: what is there is skipped, what failed is tried again, what finishes is written."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pimkv.config import Config
from pimkv.errors import Problem
from pimkv.result import resolved
from pimkv.sweep.keys import Keys
from pimkv.sweep.runner import Failure, Progress, attempt, check_jobs, cores, run_each
from pimkv.sweep.spec import Sweep, load_sweep
from pimkv.sweep.store import Row, Store
from pimkv.sweep.table import columns, frame
from pimkv.wording import config_error, kind_of

Spec = Sweep | str | os.PathLike[str] | Mapping[str, Any] | Iterable[Config]

# A dry run times this many points, or as many as it gets done in this time.
_TIMED_POINTS, _TIMED_S = 3, 5.0


@dataclass(frozen=True)
class Plan:
    """The distinct points of a sweep, in its order, and how many there were before equal ones became one."""

    name: str
    points: int
    configs: Mapping[str, Config]
    """Key -> config."""


@dataclass
class SweepResult:
    """What a sweep did. Its rows are read from the store when they are asked for."""

    name: str
    points: int
    keys: tuple[str, ...]
    """Keys of the distinct points, in the order of the sweep."""
    stored: int
    """Points that had a summary before, or got one from another sweep meanwhile."""
    ran: int
    """Points that were run now, those that failed included."""
    failures: dict[str, str]
    """Key -> why; of the points that were run now, or were lost with their executor."""
    _read: Callable[[], list[Row]] = field(repr=False)

    def rows(self) -> list[Row]:
        """The sweep's points, in the order of `Store.rows`; of an open `Store` while it is open."""
        return self._read()

    def columns(self) -> dict[str, list[Any]]:
        """The finished points as a table: name -> values, as `pimkv results export` writes them."""
        return columns(self.rows())

    def to_polars(self) -> Any:
        """`columns` as a polars DataFrame; `MissingExtra` where polars is not installed."""
        return frame(self.columns())


def plan(sweep: Spec) -> Plan:
    """The distinct points of a sweep or of configs. Raises `ConfigError` for what cannot be run."""
    if isinstance(sweep, str | os.PathLike | Mapping):
        sweep = load_sweep(sweep)
    if isinstance(sweep, Sweep):
        name, configs = sweep.name, sweep.configs
    else:
        name, configs = "sweep", _configs(sweep)
    keys = Keys()
    distinct: dict[str, Config] = {}
    for config in configs:
        distinct.setdefault(keys.of(config), config)
    return Plan(name, len(configs), distinct)


def _configs(given: object) -> tuple[Config, ...]:
    """Configs of an iterable; `ConfigError` for what is none, each with its position."""
    wanted = "a Sweep, a spec (file, study or tables), or Configs"
    if not isinstance(given, Iterable):
        raise config_error([Problem("sweep", given, f"is {kind_of(given)}; must be {wanted}")])
    found = tuple(given)
    problems = [
        Problem(f"sweep[{index}]", one, f"is {kind_of(one)}; must be a Config")
        for index, one in enumerate(found)
        if not isinstance(one, Config)
    ]
    if problems:
        raise config_error(problems)
    return found


def run_sweep(
    sweep: Spec | Plan,
    *,
    store: str | Path | Store | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> SweepResult:
    """Runs every point that the store does not hold yet and writes each as it finishes.

    `sweep` is a `Sweep`, what `load_sweep` takes (file, study, tables), or configs. `store` is a file or an open
    `Store`; without one the results are kept in memory. `jobs` processes do the work, by default one per
    core, 1 in this process; or any `concurrent.futures.Executor`, which is left open. With more than one
    job a script must guard its call by `if __name__ == "__main__":`, as for every pool of processes.
    `progress(done, total)` hears of every point to be run as it is done.

    A point that fails is stored with its error and stops no other; the next run tries it again. A point that
    another process stores meanwhile is not run. Where an executor breaks for good, as with its scheduler, what
    is left is among the failures, but the store has nothing of it.
    Raises `ConfigError` before anything runs for a sweep that cannot be run as asked, `StoreError` where
    the store cannot be written; what was finished is kept.
    """
    planned = sweep if isinstance(sweep, Plan) else plan(sweep)
    if jobs is not None:
        check_jobs(jobs)
    path = ":memory:" if store is None else store
    with nullcontext(path) if isinstance(path, Store) else Store.open(path) as opened:
        finished = opened.finished()
        todo = [key for key in planned.configs if key not in finished]
        ran, lost, failures = _run(planned, todo, opened, jobs, executor, progress)
        keys = tuple(planned.configs)
        stored = len(keys) - ran - lost
        if store is None:
            rows = opened.rows(keys)
            return SweepResult(planned.name, planned.points, keys, stored, ran, failures, lambda: rows)

    def read() -> list[Row]:
        if isinstance(store, Store):
            return store.rows(keys)
        with Store.open(opened.path, readonly=True) as again:
            return again.rows(keys)

    return SweepResult(planned.name, planned.points, keys, stored, ran, failures, read)


def _run(
    planned: Plan,
    todo: Sequence[str],
    store: Store,
    jobs: int | None,
    executor: Executor | None,
    progress: Progress | None,
) -> tuple[int, int, dict[str, str]]:
    configs = [planned.configs[key] for key in todo]
    done = ran = lost = 0
    failures: dict[str, str] = {}

    def report() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, len(todo))

    waiting = deque(range(len(todo)))
    from_behind = False

    def next_ones() -> Iterator[int]:
        while waiting:
            position = waiting.pop() if from_behind else waiting.popleft()
            # Another sweep may have come to it first.
            if store.has(todo[position]):
                report()
            else:
                yield position

    with closing(run_each(configs, jobs=jobs, executor=executor, positions=next_ones())) as runs:
        for position, run in runs:
            key = todo[position]
            if run.lost:
                lost += 1
            else:
                if not store.add(key, resolved(configs[position]), run):
                    # Another sweep is at the same points, a moment ahead: meet it from the other end.
                    from_behind = not from_behind
                ran += 1
            if isinstance(run.outcome, Failure):
                failures[key] = str(run.outcome)
            report()
    return ran, lost, failures


@dataclass(frozen=True)
class Estimate:
    """How long the rest of a sweep may take, and what that rests on."""

    seconds: float | None
    basis: str


def estimate(
    planned: Plan,
    todo: Sequence[str],
    seconds: Mapping[str, float],
    jobs: int | None,
    run: Callable[[Config], Any] = attempt,
) -> Estimate:
    """Seconds for the points `todo`, from those of the sweep that were run before; else its first ones run now.

    `seconds` has what stored points took. What is run now is timed only, nothing is stored.
    """
    processes = max(1, min(jobs or cores(), len(todo)))
    on = f"{processes} process{'es' if processes > 1 else ''}"
    known = [seconds[key] for key in planned.configs if key in seconds]
    if not todo:
        return Estimate(0.0, "nothing is left to run")
    source = f"{len(known)} points that were run before"
    if not known:
        started = time.perf_counter()
        for key in todo[:_TIMED_POINTS]:
            before = time.perf_counter()
            run(planned.configs[key])
            known.append(time.perf_counter() - before)
            if time.perf_counter() - started > _TIMED_S:
                break
        source = f"the first {len(known)} points, run now and not stored"
    mean = sum(known) / len(known)
    return Estimate(len(todo) * mean / processes, f"from {source}, {mean:.3g} s each, on {on}")
