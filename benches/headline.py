"""Whole runs: the 1,000-request headline, and Rust against the Python twins, as ratios in one process.

python benches/headline.py [--requests 200] [--repeat 5] prints one JSON object. Imports are not timed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time

from pimkv.config import load
from pimkv.simulation import Simulation


def host() -> dict[str, object]:
    """Facts that a reader needs to judge an absolute time."""
    model = ""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def spread(values: list[float]) -> dict[str, float]:
    """Minimum, median and maximum, seconds."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def timed(
    allocator: str, requests: int, backend: str, kv_layout: str = "merged-token"
) -> tuple[float, float, dict[str, object]]:
    """Seconds of a whole run (workload, scheduling, allocation, scoring), of its scoring, and the summary."""
    config = load(
        {
            "workload": {"requests": requests},
            "allocator": {"kind": allocator},
            "layout": {"kv_layout": kv_layout},
        }
    )
    started = time.perf_counter()
    result = Simulation(config, backend=backend).run()
    return time.perf_counter() - started, result.timing["scoring_s"], result.summary


def main() -> None:
    """Times the headline per allocator, then both backends on one shorter run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200, help="requests of the comparison")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each Rust figure")
    args = parser.parse_args()
    timed("paged", 50, "rust")
    headline = {
        name: spread([timed(name, 1000, "rust")[0] for _ in range(args.repeat)])
        for name in ("paged", "pim-aware")
    }
    headline["pim-aware, split"] = spread(
        [timed("pim-aware", 1000, "rust", "split")[0] for _ in range(args.repeat)]
    )
    # The two backends take turns, so that a drift of the machine's speed touches both.
    rust, reference = [], []
    for _ in range(2):
        reference.append(timed("paged", args.requests, "reference"))
        rust += [timed("paged", args.requests, "rust") for _ in range(args.repeat)]
    if any(run[2] != rust[0][2] for run in rust + reference):
        raise SystemExit("the backends disagree")
    whole = statistics.median(r[0] for r in reference) / statistics.median(r[0] for r in rust)
    scoring = statistics.median(r[1] for r in reference) / statistics.median(r[1] for r in rust)
    print(
        json.dumps(
            {
                "host": host(),
                "headline_1000_requests_s": headline,
                "comparison_requests": args.requests,
                "rust_whole_run_s": spread([r[0] for r in rust]),
                "reference_whole_run_s": spread([r[0] for r in reference]),
                "whole_run_ratio": whole,
                "scoring_ratio": scoring,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
