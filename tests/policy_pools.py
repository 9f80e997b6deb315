"""Pools for the tests that run over every policy: sizes that it can have, and what it needs before it takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from pimkv.allocators import options_of


def ints(values: Iterable[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(list(values), dtype=np.int64)


def pool_blocks(kind: str, least: int, per_region: int) -> int:
    """The smallest pool from `least` blocks on, a multiple of a region, that the policy can have."""
    multiple = options_of(kind).pool_multiple(per_region)
    return next(n for n in range(least, least * multiple + 1, per_region) if n % multiple == 0)


def ready_pool(module: Any, kind: str, blocks: int, per_region: int) -> Any:
    """A pool that can take: where takes are drawn, always the first free block."""
    pool = module.Pool(kind, blocks, blocks_per_region=per_region)
    if options_of(kind).draws:
        pool.feed(ints([0] * 1000))
    return pool


def ready_manager(module: Any, kind: str, blocks: int, block_tokens: int, per_region: int) -> Any:
    """A block manager that can take, as `ready_pool`."""
    manager = module.BlockManager(kind, blocks, block_tokens=block_tokens, blocks_per_region=per_region)
    if options_of(kind).draws:
        manager.feed(ints([0] * 10_000))
    return manager
