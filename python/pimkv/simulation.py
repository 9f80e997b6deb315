"""config -> workload -> scheduler -> scorer -> Result: one run."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from pimkv import metrics
from pimkv.backend import Backend, BlockManager, Ints, Scorer, choose
from pimkv.config import Config, Geometry, explicit_map, geometry
from pimkv.errors import ConfigError
from pimkv.result import Result, Samples
from pimkv.scheduler import Counters, Scheduler
from pimkv.workload import synthetic, traces
from pimkv.workload.table import Requests

Progress = Callable[[int, int], None]


def requests_of(config: Config) -> Requests:
    """The request table that the config asks for; `TraceError` if its trace cannot be read."""
    w = config.workload
    if w.trace is not None:
        return traces.read_trace(
            w.trace,
            step_ms=w.step_ms,
            requests=w.request_limit,
            arrival_rate=w.arrival_rate,
            seed=config.seed,
        )
    rate = {} if w.arrival_rate is None else {"arrival_rate": w.arrival_rate}
    return synthetic.SYNTHETIC[w.kind](w.request_limit, config.seed, **rate)


def pool_blocks(config: Config, requests: Requests) -> int:
    """Blocks of the pool: as asked, else the published formula; never more than the DRAM holds.

    int(headroom * max_batch * blocks of a mean request); `pim-aware` rounds up to whole regions.
    """
    shape = geometry(config)
    regions = config.allocator.kind == "pim-aware"
    blocks = config.scheduler.pool_blocks
    if blocks:
        if regions and blocks % shape.blocks_per_region:
            down = blocks - blocks % shape.blocks_per_region
            near = [n for n in (down, down + shape.blocks_per_region) if n]
            raise ConfigError(
                f"scheduler.pool_blocks = {blocks}: {config.allocator.kind} needs whole regions of "
                f"{shape.blocks_per_region} blocks; nearest {' or '.join(map(str, near))} (--pool-blocks)"
            )
    else:
        mean_tokens = int(np.mean(requests.prompt + requests.output))
        per_request = -(-(mean_tokens + 1) // shape.block_tokens)
        blocks = int(config.scheduler.headroom * config.scheduler.max_batch * per_request)
        if blocks == 0:
            raise ConfigError(
                f"scheduler.headroom = {config.scheduler.headroom}: leaves a pool of no block at all; "
                "raise --headroom or --max-batch"
            )
        if regions:
            blocks = -(-blocks // shape.blocks_per_region) * shape.blocks_per_region
    if blocks > shape.capacity_blocks:
        gib = 2**30
        raise ConfigError(
            f"scheduler.pool_blocks = {blocks}: {blocks * shape.block_bytes / gib:.2f} GiB of blocks do not "
            f"fit the {shape.capacity_blocks * shape.block_bytes / gib:.2f} GiB of DRAM; at most "
            f"{shape.capacity_blocks} blocks (--pool-blocks, --headroom, --max-batch)"
        )
    return blocks


class Simulation:
    """One run of a config on a backend. All that can be refused is refused here, before anything runs.

    `requests` stands in for the config's own workload, so that runs to be compared read a trace once.
    `check_every_step` verifies conservation of blocks after each decode step (slow; for tests).
    Raises `ConfigError` or `TraceError` for what cannot be run as asked.
    """

    def __init__(
        self,
        config: Config,
        *,
        backend: str = "rust",
        requests: Requests | None = None,
        check_every_step: bool = False,
    ) -> None:
        self.config = config
        self.requests = requests_of(config) if requests is None else requests
        self.pool_blocks = pool_blocks(config, self.requests)
        self._backend = choose(backend)
        self._check = check_every_step

    def run(self, progress: Progress | None = None) -> Result:
        """Runs to the end. `progress(done, total)` hears of finished requests now and then."""
        started = time.perf_counter()
        requests, blocks = self.requests, self.pool_blocks
        shape = geometry(self.config)
        manager = _manager(self._backend, self.config, shape, blocks)
        scorer = _scorer(self._backend, self.config, shape)
        scheduler = Scheduler(
            requests,
            manager,
            block_tokens=shape.block_tokens,
            max_batch=self.config.scheduler.max_batch,
        )
        sampler = _Sampler(self.config, manager)
        scoring_s = 0.0

        def observe(step: int, seqs: Ints) -> None:
            nonlocal scoring_s
            begun = time.perf_counter()
            commands, hits, bursts = scorer.observe(manager, seqs)
            scoring_s += time.perf_counter() - begun
            sampler.observe(step, seqs, commands, hits, bursts)
            if self._check:
                manager.check()
            if progress is not None and step % 64 == 0:
                progress(scheduler.counters.completed, len(requests))

        counters = scheduler.run(observe, scorer.forget)
        if progress is not None:
            progress(len(requests), len(requests))
        summary = _summary(self.config, shape, counters, manager, scorer, sampler.samples, blocks, requests)
        wall = time.perf_counter() - started
        timing = {"wall_s": wall, "scoring_s": scoring_s, "backend": self._backend.name}
        return Result(self.config, summary, sampler.samples, timing)


def _manager(chosen: Backend, config: Config, shape: Geometry, blocks: int) -> BlockManager:
    return chosen.block_manager(
        config.allocator.kind,
        blocks,
        block_tokens=shape.block_tokens,
        blocks_per_region=shape.blocks_per_region,
    )


def _scorer(chosen: Backend, config: Config, shape: Geometry) -> Scorer:
    address_map = chosen.address_map(
        explicit_map(config),
        channels=shape.channels,
        bank_groups=shape.bank_groups,
        banks_per_group=shape.banks_per_group,
        rows=shape.rows,
        row_bytes=shape.row_bytes,
        burst_bytes=shape.burst_bytes,
    )
    window = config.scoring.window if config.scoring.coalesce == "window" else 0
    return chosen.scorer(
        address_map, block_bytes=shape.block_bytes, token_bytes=shape.token_bytes, window=window
    )


def _device(config: Config, shape: Geometry) -> metrics.Device:
    return metrics.Device(
        channels=shape.channels,
        banks=shape.bank_groups * shape.banks_per_group,
        burst_bytes=shape.burst_bytes,
        tccd_ns=config.dram.tccd_ns,
        trc_ns=config.dram.trc_ns,
    )


class _Sampler:
    """The published estimator: a few random sequences of every sample_every-th step."""

    def __init__(self, config: Config, manager: BlockManager) -> None:
        self._every = config.scoring.sample_every
        self._most = config.scoring.sample_seqs
        self._rng = np.random.default_rng(config.seed + 1)
        self._manager = manager
        shape = geometry(config)
        self.samples = Samples(shape.token_bytes, shape.blocks_per_region, _device(config, shape))

    def observe(self, step: int, seqs: Ints, commands: Ints, hits: Ints, bursts: Ints) -> None:
        if step % self._every:
            return
        drawn = self._rng.choice(len(seqs), size=min(self._most, len(seqs)), replace=False)
        picked = np.argsort(seqs)[np.sort(drawn)]
        placement = self._manager.placement(seqs[picked])
        self.samples.add(step, seqs[picked], commands[picked], hits[picked], bursts[picked], placement)


def _summary(
    config: Config,
    shape: Geometry,
    counters: Counters,
    manager: BlockManager,
    scorer: Scorer,
    samples: Samples,
    blocks: int,
    requests: Requests,
) -> dict[str, object]:
    return {
        "decode_steps": counters.decode_steps,
        "samples": len(samples),
        "completed": counters.completed,
        "dropped": counters.dropped,
        "skipped_requests": requests.skipped,
        "pool_blocks": blocks,
        "peak_live_blocks": counters.peak_live_blocks,
        "blocks_allocated": manager.blocks_allocated,
        "admission_failures": counters.admission_failures,
        "preemptions": counters.preemptions,
        "cow_copies": 0,
        "spec_stalls": 0,
        "copied_bytes": 0,
        "published": samples.published(),
        "exact": metrics.exact(*scorer.totals(), _device(config, shape)),
        "placement": samples.placement(),
    }
