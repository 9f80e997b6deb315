"""Chat requests with the lengths of real ShareGPT first turns: quantile tables joined by a Gaussian copula.

No data set is shipped: `sharegpt.csv` holds 101 quantiles of either length, our own statistics of the first
turns that pass vLLM's benchmark filter, and the copula adds how the two hang together.
"""

from __future__ import annotations

import functools
import math
from importlib import resources
from typing import Final

import numpy as np
import numpy.typing as npt

from pimkv.workload.synthetic import DEFAULT_RATE, draw_arrivals
from pimkv.workload.table import Requests, require_int

_Floats = npt.NDArray[np.float64]

RHO: Final = 0.156
"""Correlation of the two normal variables: a Spearman correlation of 0.149, as the real lengths have."""

LEAST: Final = 4
MOST_PROMPT: Final = 1024
MOST_TOGETHER: Final = 2048
"""vLLM's benchmark filter: least prompt and output, most prompt, most of both together, tokens."""


def draw_sharegpt(n: int, seed: int, arrival_rate: float = DEFAULT_RATE) -> Requests:
    """Chat requests as ShareGPT has them: medians of 31 prompt and 287 output tokens, means of 111 and 330.

    Draws: arrivals; then `standard_normal((n, 2))`, a row (x, y) per request. With z = RHO x + sqrt(1 - RHO^2) y
    the prompt is the quantile at Phi(x), the output that at Phi(z), linear between the percents of the table
    and rounded. Where the filter refuses a row, its y is drawn again, `standard_normal(m)` for all m such rows
    in their order, until none is left: the tables are of what has passed the filter, so the prompts are right
    as they are, and only too long outputs beside them are not. Raises `InvalidArgument` as `steady` does.
    """
    rng = np.random.default_rng(require_int("seed", seed, 0))
    arrival = draw_arrivals(rng, n, arrival_rate)
    x, y = rng.standard_normal((n, 2)).T
    lengths = _lengths(x, y)
    while (refused := np.flatnonzero(~passes_filter(lengths))).size:
        y[refused] = rng.standard_normal(refused.size)
        lengths[refused] = _lengths(x[refused], y[refused])
    prompt, output = lengths.T
    return Requests(arrival, prompt.copy(), output.copy(), prefix=np.full(n, -1, dtype=np.int64))


def passes_filter(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which rows (prompt, output) of an (n, 2) array vLLM's benchmark filter lets through: shape (n,)."""
    prompt, output = lengths.T
    least = np.minimum(prompt, output) >= LEAST
    passes: npt.NDArray[np.bool_] = least & (prompt <= MOST_PROMPT) & (prompt + output <= MOST_TOGETHER)
    return passes


def _lengths(x: _Floats, y: _Floats) -> npt.NDArray[np.int64]:
    """Rows (prompt, output) for two independent normal variables."""
    percent, prompt, output = _quantiles()
    z = RHO * x + math.sqrt(1 - RHO * RHO) * y
    columns = [np.interp(100 * _phi(v), percent, table) for v, table in ((x, prompt), (z, output))]
    lengths: npt.NDArray[np.int64] = np.rint(np.column_stack(columns)).astype(np.int64)
    return lengths


def _phi(x: _Floats) -> _Floats:
    """The distribution function of the standard normal distribution."""
    return np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()])


@functools.cache
def _quantiles() -> _Floats:
    """Three rows: percent, prompt, output."""
    text = resources.files(__package__).joinpath("sharegpt.csv").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    table = np.array([line.split(",") for line in lines[1:]], dtype=np.float64).T
    table.setflags(write=False)
    return table
