"""Points per second of a sweep in one process and in several, and what the machine gives at best.

python benches/sweep.py [--points 1000] [--requests 300] [--jobs 2] [--repeat 3] prints one JSON object. Each repetition
runs the same steady points three times, into a store each time: in this process; as a sweep with `--jobs`
processes, their start included; and as that many independent processes with their share each, which start
together once they have imported everything. The last is what the machine gives to processes that know nothing of
each other; on a shared or throttled machine it is less than `--jobs` times one, and so is any sweep. The CPU time of
all processes of a sweep (parent, workers and their start) over that of one process is what a sweep costs more than
its points; a busy machine moves it far less than it moves times.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path

from pimkv.bench.host import host, spread
from pimkv.config import Config, load
from pimkv.sweep.execute import run_sweep


def points(count: int, requests: int) -> list[Config]:
    """Steady points that differ in seed and allocator."""
    kinds = ("paged", "pim-aware")
    return [
        load(
            {"seed": index // 2, "workload": {"requests": requests}, "allocator": {"kind": kinds[index % 2]}}
        )
        for index in range(count)
    ]


def swept(configs: Sequence[Config], jobs: int) -> None:
    """One sweep into a fresh store; a point that fails would make the figure worthless."""
    with tempfile.TemporaryDirectory() as folder:
        result = run_sweep(configs, store=Path(folder) / "bench.db", jobs=jobs)
    if result.failures or result.ran != len(configs):
        raise SystemExit(f"{len(result.failures)} points failed")


def share(configs: Sequence[Config], start: Barrier, end: Barrier) -> None:
    """What one of the independent processes does."""
    swept(configs[:2], 1)
    start.wait()
    swept(configs, 1)
    end.wait()


def independent(configs: Sequence[Config], jobs: int) -> float:
    """Seconds until the last of `jobs` independent processes has run its share."""
    context = multiprocessing.get_context("spawn")
    start, end = context.Barrier(jobs + 1), context.Barrier(jobs + 1)
    shares = [context.Process(target=share, args=(configs[index::jobs], start, end)) for index in range(jobs)]
    for process in shares:
        process.start()
    start.wait()
    started = time.perf_counter()
    end.wait()
    seconds = time.perf_counter() - started
    for process in shares:
        process.join()
    return seconds


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds of one call, and seconds of CPU of this process and of those that ended meanwhile."""
    started, before = time.perf_counter(), cpu()
    work()
    return time.perf_counter() - started, cpu() - before


def cpu() -> float:
    """CPU seconds of this process and of its ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    """Times the three ways in turn, so that a drift of the machine's speed touches all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=1000, help="points of the sweep")
    parser.add_argument("--requests", type=int, default=300, help="requests of a point")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions")
    args = parser.parse_args()
    configs = points(args.points, args.requests)
    swept(configs[:4], 1)
    one, several, apart, cpu_ratio = [], [], [], []
    for _ in range(args.repeat):
        seconds, cpu_one = timed(lambda: swept(configs, 1))
        one.append(args.points / seconds)
        seconds, cpu_several = timed(lambda: swept(configs, args.jobs))
        several.append(args.points / seconds)
        cpu_ratio.append(cpu_several / cpu_one)
        apart.append(args.points / independent(configs, args.jobs))

    def ratios(above: Sequence[float], below: Sequence[float], times: int) -> dict[str, float]:
        return spread([a / (times * b) for a, b in zip(above, below, strict=True)])

    figures = {
        "host": host(),
        "points": args.points,
        "requests": args.requests,
        "jobs": args.jobs,
        "one_process_points_per_s": spread(one),
        "sweep_points_per_s": spread(several),
        "independent_points_per_s": spread(apart),
        "sweep_over_jobs_times_one": ratios(several, one, args.jobs),
        "independent_over_jobs_times_one": ratios(apart, one, args.jobs),
        "sweep_over_independent": ratios(several, apart, 1),
        "sweep_cpu_over_one_process_cpu": spread(cpu_ratio),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
