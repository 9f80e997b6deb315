"""Operation logs as files and as arrays: what a block manager asked of its policy, in order.

`pimkv run --oplog FILE` writes one, `read_oplog` gives it as a numpy structured array. The format is
described in docs/formats.md; the Rust core reads and checks it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pimkv import backend
from pimkv.backend import OpLog
from pimkv.errors import LogError, Problem
from pimkv.result import write_file
from pimkv.wording import config_error

HEADER_BYTES = 64
DTYPE = np.dtype(
    [
        ("operation", "u1"),
        ("owner_class", "u1"),
        ("answer", "u1"),
        ("zero", "u1"),
        ("owner", "<u4"),
        ("block", "<u4"),
        ("count", "<u4"),
    ]
)
"""A record as the file holds it. `owner_class` is 0 for a sequence, 1 for a prefix, 2 for the scratch."""

NO_BLOCK = 2**32 - 1
"""`block` of a record that has none: a take that found the pool empty, say."""

OWNER_BASES = (0, 2**40, 2**41)
"""What the number of an owner of each class is added to, for policies that know owners by one number."""


def names() -> dict[int, str]:
    """Code -> name of every operation; codes from 16 on are markers."""
    return dict(backend.core().OpLog.operations())


def load_oplog(path: str | Path) -> OpLog:
    """The log in a file, checked; `LogError` names the file and the offset of what is wrong."""
    log, _ = _checked(path)
    return log


def read_oplog(path: str | Path) -> tuple[dict[str, Any], npt.NDArray[np.void]]:
    """(header, operations) of a log file: a dict, and an array of `DTYPE` with one record per operation.

    Raises `LogError` for a file that cannot be read or is not exactly what was written.
    """
    log, data = _checked(path)
    header = {
        "policy": log.kind,
        "blocks": log.blocks,
        "blocks_per_region": log.blocks_per_region,
        "block_tokens": log.block_tokens,
        "best_fit": log.best_fit,
        "operations": names(),
    }
    return header, np.frombuffer(data, dtype=DTYPE, count=len(log), offset=HEADER_BYTES)


def records_of(log: OpLog) -> npt.NDArray[np.void]:
    """The operations of a log in memory, as `read_oplog` gives them."""
    return np.frombuffer(log.to_bytes(), dtype=DTYPE, count=len(log), offset=HEADER_BYTES)


def write_oplog(path: str | Path, log: OpLog) -> None:
    """Writes the log: the whole file or none of it."""
    try:
        write_file(Path(path), log.to_bytes())
    except OSError as error:
        raise config_error([Problem("oplog", str(path), error.strerror or "", flag="--oplog")]) from error


def _checked(path: str | Path) -> tuple[OpLog, bytes]:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}") from error
    try:
        log: OpLog = backend.core().OpLog.parse(data)
    except LogError as error:
        raise LogError(f"{path}: {error}") from error
    return log, data
