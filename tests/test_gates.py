"""The five gates of the published study: what must hold before any figure is worth reading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pimkv
from pimkv.config import load
from pimkv.simulation import Simulation

HBM3 = {
    "channels": 32,
    "bank_groups": 4,
    "banks_per_group": 4,
    "rows": 16384,
    "row_bytes": 1024,
    "burst_bytes": 32,
}
MAP = "row:14 col:4 bg:2 ba:2 ch:5 col:1"
BLOCK_TOKENS, TOKEN_BYTES = 16, 4096


def score(kind: str, blocks: int, tokens: int, *, block_tokens: int = BLOCK_TOKENS) -> tuple[int, int]:
    """Commands and hits of one sequence on a fresh pool."""
    manager = pimkv.BlockManager(kind, blocks, block_tokens=block_tokens, blocks_per_region=8)
    assert manager.admit(0, tokens)
    scorer = pimkv.Scorer(
        pimkv.AddressMap(MAP, **HBM3),
        block_bytes=block_tokens * TOKEN_BYTES,
        token_bytes=TOKEN_BYTES,
        window=64,
    )
    commands, hits, *_ = scorer.observe(manager, np.array([0]))
    return int(commands[0]), int(hits[0])


def test_perfect_placement_hits_31_of_32() -> None:
    """A row holds 32 bursts of each bank: one activation, then 31 hits."""
    commands, hits = score("pim-aware", 512, 512 * BLOCK_TOKENS)
    assert hits * 32 == commands * 31


def test_random_placement_is_near_the_floor_on_a_single_bank_stream() -> None:
    """One bank, one burst per token, rows at random: a burst hits when its row happens to be open,
    and a window of w bursts over n rows opens about n (1 - (1 - 1/n)^w) of them."""
    rows, window, tokens = 64, 1, 20_000
    geometry = {
        **HBM3,
        "channels": 1,
        "bank_groups": 1,
        "banks_per_group": 1,
        "rows": rows,
        "row_bytes": 32 * 512,
    }
    manager = pimkv.BlockManager("paged", rows * 512, block_tokens=1)
    ids = np.random.default_rng(0).permutation(rows * 512)
    # A LIFO pool hands out the ids in the reverse order of their release.
    for seq in range(rows * 512):
        manager.admit(seq, 1)
    order = np.argsort([int(manager.table(seq)[0]) for seq in range(rows * 512)])
    manager.release(order[ids])
    manager.admit(0, tokens)
    scorer = pimkv.Scorer(
        pimkv.AddressMap("row:6 col:9", **geometry), block_bytes=32, token_bytes=32, window=window
    )
    commands, hits, bursts, *_ = (int(x[0]) for x in scorer.observe(manager, np.array([0])))
    assert commands == bursts == tokens
    assert 0.5 / rows <= hits / commands <= 2 / rows


@pytest.mark.parametrize("tokens", [100, 128, 1000, 4096])
def test_row_hits_never_drop_as_blocks_grow(tokens: int) -> None:
    """A region policy on a fresh pool hands out one contiguous span whatever the block size."""
    rates = []
    for block_tokens in (4, 8, 16, 32, 64, 128):
        manager = pimkv.BlockManager(
            "pim-aware",
            64 * 128 // block_tokens,
            block_tokens=block_tokens,
            blocks_per_region=128 // block_tokens,
        )
        manager.admit(0, tokens)
        scorer = pimkv.Scorer(
            pimkv.AddressMap(MAP, **HBM3),
            block_bytes=block_tokens * TOKEN_BYTES,
            token_bytes=TOKEN_BYTES,
            window=64,
        )
        commands, hits, *_ = scorer.observe(manager, np.array([0]))
        rates.append(hits[0] / commands[0])
    assert rates == sorted(rates)


def test_one_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    config = load({"workload": {"requests": 100}, "seed": 3, "allocator": {"kind": "pim-aware"}})
    for name in ("first", "second"):
        Simulation(config).run().write(tmp_path / name)
    for file in ("config.toml", "summary.json", "samples.csv"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    Simulation(load({"workload": {"requests": 100}, "seed": 4})).run().write(tmp_path / "other")
    assert (tmp_path / "first" / "samples.csv").read_bytes() != (
        tmp_path / "other" / "samples.csv"
    ).read_bytes()


@pytest.mark.parametrize("backend", ["rust", "reference"])
@pytest.mark.parametrize("allocator", ["paged", "pim-aware"])
def test_blocks_are_conserved_at_every_step(allocator: str, backend: str) -> None:
    requests = 300 if backend == "rust" else 12
    config = load({"workload": {"requests": requests}, "allocator": {"kind": allocator}})
    summary = Simulation(config, backend=backend, check_every_step=True).run().summary
    assert summary["completed"] == requests
