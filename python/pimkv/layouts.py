"""Which layout of K and V fits a model on a DRAM: each one scored on a perfectly placed sequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from pimkv import metrics
from pimkv.backend import choose
from pimkv.config import Config, geometry, load, merge, passes_of, timing_of
from pimkv.errors import ConfigError
from pimkv.simulation import scorer_of

LAYOUTS = ("merged-token", "merged-block", "split")


def fits(config: Config, backend: str = "rust") -> list[dict[str, Any]]:
    """Per layout, in two passes: row-hit rate and bank use of each pass, and bandwidth by the formula and on
    the controller without refresh, GB/s.

    The sequence fills whole units in ascending order: what the address map alone allows. The best one is
    marked, the first of equals, by the controller: a pass that leaves channels idle shows in neither M1 nor
    M2, and the formula takes all channels to be busy.
    """
    entries = []
    for layout in LAYOUTS:
        try:
            entries.append({"kv_layout": layout} | _figures(_with(config, layout), backend))
        except ConfigError as error:
            entries.append({"kv_layout": layout, "refused": str(error)})
    best = max((e["controller_gbps"] for e in entries if "m3_gbps" in e), default=None)
    for entry in entries:
        entry["best"] = best is not None and entry.get("controller_gbps") == best
        best = None if entry["best"] else best
    return entries


def _with(config: Config, layout: str) -> Config:
    given = config.model_dump(exclude_unset=False)
    changed = {"layout": {"kv_layout": layout, "passes": 2}, "traffic": {"writes": False}}
    return load(merge(given, changed))


def _figures(config: Config, backend: str) -> dict[str, Any]:
    shape = geometry(config)
    blocks = min(shape.capacity_blocks, 8 * shape.unit.blocks)
    chosen = choose(backend)
    manager = chosen.block_manager(
        "pim-aware",
        blocks // shape.unit.blocks * shape.unit.blocks,
        block_tokens=shape.block_tokens,
        blocks_per_region=shape.unit.blocks,
    )
    tokens = blocks // shape.unit.blocks * shape.unit.blocks * shape.block_tokens
    manager.admit(0, tokens)
    scorer = scorer_of(chosen, config, shape, blocks)
    scorer.observe(manager, np.array([0], dtype=np.int64))
    device = metrics.device_of(config, shape)
    passes = [metrics.of_pass(counts, device) for counts in scorer.pass_totals()]
    totals = metrics.Totals(*scorer.totals(), *scorer.timed_totals(), *scorer.limit_totals())
    timing = timing_of(config)
    exact = metrics.exact(totals, device, timing.tCK_ps, timing.nCCDAB)
    return {
        "passes": passes_of(config),
        "m1": [p["m1"] for p in passes],
        "m2": [p["m2"] for p in passes],
        "m3_gbps": exact["m3_gbps"],
        "controller_gbps": exact["controller_gbps_no_refresh"],
    }
