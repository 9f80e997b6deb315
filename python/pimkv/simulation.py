"""config -> workload -> scheduler -> scorer -> Result: one run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import cast

import numpy as np

from pimkv import sliding, speculation
from pimkv.backend import Backend, BlockManager, Ints, OpLog, Scorer, choose
from pimkv.config import Config, Geometry, command_repeat, explicit_map, geometry, refreshes, timing_of
from pimkv.derived import DEFAULT_BLOCK_TOKENS
from pimkv.drawing import DrawingManager
from pimkv.errors import BrokenInvariant, ConfigError, Problem
from pimkv.observing import Observer, OnStep
from pimkv.prefix_cache import CachingManager, PrefixCache
from pimkv.result import Result
from pimkv.scheduler import Rules, Scheduler, Watcher
from pimkv.sliding import Sliding
from pimkv.summary import summarise
from pimkv.wording import config_error
from pimkv.workload import SYNTHETIC, traces
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
            chains=config.scheduler.prefix_cache,
            hash_tokens=w.hash_tokens,
        )
    rate = {} if w.arrival_rate is None else {"arrival_rate": w.arrival_rate}
    return SYNTHETIC[w.kind](w.request_limit, config.seed, **rate)


def pool_blocks(config: Config, requests: Requests) -> int:
    """Blocks of the pool: as asked, else the published formula; never more than the DRAM holds.

    int(headroom * max_batch * blocks of a mean request). An allocator with a unit of its own gets the bytes that
    blocks of 16 tokens would get, rounded down; one that has its pool in regions or groups whole ones, rounded
    up; row groups are as many in every channel, rounded down.
    """
    shape, options, groups = geometry(config), config.allocator.options, geometry(config).row_groups
    multiple = groups.channels if groups else options.pool_multiple(shape.blocks_per_region)
    blocks = config.scheduler.pool_blocks
    if blocks:
        if blocks % multiple:
            down = blocks - blocks % multiple
            near = [n for n in (down, down + multiple) if n]
            what = f"whole {'regions' if options.regions else 'groups'} of {multiple} blocks"
            what = f"as many row groups in each of {multiple} channels" if groups else what
            raise ConfigError(
                f"scheduler.pool_blocks = {blocks}: {config.allocator.kind} needs {what}; nearest "
                f"{' or '.join(map(str, near))} (--pool-blocks)"
            )
    else:
        block_tokens = DEFAULT_BLOCK_TOKENS if options.own_unit else shape.block_tokens
        mean_tokens = int(np.mean(requests.prompt + requests.output))
        per_request = -(-(mean_tokens + 1) // block_tokens)
        blocks = int(config.scheduler.headroom * config.scheduler.max_batch * per_request)
        blocks = blocks * block_tokens * shape.token_bytes // shape.block_bytes
        blocks = blocks // multiple * multiple if groups else -(-blocks // multiple) * multiple
        if blocks == 0:
            raise ConfigError(
                f"scheduler.headroom = {config.scheduler.headroom}: leaves a pool of no block at all; "
                "raise --headroom or --max-batch"
            )
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
    `check_every_step` verifies conservation of blocks after each decode step (slow; for tests). `record`
    keeps a log of what the policy is asked (`Result.oplog`). `through` may put something between the
    scheduler and the block manager, to watch or time its calls.
    Raises `ConfigError` or `TraceError` for what cannot be run as asked.
    """

    def __init__(
        self,
        config: Config,
        *,
        backend: str = "rust",
        requests: Requests | None = None,
        check_every_step: bool = False,
        record: bool = False,
        through: Callable[[BlockManager], BlockManager] | None = None,
    ) -> None:
        if record:
            _check_records(backend)
        self.config = config
        self.requests = requests_of(config) if requests is None else requests
        if config.scheduler.prefix_cache and self.requests.chains is None:
            raise ConfigError(
                "scheduler.prefix_cache = true: these requests have no hash chains, by which it finds equal "
                "beginnings (read_trace(..., chains=True))"
            )
        self.pool_blocks = pool_blocks(config, self.requests)
        self._backend = choose(backend)
        self._check = check_every_step
        self._record = record
        self._through = through

    def run(self, progress: Progress | None = None, on_step: OnStep | None = None) -> Result:
        """Runs to the end. `progress(done, total)` hears of finished requests now and then.

        `on_step(step, seqs, manager)` sees every decode step between decode and release: the running batch
        in admission order and the block tables. It must not change them.
        """
        started = time.perf_counter()
        config, shape = self.config, geometry(self.config)
        manager = self.block_manager()
        scorer = scorer_of(self._backend, config, shape, self.pool_blocks)
        if self._record:
            manager.record()
        cache = self._prefix_cache()
        operated = manager if self._through is None else self._through(manager)
        scheduler, rounds = self._scheduler(operated, cache)
        watcher = Observer(config, shape, manager, scorer, self._sliding(shape), on_step)
        if self._check:
            watcher.checks.append(manager.check)
            if watcher.sliding is not None:
                watcher.checks.append(watcher.sliding.manager.check)
        if progress is not None:
            watcher.checks.append(lambda: progress(scheduler.counters.completed, len(self.requests)))
        counters = scheduler.run(watcher)
        if progress is not None:
            progress(len(self.requests), len(self.requests))
        summary = summarise(
            config, shape, self.pool_blocks, self.requests.skipped, counters, watcher, rounds, cache
        )
        timing = {
            "wall_s": time.perf_counter() - started,
            "scoring_s": watcher.scoring_s,
            "backend": self._backend.name,
        }
        return Result(config, summary, watcher.samples, timing, manager.oplog() if self._record else None)

    def operations(self) -> OpLog:
        """What the run asks of its policy, in order. Nothing is scored: scores decide nothing.

        Raises `ConfigError` on the reference backend, which does not record.
        """
        _check_records(self._backend.name)
        manager = self.block_manager()
        manager.record()
        self._scheduler(manager, self._prefix_cache())[0].run(Watcher())
        log = manager.oplog()
        if log is None:
            raise BrokenInvariant("a manager that was to record has no log")
        return log

    def _prefix_cache(self) -> PrefixCache | None:
        return PrefixCache(self.config.scheduler.cache_blocks) if self.config.scheduler.prefix_cache else None

    def _scheduler(
        self, manager: BlockManager, cache: PrefixCache | None
    ) -> tuple[Scheduler, speculation.Rounds | None]:
        config, shape = self.config, geometry(self.config)
        if config.allocator.options.draws:
            drawing = DrawingManager(manager, block_tokens=shape.block_tokens, seed=config.seed)
            manager = cast(BlockManager, drawing)
        caching = None
        if cache is not None:
            caching = CachingManager(manager, cache, block_tokens=shape.block_tokens)
            manager = cast(BlockManager, caching)
        rounds = _rounds(config, manager, shape)
        return Scheduler(self.requests, manager, self._rules(shape), rounds, caching), rounds

    def block_manager(self) -> BlockManager:
        """A fresh block manager as the run has it."""
        shape, options = geometry(self.config), self.config.allocator.options
        groups = shape.row_groups
        return self._backend.block_manager(
            self.config.allocator.policy,
            self.pool_blocks,
            block_tokens=shape.block_tokens,
            blocks_per_region=self.pool_blocks // groups.channels if groups else shape.blocks_per_region,
            pages=groups.pages if groups else None,
            region_impl=getattr(options, "region_impl", "indexed"),
            best_fit=getattr(options, "plan", "none") == "best-fit",
            own_first=getattr(options, "own_first", False),
            relocate_tail=getattr(options, "relocate_tail", False),
        )

    def _sliding(self, shape: Geometry) -> Sliding | None:
        """The sliding-window layers, if the model has any; spans and draws follow the full layers' rules only."""
        config = self.config
        if not config.model.window_layers:
            return None
        options = config.allocator.options
        kind = "paged" if options.spans or options.draws else None
        blocks = sliding.pool_blocks(
            config.model.window + config.speculation.depth,
            shape.block_tokens,
            config.scheduler.max_batch,
            math.lcm(shape.blocks_per_region, options.pool_multiple(shape.blocks_per_region)),
            held_back=options.held_back,
        )
        manager = self._backend.block_manager(
            kind or config.allocator.policy,
            blocks,
            block_tokens=shape.block_tokens,
            blocks_per_region=shape.blocks_per_region,
        )
        scorer = scorer_of(self._backend, config, shape, blocks, window_tokens=config.model.window)
        return Sliding(manager, scorer, window=config.model.window, block_tokens=shape.block_tokens)

    def _rules(self, shape: Geometry) -> Rules:
        config, options = self.config, self.config.allocator.options
        scratch = 0
        if config.workload.kind == "spec" and options.spans:
            speculation = _speculation(config)
            scratch = speculation.width * speculation.blocks_per_branch(shape.block_tokens)
        return Rules(
            block_tokens=shape.block_tokens,
            blocks_for=shape.blocks_for,
            max_batch=config.scheduler.max_batch,
            admission=config.scheduler.admission,
            watermark=int(0.01 * self.pool_blocks),
            spans=options.spans,
            private=not options.shares,
            span_tokens=getattr(options, "max_tokens", None),
            stages=options.stages and not config.model.v_dim,
            scratch_blocks=scratch,
            repair=getattr(options, "repair", None),
            reserve=getattr(options, "reserve", 0),
            compact_blocks=int(getattr(options, "compact", 0) * shape.blocks_per_region),
            prefix_blocks=self.requests.prefix_tokens // shape.block_tokens if options.shares else 0,
            order=_free_order(config),
        )


def _check_records(backend: str) -> None:
    if backend == "reference":
        what = "only the Rust core records operations; leave out --oplog or --backend"
        raise config_error([Problem("backend", backend, what, flag="--backend")])


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
    match config.scheduler.free_order or config.allocator.options.free_order:
        case "reversed":
            return lambda n: np.arange(n - 1, -1, -1, dtype=np.int64)
        case "shuffled":
            return np.random.default_rng(config.seed + 3).permutation
    return None


def scorer_of(
    chosen: Backend, config: Config, shape: Geometry, blocks: int, window_tokens: int = 0
) -> Scorer:
    """The scorer of one kind of layer over a pool of so many blocks."""
    controller = _controller(chosen, config)
    if groups := shape.row_groups:
        return chosen.row_group_scorer(
            channels=groups.channels,
            rows=blocks // groups.channels,
            banks=groups.banks,
            row_bytes=shape.row_bytes,
            burst_bytes=shape.burst_bytes,
            elements=groups.elements,
            dtype_bytes=config.model.dtype_bytes,
            k_tokens=groups.pages[0][0],
            v_tokens=groups.pages[1][0],
            hit_ps=round(1000 * config.dram.tccd_ns),
            miss_ps=round(1000 * config.dram.trc_ns),
            controller=controller,
            per_command=groups.per_command,
            repeat=command_repeat(config),
            mac_stride=config.controller.mac_stride,
            count_writes=config.traffic.writes,
        )
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
        address_map,
        block_bytes=shape.block_bytes,
        token_bytes=shape.token_bytes,
        window=window,
        controller=controller,
        per_command=config.dram.pch_per_command,
        repeat=command_repeat(config),
        mac_stride=config.controller.mac_stride,
        passes=shape.passes(config, blocks),
        blocks_per_unit=shape.unit.blocks,
        window_tokens=window_tokens,
        traversal="token" if config.layout.traversal == "token" else "row",
        count_writes=config.traffic.writes,
    )


def _controller(chosen: Backend, config: Config) -> object:
    timing = timing_of(config)
    return chosen.controller(
        rcd=timing.nRCD,
        rp=timing.nRP,
        ras=timing.nRAS,
        rc=timing.nRC,
        rtp=timing.nRTP,
        ccd_ab=timing.nCCDAB,
        refi=timing.nREFI,
        rfc=timing.nRFC,
        max_postponed=timing.max_postponed,
        refresh=refreshes(config),
        queue=config.controller.queue,
        per_pch=config.controller.feed == "per-pch",
    )
