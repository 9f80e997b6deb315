"""The synthetic workloads draw the published requests, and the request table refuses what is not one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimkv.errors import InvalidArgument
from pimkv.workload import (
    DEFAULT_RATE,
    MAX_STEP,
    MAX_TOKENS,
    SYNTHETIC,
    Requests,
    draw_arrivals,
    longctx,
    prefix,
    steady,
)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def table(**changes: Any) -> Requests:
    columns: dict[str, Any] = {
        "arrival": ints(0, 3, 3),
        "prompt": ints(100, 60, 8),
        "output": ints(1, 2, 3),
        "prefix": ints(-1, 0, -1),
        "prefix_tokens": 50,
    }
    return Requests(**(columns | changes))


def pool_blocks(requests: Requests, block_tokens: int, headroom: float = 1.3) -> int:
    """The published automatic pool, max_batch 64."""
    per_request = math.ceil((int(np.mean(requests.prompt + requests.output)) + 1) / block_tokens)
    return int(headroom * 64 * per_request)


def blocks_needed(requests: Requests, block_tokens: int) -> int:
    return int((-(-(requests.prompt + requests.output) // block_tokens)).sum())


# ---- the published draws


@pytest.mark.parametrize(
    ("block_tokens", "pool", "allocated"),
    [
        (4, 12396, 148713),
        (8, 6240, 74609),
        (16, 3161, 37546),
        (32, 1580, 19017),
        (64, 832, 9774),
        (128, 416, 5131),
        (256, 249, 2799),
    ],
)
def test_steady_gives_the_published_pool_and_block_counts(
    block_tokens: int, pool: int, allocated: int
) -> None:
    requests = steady(1000, seed=0)
    assert pool_blocks(requests, block_tokens) == pool
    assert blocks_needed(requests, block_tokens) == allocated


@pytest.mark.parametrize(("headroom", "pool"), [(1.3, 2995), (0.6, 1382), (1.0, 2304)])
def test_steady_500_gives_the_published_pools(headroom: float, pool: int) -> None:
    assert pool_blocks(steady(500, seed=0), 16, headroom) == pool


def test_longctx_gives_the_published_pool_and_block_count() -> None:
    requests = longctx(300, seed=0)
    assert pool_blocks(requests, 16) == 108576
    assert blocks_needed(requests, 16) == 391605


def test_prefix_gives_the_published_pool_and_block_counts() -> None:
    requests = prefix(300, seed=0)
    assert pool_blocks(requests, 16) == 7820
    # Without sharing as `contiguous` counts them; with it, the prefix once and one reference per sharer.
    sharers = int((requests.prefix == 0).sum())
    assert blocks_needed(requests, 16) == 28332
    assert blocks_needed(requests, 16) - (sharers - 1) * (requests.prefix_tokens // 16) == 10020


@pytest.mark.parametrize(
    ("draw", "arrival", "last", "prompt", "output"),
    [
        (steady, [2, 6, 6, 6, 9], 4088, [193, 104, 70, 103, 584], [152, 174, 62, 584, 394]),
        (longctx, [3, 8, 8, 8, 11], 5110, [23657, 14497, 13876, 15733, 21541], [86, 206, 246, 100, 112]),
        (prefix, [4, 4, 4, 6, 12], 4087, [1553, 1561, 152, 1427, 1393], [100, 395, 260, 182, 437]),
    ],
)
def test_the_first_requests_stay_as_recorded(
    draw: Callable[..., Requests], arrival: list[int], last: int, prompt: list[int], output: list[int]
) -> None:
    requests = draw(1000, 0)
    assert requests.arrival[:5].tolist() == arrival
    assert requests.arrival[-1] == last
    assert requests.prompt[:5].tolist() == prompt
    assert requests.output[:5].tolist() == output


def test_spec_has_the_requests_of_steady() -> None:
    assert SYNTHETIC["spec"] is SYNTHETIC["steady"] is steady
    assert set(SYNTHETIC) == {"steady", "spec", "longctx", "prefix", "sharegpt"}


class Extremes(np.random.Generator):
    """Draws lengths far below and far above every bound, in turn."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def lognormal(self, mean: float, sigma: float, size: int) -> np.ndarray:  # type: ignore[override]
        return np.where(np.arange(size) % 2, 1e9, 1e-9)


@pytest.mark.parametrize("name", ["steady", "prefix"])
def test_drawn_lengths_are_clipped_to_the_published_bounds(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np.random, "default_rng", lambda _: Extremes())
    requests = SYNTHETIC[name](100, 0)
    sharers = requests.prefix == 0
    assert sharers.any() == (name == "prefix")
    assert set(requests.output.tolist()) == {4, 2048}
    assert set(requests.prompt[~sharers].tolist()) == {8, 8192}
    assert set((requests.prompt[sharers] - requests.prefix_tokens).tolist()) <= {8, 4096}


def test_longctx_lengths_reach_their_bounds_and_stay_within() -> None:
    requests = longctx(200_000, 5)
    assert (requests.prompt.min(), requests.prompt.max()) == (8192, 32768)
    assert (requests.output.min(), requests.output.max()) == (32, 256)


def test_prefix_sharers_have_the_prefix_and_a_part_of_their_own() -> None:
    requests = prefix(20_000, seed=11)
    sharers = requests.prefix == 0
    assert 500 <= requests.prefix_tokens <= 1500
    assert sharers.mean() == pytest.approx(0.7, abs=0.02)
    assert requests.prompt[sharers].min() >= requests.prefix_tokens + 8
    assert requests.prompt[sharers].max() <= requests.prefix_tokens + 4096
    assert set(requests.prefix[~sharers].tolist()) == {-1}


@pytest.mark.parametrize("name", SYNTHETIC)
@given(n=st.integers(1, 50), seed=st.integers(0, 2**70), rate=st.floats(0.001, 100))
def test_a_seed_gives_the_same_requests_again(name: str, n: int, seed: int, rate: float) -> None:
    one, two = (SYNTHETIC[name](n, seed, arrival_rate=rate) for _ in range(2))
    assert len(one) == n
    for column in ("arrival", "prompt", "output", "prefix"):
        np.testing.assert_array_equal(getattr(one, column), getattr(two, column))
    assert one.skipped == 0


@pytest.mark.parametrize(
    ("name", "rate"), [("steady", 0.25), ("longctx", 0.2), ("prefix", 0.25), ("sharegpt", 0.25)]
)
def test_the_default_rates_are_the_published_ones(name: str, rate: float) -> None:
    np.testing.assert_array_equal(
        SYNTHETIC[name](40, 3).arrival, SYNTHETIC[name](40, 3, arrival_rate=rate).arrival
    )
    assert DEFAULT_RATE == 0.25


def test_a_rate_changes_the_arrivals_and_no_length() -> None:
    slow, fast = steady(50, 1, arrival_rate=0.1), steady(50, 1, arrival_rate=10.0)
    assert slow.arrival[-1] > fast.arrival[-1]
    np.testing.assert_array_equal(slow.prompt, fast.prompt)
    np.testing.assert_array_equal(slow.output, fast.output)


def test_draw_arrivals_is_the_documented_formula() -> None:
    drawn = draw_arrivals(np.random.default_rng(9), 100, 0.5)
    rng = np.random.default_rng(9)
    total, expected = 0.0, []
    for _ in range(100):
        total += rng.exponential(2.0)
        expected.append(math.floor(total))
    assert drawn.dtype == np.int64
    assert drawn.tolist() == expected


@pytest.mark.parametrize("rate", [0, 0.0, -0.25, math.inf, math.nan, True, "0.25", None])
def test_a_rate_that_is_none_is_refused(rate: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^arrival_rate = .*: allowed a number above 0"):
        steady(10, 0, arrival_rate=rate)


@pytest.mark.parametrize("rate", [1e-15, 1e-300, 5e-324])
def test_a_rate_whose_arrivals_leave_the_range_is_refused(rate: float) -> None:
    with pytest.raises(InvalidArgument, match=f"arrival_rate = {rate}: .*allowed up to {MAX_STEP}"):
        steady(100, 0, arrival_rate=rate)


@pytest.mark.parametrize("name", SYNTHETIC)
@pytest.mark.parametrize("bad", [0, -1, 2.0, True, "3", None])
def test_a_count_that_is_none_is_refused(name: str, bad: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^n = .*: allowed an integer from 1$"):
        SYNTHETIC[name](bad, 0)


@pytest.mark.parametrize("bad", [-1, 0.0, False, "0", None])
def test_a_seed_that_is_none_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^seed = .*: allowed an integer from 0$"):
        steady(10, bad)


# ---- the table


def test_a_table_keeps_read_only_copies() -> None:
    arrival = ints(0, 3, 3)
    requests = table(arrival=arrival)
    arrival[0] = 99
    assert requests.arrival.tolist() == [0, 3, 3]
    assert len(requests) == 3
    with pytest.raises(ValueError, match="read-only"):
        requests.prompt[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        requests.skipped = 1  # type: ignore[misc]


def test_a_table_takes_the_ends_of_every_range() -> None:
    requests = table(
        arrival=ints(0, 0, MAX_STEP),
        prompt=ints(1, 50, MAX_TOKENS),
        output=ints(1, 1, MAX_TOKENS),
        skipped=np.int64(4),
    )
    assert requests.skipped == 4
    assert type(requests.skipped) is int


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrival": ints(0, -1, 3)}, r"arrival\[1\] = -1: allowed 0 to 9007199254740992"),
        ({"arrival": ints(0, 1, MAX_STEP + 1)}, r"arrival\[2\] = 9007199254740993: allowed"),
        ({"arrival": ints(0, 4, 3)}, r"arrival\[2\] = 3: earlier than arrival\[1\] = 4"),
        ({"prompt": ints(0, 60, 8)}, r"prompt\[0\] = 0: allowed 1 to 2147483648"),
        ({"prompt": ints(1, 60, 2**31 + 1)}, r"prompt\[2\] = 2147483649: allowed 1 to"),
        ({"prompt": ints(100, 49, 8)}, r"prompt\[1\] = 49: shorter than .* prefix_tokens = 50"),
        ({"output": ints(1, 0, 3)}, r"output\[1\] = 0: allowed 1 to"),
        ({"prefix": ints(-1, 0, -2)}, r"prefix\[2\] = -2: allowed -1 to 0"),
        ({"prefix": ints(-1, 1, -1)}, r"prefix\[1\] = 1: allowed -1 to 0"),
        ({"prefix_tokens": 0}, r"prefix\[1\] = 0: allowed -1$"),
        ({"prefix_tokens": -1}, r"prefix_tokens = -1: allowed an integer from 0"),
        ({"prefix_tokens": 50.0}, r"prefix_tokens = 50.0: allowed an integer from 0"),
        ({"skipped": -1}, r"skipped = -1: allowed an integer from 0"),
        ({"skipped": True}, r"skipped = True: allowed an integer from 0"),
        ({"output": ints(1, 2)}, r"output has 2 rows: arrival has 3"),
        ({"output": [1, 2, 3]}, r"output is list: allowed an int64 array"),
        ({"output": np.array([1.0, 2.0, 3.0])}, r"output is float64 of shape \(3,\): allowed an int64"),
        ({"output": np.array([1, 2, 3], dtype=np.int32)}, r"output is int32 of shape"),
        ({"output": ints(1, 2, 3).reshape(1, 3)}, r"output is int64 of shape \(1, 3\): allowed"),
        (dict.fromkeys(("arrival", "prompt", "output", "prefix"), ints()), r"0 rows: allowed 1 or more"),
    ],
)
def test_a_table_names_what_is_wrong(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        table(**changes)
