"""Executors of other machines: a Dask cluster, whose workers need nothing but pimkv itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from importlib.metadata import version
from typing import cast

from pimkv.errors import Problem
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
    try:
        client = distributed.Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        message = f"no Dask scheduler answers there within {_CONNECT_S} s: {reason}"
        raise config_error([Problem("scheduler", address, message, flag="--scheduler")]) from error
    with client:
        _check_workers(client, address)
        executor = client.get_executor(pure=False)
        try:
            yield cast(Executor, executor)
        finally:
            # What is still under way is of no use to anyone any more.
            executor.shutdown(wait=False)


def _check_workers(client: object, address: str) -> None:
    answers = client.run(release, on_error="return")  # type: ignore[attr-defined]
    wrong = {worker: answer for worker, answer in answers.items() if answer != release()}
    if wrong:
        said = ", ".join(f"{worker} ({answer})" for worker, answer in sorted(wrong.items()))
        message = f"every worker needs pimkv {release()}: {said}"
        raise config_error([Problem("scheduler", address, message, flag="--scheduler")])
