"""Executors of other machines: a Dask cluster, whose workers need nothing but pimkv itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, InvalidStateError
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any

from pimkv.errors import ConfigError, Problem
from pimkv.result import imported
from pimkv.wording import config_error

ENGINES = ("processes", "dask")

_CONNECT_S = 10
_LOST = "the Dask scheduler is gone"


def release() -> str:
    """The version of pimkv that answers: asked of workers, which fail where they have none."""
    return version("pimkv")


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """An executor on the workers of the Dask scheduler at `address` (`tcp://host:8786`).

    A worker that dies costs nothing: the scheduler gives its points to another. Workers that join later are
    used. A trace must be at the same path on every worker.
    Raises `MissingExtra` without `distributed`, `ConfigError` where no scheduler answers or a worker has
    another pimkv or none.
    """
    distributed = imported("distributed", "dask")
    with _quietly():
        try:
            client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise _refused(
                address, f"no Dask scheduler answers there within {_CONNECT_S} s: {reason}"
            ) from error
        with client:
            _check_workers(client, address)
            executor = _Watched(client)
            try:
                yield executor
            finally:
                executor.shutdown(wait=False)


class _Watched(Executor):
    """Dask's own executor, whose futures may wait for ever once the scheduler is gone: these break."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._inner = client.get_executor(pure=False)
        self._under_way: set[Future[Any]] = set()
        self._stop = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._lost():
            raise BrokenExecutor(_LOST)
        try:
            future: Future[Any] = self._inner.submit(fn, *args, **kwargs)
        except Exception as error:
            if self._lost():
                raise BrokenExecutor(_LOST) from error
            raise
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Without `wait` also what is under way is given up: nobody waits for it any more."""
        self._stop.set()
        try:
            self._inner.shutdown(wait=wait)
        except Exception:
            # A client that has closed cannot tell its scheduler what is given up, and there is nobody to tell.
            if not self._lost():
                raise

    def _lost(self) -> bool:
        return self._client.status in {"closing", "closed"}

    def _watch(self) -> None:
        while not self._stop.wait(1):
            if self._lost():
                for future in tuple(self._under_way):
                    # One that ends at this very moment has its outcome already.
                    with suppress(InvalidStateError):
                        future.set_exception(BrokenExecutor(_LOST))


def _check_workers(client: Any, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=_CONNECT_S)
        answers = client.run(release, on_error="return")
    except TimeoutError as error:
        raise _refused(address, f"has no worker; start some: dask worker {address} --nthreads 1") from error
    except OSError as error:
        raise _refused(address, f"ended while its workers were asked: {error}") from error
    wrong = {worker: answer for worker, answer in answers.items() if answer != release()}
    if wrong:
        said = ", ".join(f"{worker} ({answer})" for worker, answer in sorted(wrong.items()))
        raise _refused(address, f"every worker needs pimkv {release()}: {said}")


def _refused(address: str, message: str) -> ConfigError:
    return config_error([Problem("scheduler", address, message, flag="--scheduler")])


@contextmanager
def _quietly() -> Iterator[None]:
    """Without Dask's own log and its event loop's: what they mean for a point is that point's outcome."""
    # Several of its loggers have a level of their own.
    names = [n for n in logging.root.manager.loggerDict if n.partition(".")[0] in {"distributed", "tornado"}]
    logs = {log: log.level for log in map(logging.getLogger, names)}
    for log in logs:
        log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for log, level in logs.items():
            log.setLevel(level)
