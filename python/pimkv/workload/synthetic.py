"""The published synthetic workloads, drawn from one numpy generator in one documented order.

The order of the draws is part of the result: another order gives other requests for the same seed. Lengths
are tokens, rates are requests per decode step.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Final

import numpy as np
import numpy.typing as npt

from pimkv.errors import InvalidArgument
from pimkv.workload.table import MAX_STEP, Requests, require_int

_Ints = npt.NDArray[np.int64]

DEFAULT_RATE: Final = 0.25
"""Arrivals per decode step of `steady`, `spec` and `prefix`, and of traces without time stamps."""


def draw_arrivals(rng: np.random.Generator, n: int, rate: float) -> _Ints:
    """Draw `n` Poisson arrivals: `floor(cumsum(exponential(1 / rate, n)))`, in ascending decode steps.

    Returns an int64 array of shape (n,). Raises `InvalidArgument` for n < 1, for a rate that is not a number
    above 0, and for a rate so low that the last arrival would lie beyond `MAX_STEP`.
    """
    n = require_int("n", n, 1)
    if isinstance(rate, bool) or not isinstance(rate, Real) or not 0 < rate < math.inf:
        raise InvalidArgument(f"arrival_rate = {rate!r}: allowed a number above 0, requests per decode step")
    steps = np.floor(np.cumsum(rng.exponential(scale=1 / rate, size=n)))
    if not steps[-1] <= MAX_STEP:
        raise InvalidArgument(
            f"arrival_rate = {rate!r}: the last of {n} requests would arrive in decode step {steps[-1]:.3g}; "
            f"allowed up to {MAX_STEP}"
        )
    return steps.astype(np.int64)


def steady(n: int, seed: int, arrival_rate: float = DEFAULT_RATE) -> Requests:
    """Chat-like requests: prompts and outputs lognormal with median 200 (sigma 1.0 and 0.8).

    Draws: arrivals; prompts clipped to 8..8192; outputs clipped to 4..2048. The speculative workload, `spec`,
    has the same requests. Raises `InvalidArgument` as `draw_arrivals` does, and for a negative seed.
    """
    rng = _generator(seed)
    arrival = draw_arrivals(rng, n, arrival_rate)
    prompt = _plain_prompts(rng, n)
    output = _outputs(rng, n)
    return Requests(arrival, prompt, output, prefix=np.full(n, -1, dtype=np.int64))


def longctx(n: int, seed: int, arrival_rate: float = 0.2) -> Requests:
    """Long contexts: prompts uniform in 8192..32768, outputs uniform in 32..256.

    Draws: arrivals; prompts; outputs. Raises `InvalidArgument` as `steady` does.
    """
    rng = _generator(seed)
    arrival = draw_arrivals(rng, n, arrival_rate)
    prompt = rng.integers(8192, 32769, n)
    output = rng.integers(32, 257, n)
    return Requests(arrival, prompt, output, prefix=np.full(n, -1, dtype=np.int64))


def prefix(n: int, seed: int, arrival_rate: float = DEFAULT_RATE) -> Requests:
    """Requests of which about 70 % start with one shared prefix of L tokens, L uniform in 500..1500.

    Draws: L; arrivals; who shares; the sharers' own parts (median 150, sigma 0.8, clipped to 8..4096); plain
    prompts and outputs as in `steady`. Both kinds of prompt are drawn for every request. A sharer has prefix
    id 0 and a prompt of L + its own part. Raises `InvalidArgument` as `steady` does.
    """
    rng = _generator(seed)
    shared = int(rng.integers(500, 1501))
    arrival = draw_arrivals(rng, n, arrival_rate)
    shares = rng.random(n) < 0.7
    unique = _lengths(rng, n, median=150, sigma=0.8, low=8, high=4096)
    plain = _plain_prompts(rng, n)
    output = _outputs(rng, n)
    return Requests(
        arrival,
        prompt=np.where(shares, shared + unique, plain),
        output=output,
        prefix=np.where(shares, np.int64(0), np.int64(-1)),
        prefix_tokens=shared,
    )


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(require_int("seed", seed, 0))


def _plain_prompts(rng: np.random.Generator, n: int) -> _Ints:
    return _lengths(rng, n, median=200, sigma=1.0, low=8, high=8192)


def _outputs(rng: np.random.Generator, n: int) -> _Ints:
    return _lengths(rng, n, median=200, sigma=0.8, low=4, high=2048)


def _lengths(rng: np.random.Generator, n: int, *, median: int, sigma: float, low: int, high: int) -> _Ints:
    drawn = rng.lognormal(math.log(median), sigma, size=n)
    return np.clip(np.round(drawn), low, high).astype(np.int64)
