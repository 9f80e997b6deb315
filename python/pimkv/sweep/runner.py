"""Runs many configs, here or on any `concurrent.futures` executor, and hands each outcome back as it finishes.

A config that cannot be run or whose run fails costs nothing but its own result: its outcome is a `Failure`.
So does one that ends its process, as running out of memory does: the others go on in new ones.
Runs share nothing, so the number of jobs and the executor change no result.

Processes are spawned, which is safe beside threads. A script that calls this with more than one job must
therefore do so under `if __name__ == "__main__":`, as each worker imports it once.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Event
from queue import SimpleQueue
from typing import Any

from pimkv.config import Config
from pimkv.errors import Problem
from pimkv.simulation import Simulation
from pimkv.wording import config_error

Summary = dict[str, Any]
Progress = Callable[[int, int], None]

# Points under way at once: enough to keep workers busy, few enough that a million waiting ones cost no memory.
_PER_PROCESS = 8
_ON_EXECUTOR = 4096

# A run's warnings (rows that a trace leaves out) are in its summary; thousands of runs would flood stderr.
logging.getLogger("pimkv").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Failure:
    """Why a config has no summary: the class of the error and its message."""

    error: str
    message: str

    def __str__(self) -> str:
        return f"{self.error}: {self.message}" if self.message else self.error


Outcome = Summary | Failure
Outcomes = Generator[tuple[int, Outcome], None, None]


@dataclass(frozen=True)
class Run:
    """An outcome, and what is no part of it: the seconds it took and the host that it ran on.

    `lost` marks a config that its executor gave up for no fault of the config.
    """

    outcome: Outcome
    wall_s: float = 0.0
    host: str = ""
    lost: bool = False


Runs = Generator[tuple[int, Run], None, None]


def run_many(
    configs: Sequence[Config],
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Outcomes:
    """Each config's position and outcome, in the order in which they finish.

    `jobs` processes do the work, by default one per core; 1 runs in this process, one config per item asked
    for. An `executor` given instead is used as it is and left open. `progress(done, total)` hears of every
    outcome before it is handed out. Closing the generator, as an interrupt does, starts nothing further and
    stops the runs of its own processes.
    Raises `ConfigError` for a number of jobs below 1.
    """
    return _reported(run_each(configs, jobs=jobs, executor=executor), len(configs), progress)


def run_each(
    configs: Sequence[Config],
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    positions: Iterator[int] | None = None,
) -> Runs:
    """As `run_many`, with what is known of each run beside its outcome.

    `positions` says which configs are run and in which order, all by default; each is asked for just before it
    would be started.
    """
    if jobs is not None:
        check_jobs(jobs)
    if positions is None:
        positions = iter(range(len(configs)))
    if executor is not None:
        return _on(executor, configs, positions)
    workers = min(jobs or cores(), len(configs))
    if workers > 1:
        return _on_processes(workers, configs, positions)
    return ((index, attempt(configs[index])) for index in positions)


def run_all(
    configs: Sequence[Config],
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> list[Outcome]:
    """The outcome of each config, in the order of the configs; the rest as in `run_many`."""
    found: dict[int, Outcome] = {}
    with closing(run_many(configs, jobs=jobs, executor=executor, progress=progress)) as outcomes:
        found.update(outcomes)
    return [found[index] for index in range(len(configs))]


def check_jobs(jobs: object) -> int:
    """`jobs` if it is a number of processes; `ConfigError` if not."""
    if not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1:
        raise config_error([Problem("jobs", jobs, "must be an integer, at least 1", flag="--jobs")])
    return jobs


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def attempt(config: Config, progress: Progress | None = None) -> Run:
    """One run: its summary, or why there is none. This is what workers execute."""
    started = time.perf_counter()
    outcome: Outcome
    try:
        outcome = Simulation(config).run(progress).summary
    except Exception as error:
        # A defect of ours fails its own point too, by name; it is never mistaken for a result.
        outcome = Failure(type(error).__name__, str(error))
    return Run(outcome, time.perf_counter() - started, platform.node())


def _reported(runs: Runs, total: int, progress: Progress | None) -> Outcomes:
    with closing(runs):
        for done, (index, run) in enumerate(runs, 1):
            if progress is not None:
                progress(done, total)
            yield index, run.outcome


Submit = Callable[[Config], Future[Run]]


def _on(executor: Executor, configs: Sequence[Config], positions: Iterator[int]) -> Runs:
    def submit(config: Config) -> Future[Run]:
        return executor.submit(attempt, config)

    with closing(_finished(submit, configs, positions, _ON_EXECUTOR)) as finished:
        for index, future in finished:
            yield index, _run(future)


def _on_processes(workers: int, configs: Sequence[Config], positions: Iterator[int]) -> Runs:
    """On processes of our own. One that dies takes its pool with it, and all that was under way there."""
    lost: list[int] = []
    while True:
        feed = _until(lambda: bool(lost), positions)
        with (
            _pool(workers) as submit,
            closing(_finished(submit, configs, feed, _PER_PROCESS * workers)) as finished,
        ):
            for index, future in finished:
                if _broken(future):
                    lost.append(index)
                else:
                    yield index, _run(future)
        if not lost:
            return
        saved = False
        # Alone in a process, each fails for itself.
        with closing(_one_by_one(configs, lost)) as runs:
            for index, future in runs:
                saved |= not _broken(future)
                yield index, replace(_run(future), lost=False)
        if not saved:
            # No process lives long enough to run anything: what is left would only fail one by one.
            for index in positions:
                yield index, _run(future)
            return
        lost.clear()


def _one_by_one(
    configs: Sequence[Config], lost: Iterable[int]
) -> Generator[tuple[int, Future[Run]], None, None]:
    positions, broken = iter(lost), True
    while broken:
        broken = False
        feed = _until(lambda: broken, positions)  # noqa: B023  # read while this very round runs
        with _pool(1) as submit, closing(_finished(submit, configs, feed, 1)) as finished:
            for index, future in finished:
                broken = _broken(future)
                yield index, future


def _until(stopped: Callable[[], bool], positions: Iterator[int]) -> Iterator[int]:
    """What `positions` still has, up to the moment when `stopped`; nothing is taken from it in vain."""
    while not stopped():
        try:
            yield next(positions)
        except StopIteration:
            return


def _finished(
    submit: Submit, configs: Sequence[Config], positions: Iterator[int], limit: int
) -> Generator[tuple[int, Future[Run]], None, None]:
    """Futures as they finish, with at most `limit` of them under way."""
    under_way: dict[Future[Run], int] = {}
    done: SimpleQueue[Future[Run]] = SimpleQueue()
    try:
        while True:
            for index in itertools.islice(positions, limit - len(under_way)):
                try:
                    future = submit(configs[index])
                except Exception as error:
                    # A worker that died takes its pool with it: what is left is like what was under way.
                    future = Future()
                    future.set_exception(error)
                under_way[future] = index
                future.add_done_callback(done.put)
            if not under_way:
                return
            future = done.get()
            # Popped, so that a long run of many configs does not keep every outcome.
            yield under_way.pop(future), future
    finally:
        for future in under_way:
            future.cancel()


def _broken(future: Future[Run]) -> bool:
    return not future.cancelled() and isinstance(future.exception(), BrokenExecutor)


def _run(future: Future[Run]) -> Run:
    try:
        return future.result()
    except (BrokenExecutor, CancelledError) as error:
        message = str(error) or "its executor gave it up"
        return Run(Failure(type(error).__name__, message), lost=True)
    except Exception as error:
        # Not the run but its worker failed: `attempt` itself raises nothing.
        return Run(Failure(type(error).__name__, str(error)))


@contextmanager
def _pool(workers: int) -> Iterator[Submit]:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(stop,))

    def submit(config: Config) -> Future[Run]:
        # This may start a process.
        with _interrupts_held():
            return pool.submit(_attempt_until_stopped, config)

    try:
        yield submit
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


# --- How workers end. A terminal sends Ctrl-C to all processes at once: the first acts on it and stops the rest. ---

# What a worker was told when it began.
_stop: Event | None = None


class _StoppedError(Exception):
    """Ends a run whose outcome nobody waits for any more."""


def _begin(stop: Event) -> None:
    global _stop  # noqa: PLW0603  # the only way from an initializer to the work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _stop = stop
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # A parent that was killed stops nobody, and a worker would wait for its next config for ever.
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _attempt_until_stopped(config: Config) -> Run:
    steps = itertools.count()

    def progress(_done: int, _total: int) -> None:
        # Asking costs a system call, so not at every step.
        if _stop is not None and next(steps) % 64 == 0 and _stop.is_set():
            raise _StoppedError

    return attempt(config, progress)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes started inside inherit that Ctrl-C is held back, so that it cannot hit them half imported."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
