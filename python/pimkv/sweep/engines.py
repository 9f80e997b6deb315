"""Executors of other machines: a Dask cluster, whose workers need nothing but pimkv itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, cast

from pimkv.errors import ConfigError, Problem
from pimkv.result import imported
from pimkv.wording import config_error

ENGINES = ("processes", "dask")

_CONNECT_S = 10


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
            executor = client.get_executor(pure=False)
            try:
                yield cast(Executor, executor)
            finally:
                # What is still under way is of no use to anyone any more.
                executor.shutdown(wait=False)


def _check_workers(client: Any, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=_CONNECT_S)
    except TimeoutError as error:
        raise _refused(address, f"has no worker; start some: dask worker {address} --nthreads 1") from error
    answers = client.run(release, on_error="return")
    wrong = {worker: answer for worker, answer in answers.items() if answer != release()}
    if wrong:
        said = ", ".join(f"{worker} ({answer})" for worker, answer in sorted(wrong.items()))
        raise _refused(address, f"every worker needs pimkv {release()}: {said}")


def _refused(address: str, message: str) -> ConfigError:
    return config_error([Problem("scheduler", address, message, flag="--scheduler")])


@contextmanager
def _quietly() -> Iterator[None]:
    """Without Dask's own log: what it means for a point is that point's outcome."""
    log = logging.getLogger("distributed")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)
