"""The controller's event form against its per-clock twin, as seen from Python: commands of the trace per second.

python benches/controller.py [--commands 2000000] [--repeat 5] prints one JSON object. Both run the same trace
shape, four commands per row with refresh on; the twin gets fewer of them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np

from pimkv.controller import Controller
from pimkv.reference.controller import run_reference
from pimkv.timing import preset


def per_second(commands: int, run: Callable[[], object], repeat: int) -> float:
    """Commands per second of the fastest of `repeat` runs."""
    best = float("inf")
    for _ in range(repeat):
        started = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - started)
    return commands / best


def main() -> None:
    """Times both, in turn, in one process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", type=int, default=2_000_000, help="commands of the event form's trace")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each")
    args = parser.parse_args()
    controller, timing = Controller(), preset("attacc-hbm3-5.2")
    rows = np.repeat(np.arange(args.commands // 4) % 16384, 4)
    few = rows[: max(4, len(rows) // 50)]
    pairs = [(0, row) for row in few.tolist()]
    event = per_second(len(rows), lambda: controller.run(rows), args.repeat)
    clocked = per_second(len(pairs), lambda: run_reference(pairs, timing), args.repeat)
    figures = {
        "event_form_commands_per_s": round(event),
        "per_clock_commands_per_s": round(clocked),
        "ratio": round(event / clocked, 1),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
