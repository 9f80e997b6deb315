"""The summary of a finished run: counts and figures under their stable names, defined in docs/model.md."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pimkv import metrics
from pimkv.backend import RowGroupScorer, Scorer
from pimkv.config import Config, Geometry, command_repeat, refreshes, timing_of
from pimkv.metrics import device_of
from pimkv.observing import Observer

if TYPE_CHECKING:
    from pimkv.prefix_cache import PrefixCache
    from pimkv.scheduler import Counters
    from pimkv.speculation import Rounds

GATHER = ("moves_growth", "moves_repair", "splits", "pairs_removed")
"""What `BlockManager.relocations` counts: `pim-gather` alone moves anything."""


def summarise(
    config: Config,
    shape: Geometry,
    pool_blocks: int,
    skipped: int,
    counters: Counters,
    watcher: Observer,
    rounds: Rounds | None,
    cache: PrefixCache | None = None,
) -> dict[str, Any]:
    """Everything a run tells, as plain numbers; None for what is not defined."""
    samples, manager, scorer = watcher.samples, watcher.manager, watcher.scorer
    device = device_of(config, shape)
    copied = shape.token_bytes * rounds.copied_tokens if rounds else 0
    # V is half of a block in every layout that keeps it apart from K.
    staged = counters.staged_blocks * shape.block_bytes // 2
    exact = exact_of(config, shape, scorer)
    summary = {
        "decode_steps": counters.decode_steps,
        "samples": len(samples),
        "completed": counters.completed,
        "dropped": counters.dropped,
        "skipped_requests": skipped,
        "pool_blocks": pool_blocks,
        "block_tokens": shape.block_tokens,
        "peak_live_blocks": counters.peak_live_blocks,
        "blocks_allocated": manager.blocks_allocated,
        "admission_failures": counters.admission_failures,
        "preemptions": counters.preemptions,
        "cow_copies": manager.cow_copies,
        "relocated_blocks": counters.relocated_blocks,
        "staged_blocks": counters.staged_blocks,
        "staged_bytes": staged,
        "gather": dict(zip(GATHER, manager.relocations, strict=True)),
        "blocks_read": counters.blocks_read,
        "spec_stalls": rounds.stalls if rounds else 0,
        "copied_bytes": copied,
        "capacity": capacity_of(shape, counters, manager.cow_copies),
        "published": samples.published(),
        "exact": exact,
        "passes": [metrics.of_pass(counts, device) for counts in scorer.pass_totals()],
        "placement": samples.placement(),
        "unit": {
            "kind": shape.unit.kind,
            "regions": shape.unit.regions,
            "blocks": shape.unit.blocks,
            "waste": shape.unit.waste,
        },
        "prefix_cache": None if cache is None else _prefix_cache(cache, shape),
        "traffic": None,
        "sliding": None,
        "row_batch": None,
        "model": _model(config, shape, pool_blocks, exact),
    }
    if config.traffic.writes:
        moved = copied + staged + counters.relocated_blocks * shape.block_bytes
        read_ns = exact["controller_cycles"] * timing_of(config).tCK_ps / 1000
        summary["traffic"] = metrics.traffic(
            *scorer.write_totals(), moved, read_ns, device, config.dram.pin_gbps
        )
    if watcher.sliding is not None:
        of_window = exact_of(config, shape, watcher.sliding.scorer)
        summary["sliding"] = {"window": config.model.window, "layers": config.model.window_layers} | of_window
        summary["model"] = _model(config, shape, pool_blocks, exact, of_window)
    if config.layout.traversal == "row-batch":
        summary["row_batch"] = _row_batch(config, shape, watcher, device, exact)
    return summary


def _prefix_cache(cache: PrefixCache, shape: Geometry) -> dict[str, Any]:
    """What requests found there, and what became of it."""
    c = cache.counters
    return {
        "hit_blocks": c.hit_blocks,
        "looked_up_blocks": c.looked_up_blocks,
        "hit_share": c.hit_share,
        "hit_tokens": c.hit_blocks * shape.block_tokens,
        "recovered_blocks": c.recovered_blocks,
        "evicted_blocks": c.evicted_blocks,
        "peak_blocks": c.peak_blocks,
    }


def capacity_of(shape: Geometry, counters: Counters, cow_copies: int) -> dict[str, Any]:
    """What the pool had room for: integers summed over decode steps, and means over them."""
    steps = counters.decode_steps
    reserved = [blocks * shape.block_bytes for blocks in counters.held_blocks]
    used = [tokens * shape.token_bytes for tokens in counters.used_tokens]
    # Nothing is written where the last sequence has just been preempted.
    empty = [(r - u) / u for r, u in zip(reserved, used, strict=True) if u]
    return {
        "mean_batch": counters.batch / steps if steps else None,
        "makespan": counters.makespan,
        "generated_tokens": counters.generated_tokens,
        "reserved_bytes": sum(reserved),
        "used_bytes": sum(used),
        "waste": metrics.mean(empty),
        "stalls": counters.stalls,
        "copied_blocks": counters.relocated_blocks + counters.staged_blocks + cow_copies,
    }


def exact_of(config: Config, shape: Geometry, scorer: Scorer) -> dict[str, Any]:
    """The exact aggregate of one kind of layer."""
    totals = metrics.Totals(*scorer.totals(), *scorer.timed_totals(), *scorer.limit_totals())
    if shape.row_groups:
        totals = replace(totals, formula_ps=cast(RowGroupScorer, scorer).formula_ps)
    timing = timing_of(config)
    return metrics.exact(
        totals, device_of(config, shape), timing.tCK_ps, timing.nCCDAB, command_repeat(config)
    )


def _model(
    config: Config,
    shape: Geometry,
    pool_blocks: int,
    full: dict[str, Any],
    window: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """All layers and stacks of the model: each layer of a kind reads and stores what the simulated one does.

    Capacity is that of the full layers' pool in every layer; time is the controller's, layers one after the
    other, stacks and shards side by side.
    """
    model, layout = config.model, config.layout
    sliding_layers = model.window_layers
    full_layers = model.layers - sliding_layers
    parallel = layout.stacks * layout.kv_shards
    tck_ns = timing_of(config).tCK_ps / 1000
    cycles = full_layers * full["controller_cycles"]
    moved = full_layers * full["bytes"]
    if window is not None:
        cycles += sliding_layers * window["controller_cycles"]
        moved += sliding_layers * window["bytes"]
    time_ns = cycles * tck_ns
    return {
        "layers": model.layers,
        "full_layers": full_layers,
        "window_layers": sliding_layers,
        "stacks": layout.stacks,
        "bytes_per_token": model.bytes_per_token * model.layers,
        "read_bytes": moved * parallel,
        "read_time_ns": time_ns,
        "read_gbps": moved * parallel / time_ns if time_ns else None,
        "read_gbps_per_stack": moved * layout.kv_shards / time_ns if time_ns else None,
        "pool_bytes_per_layer": pool_blocks * shape.block_bytes * layout.kv_shards,
        "pool_bytes_per_stack": pool_blocks * shape.block_bytes * layout.kv_shards * full_layers,
        "stack_bytes": config.dram.capacity_bytes,
        "refresh": refreshes(config),
    }


def _row_batch(
    config: Config, shape: Geometry, watcher: Observer, device: metrics.Device, exact: dict[str, Any]
) -> dict[str, Any]:
    """An upper bound: the whole batch is read row by row, so that each row is opened once per step and pass.

    It holds where a region is one row index; it needs the queries of the whole batch beside the banks. Where
    requests share no row it is what they have anyway.
    """
    commands, _, bursts = watcher.scorer.totals()
    passes = len(watcher.scorer.pass_totals())
    misses = watcher.batch_units * shape.unit.regions * shape.channels * passes
    time_ns = ((commands - misses) * device.tccd_ns + misses * device.trc_ns) / device.channels
    moved = bursts * device.burst_bytes
    model = config.model
    queries = model.query_heads // config.layout.kv_shards // config.layout.stacks
    return {
        "m3_gbps": exact["m3_gbps"] if shape.row_groups else moved / time_ns if commands else None,
        "query_bytes": config.scheduler.max_batch * queries * model.head_dim * model.dtype_bytes,
    }
