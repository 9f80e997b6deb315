"""The request table: what every workload source hands to the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pimkv.errors import InvalidArgument
from pimkv.workload.chains import Chains

MAX_TOKENS: Final = 2**31
"""Largest prompt or output of one request, tokens."""

MAX_STEP: Final = 2**53
"""Latest arrival, decode steps: the largest range in which a float still counts every step."""


def require_int(name: str, value: object, low: int) -> int:
    """Return `value` as an int; `InvalidArgument` unless it is an integer (no bool) of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
        raise InvalidArgument(f"{name} = {value!r}: allowed an integer from {low}")
    return int(value)


@dataclass(frozen=True, eq=False)
class Requests:
    """The requests of one run, one row each; a request's id is its position.

    The four columns are int64 arrays of one shape `(n,)`, n >= 1, kept as read-only copies. Rows are in the
    order in which requests are served, (arrival, id), so `arrival` never falls.

    Attributes:
        arrival: decode step of the arrival, 0 to `MAX_STEP`.
        prompt: prompt tokens, the shared prefix included, 1 to `MAX_TOKENS`.
        output: tokens to generate, 1 to `MAX_TOKENS`.
        prefix: 0 where the prompt starts with the shared prefix, else -1.
        prefix_tokens: length of the shared prefix (id 0) in tokens, 0 if the workload has none.
        skipped: requests of the source left out because they had no prompt or no output tokens.
        chains: the prompts' hash chains, one per row and as long as its prompt asks for; None if there are none.

    Raises:
        InvalidArgument: a column of another type or shape, or a value out of range; names the row.
    """

    arrival: npt.NDArray[np.int64]
    prompt: npt.NDArray[np.int64]
    output: npt.NDArray[np.int64]
    prefix: npt.NDArray[np.int64]
    prefix_tokens: int = 0
    skipped: int = 0
    chains: Chains | None = None

    def __post_init__(self) -> None:
        n = self._own_columns()
        if n == 0:
            raise InvalidArgument("a request table of 0 rows: allowed 1 or more")
        object.__setattr__(self, "prefix_tokens", require_int("prefix_tokens", self.prefix_tokens, 0))
        object.__setattr__(self, "skipped", require_int("skipped", self.skipped, 0))
        self._check_range("arrival", 0, MAX_STEP)
        self._check_range("prompt", 1, MAX_TOKENS)
        self._check_range("output", 1, MAX_TOKENS)
        # Only id 0 has a length, and without a length there is nothing to share.
        self._check_range("prefix", -1, 0 if self.prefix_tokens else -1)

        falls = np.flatnonzero(np.diff(self.arrival) < 0)
        if falls.size:
            i = int(falls[0]) + 1
            raise InvalidArgument(
                f"arrival[{i}] = {self.arrival[i]}: earlier than arrival[{i - 1}] = {self.arrival[i - 1]}; "
                "rows must be in order of arrival"
            )
        short = np.flatnonzero((self.prefix == 0) & (self.prompt < self.prefix_tokens))
        if short.size:
            i = int(short[0])
            raise InvalidArgument(
                f"prompt[{i}] = {self.prompt[i]}: shorter than the shared prefix it includes, "
                f"prefix_tokens = {self.prefix_tokens}"
            )

        self._check_chains()

    def __len__(self) -> int:
        """Number of requests."""
        return int(self.arrival.size)

    def block_keys(self, request: int, block_tokens: int) -> list[int]:
        """A key for each block that the request's prompt fills, equal for equal beginnings; none without chains."""
        if self.chains is None:
            return []
        return self.chains.block_keys(request, int(self.prompt[request]), block_tokens)

    def _check_chains(self) -> None:
        if self.chains is None:
            return
        if self.prefix_tokens:
            raise InvalidArgument(f"prefix_tokens = {self.prefix_tokens}: goes without chains")
        if len(self.chains) != len(self):
            raise InvalidArgument(f"chains of {len(self.chains)} requests: arrival has {len(self)}")
        wrong = np.flatnonzero(np.diff(self.chains.offsets) != -(-self.prompt // self.chains.tokens))
        if wrong.size:
            i = int(wrong[0])
            raise InvalidArgument(
                f"chain {i} has {np.diff(self.chains.offsets)[i]} nodes: prompt[{i}] = {self.prompt[i]} asks for "
                f"one per {self.chains.tokens} tokens"
            )

    def _own_columns(self) -> int:
        """Replace the columns by read-only copies, so that no later write of the caller's reaches a run."""
        n: int | None = None
        for name in ("arrival", "prompt", "output", "prefix"):
            column = getattr(self, name)
            if not isinstance(column, np.ndarray) or column.dtype != np.int64 or column.ndim != 1:
                got = (
                    f"{column.dtype} of shape {column.shape}"
                    if isinstance(column, np.ndarray)
                    else type(column).__name__
                )
                raise InvalidArgument(f"{name} is {got}: allowed an int64 array of shape (n,)")
            if n is not None and column.size != n:
                raise InvalidArgument(f"{name} has {column.size} rows: arrival has {n}")
            n = column.size
            own = column.copy()
            own.setflags(write=False)
            object.__setattr__(self, name, own)
        return n or 0

    def _check_range(self, name: str, low: int, high: int) -> None:
        column = getattr(self, name)
        wrong = np.flatnonzero((column < low) | (column > high))
        if wrong.size:
            i = int(wrong[0])
            allowed = f"{low} to {high}" if low < high else f"{low}"
            raise InvalidArgument(f"{name}[{i}] = {column[i]}: allowed {allowed}")
