"""Cost per operation as a curve over pool sizes and live sequences, and whether threads get in each other's way.

python benches/scale.py [--quick] prints one JSON object: ns per take and give of the stated mix (80 % full, one
block at a time) on pools of 4 K to 16 M blocks with 64 to 65,536 sequences, the worst-case growth on the same
pools, and the same replay on one thread, on a thread per core and on a process per core (one pool each, the GIL
released).
No DRAM stands behind these pools.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

from pimkv.backend import core
from pimkv.bench.host import host, spread
from pimkv.bench.ops import measure

POOLS = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
SEQUENCES = (64, 1024, 65536)
POLICIES = (("paged", None), ("pim-aware", "indexed"), ("pim-aware", "heaps"))


def point(log: Any, policy: str, impl: str | None, repeats: int) -> dict[str, Any]:
    """The figures of one log that the curve shows."""
    got = measure(log, policy, repeats=repeats, region_impl=impl)
    kinds = {
        name: {key: got["kinds"][name][key] for key in ("median_ns", "p99_ns")}
        for name in ("take", "give")
        if name in got["kinds"]
    }
    return {
        "blocks": log.blocks,
        "policy": policy if impl is None else f"{policy}, {impl}",
        "bookkeeping_kib": got["bookkeeping_bytes"] / 1024,
        "loop_ns": got["loop_ns"],
        "with_loop_ns": got["with_loop_ns"],
        "total_ns_spread": got["total_ns_spread"],
    } | kinds


def once(_: int = 0) -> None:
    """One replay, on a pool of its own."""
    core().OpLog.mix(64 << 10, 8, 64, 500_000).replay("pim-aware", repeats=3)


def contention(repeats: int) -> dict[str, Any]:
    """Seconds of the same work on one thread, on a thread per core, and on a process per core.

    Threads that get in each other's way take longer than processes, whatever else the machine does.
    """
    count = os.cpu_count() or 1
    alone, threads, processes = [], [], []
    context = multiprocessing.get_context("spawn")
    with ThreadPoolExecutor(count) as in_threads, ProcessPoolExecutor(count, context) as in_processes:
        list(in_processes.map(once, range(count)))
        for _ in range(repeats):
            for seconds, run in (
                (alone, once),
                (threads, lambda: list(in_threads.map(once, range(count)))),
                (processes, lambda: list(in_processes.map(once, range(count)))),
            ):
                started = time.perf_counter()
                run()
                seconds.append(time.perf_counter() - started)
    return {
        "workers": count,
        "alone_s": spread(alone),
        "threads_s": spread(threads),
        "processes_s": spread(processes),
        "threads_over_processes": statistics.median(threads) / statistics.median(processes),
    }


def main() -> None:
    """Prints the curve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="pools up to 64 K blocks only")
    parser.add_argument("--contention", action="store_true", help="no curve, only threads against processes")
    parser.add_argument("--repeat", type=int, default=5, help="repetitions of each point")
    args = parser.parse_args()
    pools = () if args.contention else POOLS[:2] if args.quick else POOLS
    mixes, worst = [], []
    for blocks in pools:
        for sequences in SEQUENCES:
            if sequences > blocks // 4:
                continue
            log = core().OpLog.mix(blocks, 8, sequences, 100_000)
            for policy, impl in POLICIES:
                mixes.append({"sequences": sequences} | point(log, policy, impl, args.repeat))
        log = core().OpLog.growing(blocks, 8, 64, 40 if blocks <= 64 << 10 else 4)
        for policy, impl in POLICIES:
            # The heaps' scan of two million regions takes milliseconds for each block.
            if impl != "heaps" or blocks <= 64 << 10:
                worst.append(point(log, policy, impl, args.repeat))
    result = {"host": host(), "mix": mixes, "worst_case_growth": worst, "contention": contention(args.repeat)}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
