"""config -> workload -> scheduler -> scorer -> Result: one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

import numpy as np

from pimkv import metrics, speculation
from pimkv.backend import Backend, BlockManager, Ints, Scorer, choose
from pimkv.config import Config, Geometry, explicit_map, geometry
from pimkv.drawing import DrawingManager
from pimkv.errors import ConfigError
from pimkv.result import Result, Samples
from pimkv.scheduler import Rules, Scheduler, Watcher
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
    regions = config.allocator.options.regions
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
        config, shape = self.config, geometry(self.config)
        manager = self._backend.block_manager(
            config.allocator.kind,
            self.pool_blocks,
            block_tokens=shape.block_tokens,
            blocks_per_region=shape.blocks_per_region,
            best_fit=getattr(config.allocator.options, "plan", "none") == "best-fit",
        )
        scorer = _scorer(self._backend, config, shape)
        operated = manager
        if config.allocator.options.draws:
            drawing = DrawingManager(manager, block_tokens=shape.block_tokens, seed=config.seed)
            operated = cast(BlockManager, drawing)
        rounds = _rounds(config, operated, shape)
        scheduler = Scheduler(self.requests, operated, self._rules(shape), rounds)
        watcher = _Watcher(config, shape, manager, scorer)
        if self._check:
            watcher.checks.append(manager.check)
        if progress is not None:
            watcher.checks.append(lambda: progress(scheduler.counters.completed, len(self.requests)))
        counters = scheduler.run(watcher)
        if progress is not None:
            progress(len(self.requests), len(self.requests))
        samples = watcher.samples
        summary = {
            "decode_steps": counters.decode_steps,
            "samples": len(samples),
            "completed": counters.completed,
            "dropped": counters.dropped,
            "skipped_requests": self.requests.skipped,
            "pool_blocks": self.pool_blocks,
            "peak_live_blocks": counters.peak_live_blocks,
            "blocks_allocated": manager.blocks_allocated,
            "admission_failures": counters.admission_failures,
            "preemptions": counters.preemptions,
            "cow_copies": manager.cow_copies,
            "relocated_blocks": counters.relocated_blocks,
            "spec_stalls": rounds.stalls if rounds else 0,
            "copied_bytes": shape.token_bytes * rounds.copied_tokens if rounds else 0,
            "published": samples.published(),
            "exact": metrics.exact(*scorer.totals(), _device(config, shape)),
            "placement": samples.placement(),
        }
        timing = {
            "wall_s": time.perf_counter() - started,
            "scoring_s": watcher.scoring_s,
            "backend": self._backend.name,
        }
        return Result(config, summary, samples, timing)

    def _rules(self, shape: Geometry) -> Rules:
        config, options = self.config, self.config.allocator.options
        scratch = 0
        if config.workload.kind == "spec" and options.spans:
            speculation = _speculation(config)
            scratch = speculation.width * speculation.blocks_per_branch(shape.block_tokens)
        return Rules(
            block_tokens=shape.block_tokens,
            max_batch=config.scheduler.max_batch,
            admission=config.scheduler.admission,
            watermark=int(0.01 * self.pool_blocks),
            spans=options.spans,
            scratch_blocks=scratch,
            compact_blocks=int(getattr(options, "compact", 0) * shape.blocks_per_region),
            prefix_blocks=0 if options.spans else self.requests.prefix_tokens // shape.block_tokens,
            order=_free_order(config),
        )


def _speculation(config: Config) -> speculation.Shape:
    s, options = config.speculation, config.allocator.options
    separate = getattr(options, "scratch", "shared") == "separate"
    return speculation.Shape(s.width, s.depth, s.accept, s.adopt, separate)


def _rounds(config: Config, manager: BlockManager, shape: Geometry) -> speculation.Rounds | None:
    if config.workload.kind != "spec":
        return None
    return speculation.Rounds(
        _speculation(config),
        manager,
        block_tokens=shape.block_tokens,
        seed=config.seed,
        branches=not config.allocator.options.spans,
    )


def _free_order(config: Config) -> Callable[[int], Ints] | None:
    """The order in which n blocks of a table are freed; `shuffled` draws permutations with seed + 3."""
    match config.scheduler.free_order:
        case "reversed":
            return lambda n: np.arange(n - 1, -1, -1, dtype=np.int64)
        case "shuffled":
            return np.random.default_rng(config.seed + 3).permutation
    return None


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


class _Watcher(Watcher):
    """Scores every step, and keeps the published estimator's samples: a few random sequences of every
    sample_every-th step, drawn with seed + 1."""

    def __init__(self, config: Config, shape: Geometry, manager: BlockManager, scorer: Scorer) -> None:
        self.samples = Samples(shape.token_bytes, shape.blocks_per_region, _device(config, shape))
        self.scoring_s = 0.0
        self.checks: list[Callable[[], None]] = []
        self._every = config.scoring.sample_every
        self._most = config.scoring.sample_seqs
        self._rng = np.random.default_rng(config.seed + 1)
        self._manager = manager
        self._scorer = scorer

    def step(self, step: int, seqs: Ints) -> None:
        begun = time.perf_counter()
        scores = self._scorer.observe(self._manager, seqs)
        self.scoring_s += time.perf_counter() - begun
        if step % self._every == 0:
            drawn = self._rng.choice(len(seqs), size=min(self._most, len(seqs)), replace=False)
            picked = np.argsort(seqs)[np.sort(drawn)]
            commands, hits, bursts = (column[picked] for column in scores)
            placement = self._manager.placement(seqs[picked])
            self.samples.add(step, seqs[picked], commands, hits, bursts, placement)
        for check in self.checks:
            check()

    def leave(self, seqs: Ints) -> None:
        self._scorer.forget(seqs)
