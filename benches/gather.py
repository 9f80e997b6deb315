"""Where gathering helps and where it does not: one row per workload, model and headroom.

    python benches/gather.py [requests]

Exact M3 in GB/s of `paged`, `pim-aware` and `pim-gather`, all with vLLM admission; copies are blocks read and
written by moves, as a share of the blocks read. Cells whose pool exceeds the DRAM are named on stderr. The last
line is the worst of all rows against the better rival.
"""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

from pimkv.config import load
from pimkv.errors import ConfigError
from pimkv.simulation import Simulation, requests_of

KINDS = ("paged", "pim-aware", "pim-gather")
WORKLOADS: dict[str, dict[str, Any]] = {
    "steady": {"workload": {"kind": "steady"}},
    "steady split": {"workload": {"kind": "steady"}, "layout": {"kv_layout": "split"}},
    "prefix": {"workload": {"kind": "prefix"}},
    "longctx": {"workload": {"kind": "longctx"}},
    "spec splice": {"workload": {"kind": "spec"}},
    "spec copyback": {"workload": {"kind": "spec"}, "speculation": {"adopt": "copyback"}},
}
MODELS = ("llama-gqa-8kv", "mqa-1kv", "mha-32kv")
HEADROOMS = (0.4, 0.6, 0.8, 1.3)


def run(kind: str, workload: str, model: str, headroom: float, requests: int) -> dict[str, Any]:
    """The summary of one cell."""
    tables = WORKLOADS[workload]
    config = load(
        {
            **tables,
            "workload": {**tables["workload"], "requests": requests},
            "model": {"preset": model},
            "allocator": {"kind": kind},
            "scheduler": {"headroom": headroom, "admission": "vllm"},
        }
    )
    return Simulation(config, requests=requests_of(config)).run().summary


def main() -> None:
    """Prints the table."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print(f"| workload | model | headroom | {' | '.join(KINDS)} | over the better | copies % |")
    print("|---|---|---|---|---|---|---|---|")
    worst = 9.0
    for workload, model, headroom in product(WORKLOADS, MODELS, HEADROOMS):
        try:
            runs = {kind: run(kind, workload, model, headroom, requests) for kind in KINDS}
        except ConfigError as error:
            print(f"{workload}, {model}, headroom {headroom}: {error}", file=sys.stderr)
            continue
        figures = [runs[kind]["exact"]["m3_gbps"] for kind in KINDS]
        ratio = figures[2] / max(figures[:2])
        worst = min(worst, ratio)
        share = 200 * runs["pim-gather"]["relocated_blocks"] / runs["pim-gather"]["blocks_read"]
        shown = " | ".join(f"{figure:,.0f}" for figure in figures)
        print(f"| {workload} | {model} | {headroom} | {shown} | {ratio:.3f} | {share:.3f} |", flush=True)
    print(f"\nworst: {worst:.4f} of the better of paged and pim-aware")


if __name__ == "__main__":
    main()
