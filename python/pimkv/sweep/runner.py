"""Runs many configs, here or on any `concurrent.futures` executor, and hands each outcome back as it finishes.

A config that cannot be run or whose run fails costs nothing but its own result: its outcome is a `Failure`.
Runs share nothing, so the number of jobs and the executor change no result.

Processes are spawned, which is safe beside threads. A script that calls this with more than one job must
therefore do so under `if __name__ == "__main__":`, as each worker imports it once.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from typing import Any

from pimkv.config import Config
from pimkv.errors import Problem
from pimkv.simulation import Simulation
from pimkv.wording import config_error

Summary = dict[str, Any]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Failure:
    """Why a config has no summary: the class of the error and its message."""

    error: str
    message: str

    def __str__(self) -> str:
        return f"{self.error}: {self.message}" if self.message else self.error


Outcome = Summary | Failure
Outcomes = Generator[tuple[int, Outcome], None, None]


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
    if jobs is not None:
        check_jobs(jobs)
    if executor is not None:
        outcomes = _on(executor, configs)
    elif (workers := min(jobs or cores(), len(configs))) > 1:
        outcomes = _on_processes(workers, configs)
    else:
        outcomes = ((index, attempt(config)) for index, config in enumerate(configs))
    return outcomes if progress is None else _reported(outcomes, len(configs), progress)


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


def attempt(config: Config, progress: Progress | None = None) -> Outcome:
    """The summary of one run, or why there is none. This is what workers execute."""
    try:
        return Simulation(config).run(progress).summary
    except Exception as error:
        # A defect of ours fails its own point too, by name; it is never mistaken for a result.
        return Failure(type(error).__name__, str(error))


def _reported(outcomes: Outcomes, total: int, progress: Progress) -> Outcomes:
    with closing(outcomes):
        for done, outcome in enumerate(outcomes, 1):
            progress(done, total)
            yield outcome


def _on(executor: Executor, configs: Sequence[Config]) -> Outcomes:
    yield from _collected(_submitted(executor, attempt, configs))


def _on_processes(workers: int, configs: Sequence[Config]) -> Outcomes:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(stop,))
    try:
        with _interrupts_held():
            waiting = _submitted(pool, _attempt_until_stopped, configs)
        yield from _collected(waiting)
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _submitted(
    executor: Executor, work: Callable[[Config], Outcome], configs: Sequence[Config]
) -> dict[Future[Outcome], int]:
    waiting: dict[Future[Outcome], int] = {}
    for index, config in enumerate(configs):
        try:
            future = executor.submit(work, config)
        except BrokenExecutor as error:
            # A worker that died takes the pool with it: what is left is reported like what was under way.
            future = Future()
            future.set_exception(error)
        waiting[future] = index
    return waiting


def _collected(waiting: dict[Future[Outcome], int]) -> Outcomes:
    try:
        for future in as_completed(list(waiting)):
            # Popped, so that a long run of many configs does not keep every outcome.
            yield waiting.pop(future), _outcome(future)
    finally:
        for future in waiting:
            future.cancel()


def _outcome(future: Future[Outcome]) -> Outcome:
    try:
        return future.result()
    except Exception as error:
        # Not the run but its worker failed: `attempt` itself raises nothing.
        return Failure(type(error).__name__, str(error))


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


def _attempt_until_stopped(config: Config) -> Outcome:
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
