"""The ShareGPT workload: its draws are the documented ones, its lengths those of the real first turns."""

from __future__ import annotations

import csv
import gzip
import io
import math
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pimkv.workload import draw_sharegpt
from pimkv.workload.sharegpt import passes_filter

Lengths = np.ndarray[Any, np.dtype[np.int64]]
PERCENTS = (5, 10, 25, 50, 75, 90, 95, 99)


def table() -> Lengths:
    text = resources.files("pimkv.workload").joinpath("sharegpt.csv").read_text()
    rows = csv.reader(line for line in text.splitlines() if not line.startswith("#"))
    return np.array(list(rows)[1:], dtype=np.int64)


def spearman(x: Lengths, y: Lengths) -> float:
    def ranks(values: Lengths) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Mean rank of each value among all."""
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[inverse]

    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])


@pytest.fixture(scope="module")
def drawn() -> Lengths:
    requests = draw_sharegpt(1_000_000, 0)
    return np.column_stack([requests.prompt, requests.output])


@pytest.fixture(scope="module")
def real(shared: Path) -> Lengths:
    path = shared / "traces" / "sharegpt_v3_firstturn.csv.gz"
    if not path.is_file():
        pytest.skip("no ShareGPT lengths in the folder of shared reference data")
    rows = csv.DictReader(io.StringIO(gzip.decompress(path.read_bytes()).decode()))
    lengths = np.array([(int(r["ContextTokens"]), int(r["GeneratedTokens"])) for r in rows])
    return lengths[passes_filter(lengths)]


def test_the_filter_is_the_one_of_the_benchmark() -> None:
    rows = {
        (4, 4): True,
        (3, 4): False,
        (4, 3): False,
        (1024, 1024): True,
        (1025, 4): False,
        (1000, 1049): False,
    }
    assert passes_filter(np.array(list(rows))).tolist() == list(rows.values())


def test_every_drawn_request_passes_the_filter(drawn: Lengths) -> None:
    assert passes_filter(drawn).all()
    assert (drawn.min(), drawn[:, 0].max()) == (4, 1024)
    # Both ends of the tables are reached.
    assert drawn[:, 1].max() > 1800


def test_the_draws_are_the_documented_ones() -> None:
    """One by one with plain floats, from the same generator; some outputs are drawn again."""
    n, seed = 2000, 3
    rng = np.random.default_rng(seed)
    arrival = np.floor(np.cumsum(rng.exponential(scale=4.0, size=n))).astype(np.int64)
    percent, *columns = table().T

    def quantile(column: Lengths, z: float) -> int:
        place = 100 * (1 + math.erf(z / math.sqrt(2))) / 2
        low = min(int(place), 99)
        return round(float(column[low] + (place - low) * (column[low + 1] - column[low])))

    lengths: list[tuple[int, int]] = []
    normals = rng.standard_normal((n, 2)).tolist()
    refused, rounds = list(range(n)), 0
    while refused:
        if rounds:
            for i, y in zip(refused, rng.standard_normal(len(refused)).tolist(), strict=True):
                normals[i][1] = y
        rounds += 1
        lengths = [
            (quantile(columns[0], x), quantile(columns[1], 0.156 * x + math.sqrt(1 - 0.156**2) * y))
            for x, y in normals
        ]
        refused = np.flatnonzero(~passes_filter(np.array(lengths))).tolist()
    requests = draw_sharegpt(n, seed)
    assert rounds > 1 and percent.tolist() == list(range(101))
    np.testing.assert_array_equal(requests.arrival, arrival)
    assert list(zip(requests.prompt.tolist(), requests.output.tolist(), strict=True)) == lengths


def test_the_table_is_that_of_the_real_lengths(real: Lengths) -> None:
    assert len(real) == 52_157
    percent, *columns = table().T
    for column, lengths in zip(columns, real.T, strict=True):
        low, high = (np.percentile(lengths, percent, method=m) for m in ("lower", "higher"))
        assert ((low <= column) & (column <= high)).all()


def test_lengths_are_those_of_the_real_first_turns(real: Lengths, drawn: Lengths) -> None:
    for ours, theirs in zip(drawn.T, real.T, strict=True):
        np.testing.assert_allclose(np.percentile(ours, PERCENTS), np.percentile(theirs, PERCENTS), rtol=0.01)
        assert ours.mean() == pytest.approx(theirs.mean(), rel=0.01)
    assert spearman(*real.T) == pytest.approx(0.149, abs=0.0005)
    assert spearman(*drawn.T) == pytest.approx(spearman(*real.T), abs=0.005)
