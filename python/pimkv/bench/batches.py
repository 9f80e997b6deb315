"""What a call from Python adds to an operation when it carries a batch."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from pimkv.backend import core
from pimkv.bench.ops import measure

SIZES = (1, 16, 256, 1024)


def batch_calls(repeats: int, *, blocks: int = 1 << 16, calls: int = 2000) -> dict[str, Any]:
    """ns per operation of `take` and `give` through `Pool`, by batch size, beside Rust alone on the mix."""
    log = core().OpLog.mix(blocks, 8, 64, 100_000)
    rows: dict[str, Any] = {}
    for kind in ("paged", "pim-aware"):
        rust = measure(log, kind, repeats=repeats)
        sizes = {}
        for size in SIZES:
            timed = [_pass(kind, blocks, size, max(20, calls // size)) for _ in range(repeats)]
            take = statistics.median(t[0] for t in timed)
            give = statistics.median(t[1] for t in timed)
            sizes[str(size)] = {"take_ns": take, "give_ns": give}
        rows[kind] = {"rust_with_loop_ns": rust["with_loop_ns"], "batch": sizes}
    return {"blocks": blocks, "kinds": rows}


def _pass(kind: str, blocks: int, size: int, calls: int) -> tuple[float, float]:
    """ns per block of `calls` takes of `size` blocks and of as many gives."""
    pool = core().Pool(kind, blocks, blocks_per_region=8)
    # Half full, so that it is not a fresh pool's order that is measured.
    held = pool.take(0, blocks // 2)
    pool.give(np.ascontiguousarray(held[::3]))
    taking = giving = 0
    for _ in range(calls):
        started = time.perf_counter_ns()
        ids = pool.take(1, size)
        between = time.perf_counter_ns()
        pool.give(ids)
        giving += time.perf_counter_ns() - between
        taking += between - started
    return taking / calls / size, giving / calls / size
