"""What requests are like before anything is simulated: their lengths, and what a prefix cache would find.

The cache here is the scheduler's own (`pimkv.prefix_cache`), fed with one request after the other in order of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pimkv.errors import InvalidArgument
from pimkv.prefix_cache import CacheCounters, PrefixCache
from pimkv.workload.table import Requests, require_int

PERCENTS = (5, 25, 50, 75, 95, 99, 100)


def describe(requests: Requests) -> dict[str, Any]:
    """Requests, steps to the last arrival, and mean and percentiles of prompt and output, tokens."""
    lengths = {"prompt": requests.prompt, "output": requests.output}
    return {
        "requests": len(requests),
        "skipped_requests": requests.skipped,
        "last_arrival_step": int(requests.arrival[-1]),
        "lengths": {
            name: {"mean": float(np.mean(column))}
            | {
                f"p{p}": float(value)
                for p, value in zip(PERCENTS, np.percentile(column, PERCENTS), strict=True)
            }
            for name, column in lengths.items()
        },
    }


def replay_cache(requests: Requests, block_tokens: int, limit: int = 0) -> CacheCounters:
    """What each request would find in a prefix cache of at most `limit` blocks (0: any number).

    Requests come in order of arrival and each is done before the next one, so that only the size of the cache
    decides: a larger one finds at least as much. Raises `InvalidArgument` for requests without hash chains.
    """
    return _replay(_keys(requests, block_tokens), requests, block_tokens, limit)


def cache_sizes(
    requests: Requests, block_tokens: int, limits: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """`replay_cache` for each size and, last, for any number of blocks (`cache_blocks` None).

    Without `limits`: powers of 4 from 64 on, below the number of blocks that there are to keep.
    Raises `InvalidArgument` for a size below 1, and as `replay_cache`.
    """
    keys = _keys(requests, block_tokens)
    if limits is None:
        distinct = len(set().union(*keys))
        limits = [4**e for e in range(3, 16) if 4**e < distinct]
    limits = [require_int("cache_blocks", limit, 1) for limit in limits]
    rows = []
    for limit in [*limits, 0]:
        c = _replay(keys, requests, block_tokens, limit)
        rows.append(
            {
                "cache_blocks": limit or None,
                "looked_up_blocks": c.looked_up_blocks,
                "hit_blocks": c.hit_blocks,
                "hit_share": c.hit_share,
                "hit_tokens": c.hit_blocks * block_tokens,
                "evicted_blocks": c.evicted_blocks,
                "peak_blocks": c.peak_blocks,
            }
        )
    return rows


def _keys(requests: Requests, block_tokens: int) -> list[list[int]]:
    block_tokens = require_int("block_tokens", block_tokens, 1)
    if requests.chains is None:
        raise InvalidArgument("requests without hash chains: nothing says which prompts begin alike")
    return [requests.block_keys(i, block_tokens) for i in range(len(requests))]


def _replay(keys: list[list[int]], requests: Requests, block_tokens: int, limit: int) -> CacheCounters:
    cache = PrefixCache(limit)
    for i, (own, prompt) in enumerate(zip(keys, requests.prompt.tolist(), strict=True)):
        hits = cache.find(own, (prompt - 1) // block_tokens).blocks
        cache.enter(i, own, hits, _no_table)
        cache.count(hits, -(-prompt // block_tokens), again=False)
        # There is no pool here: a block goes by its key.
        cache.leave(i, own)
        cache.trim()
    return cache.counters


def _no_table(seq: int) -> Any:
    raise InvalidArgument(f"sequence {seq} runs beside another one; requests come one after the other here")
