"""`pimkv compare --all`: every allocator on every workload, model and DRAM asked for, over processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from pimkv.cli.options import Given, logging_to_stderr, nest, out_folder, progress
from pimkv.errors import ConfigError, PimkvError, Problem

if TYPE_CHECKING:
    from pimkv.config import Config
    from pimkv.report.rivals import Entry, Table
    from pimkv.sweep.runner import Outcome

REPEATS = 7
"""Replays of an operation log behind ns per token."""


@dataclass(frozen=True)
class Asked:
    """What `pimkv compare` was asked for, of the grid. No allocator named, or `everything`: all of them."""

    named: Sequence[str]
    everything: bool
    workloads: str | None
    pareto: bool
    untimed: bool
    jobs: int | None
    out: str | None
    backend: str
    as_json: bool
    quiet: bool

    def wide(self, given: Given) -> bool:
        """Whether tables of the grid are asked for, and not the comparison of a few."""
        grounds = any(len(_listed(given, section)) > 1 for section in ("model", "dram"))
        return self.everything or self.workloads is not None or self.pareto or grounds


@dataclass
class _Run:
    """One allocator on one ground: its config, or why it has none."""

    allocator: str
    config: Config | None = None
    refused: str = ""


@dataclass
class _Ground:
    model: str
    dram: str
    workload: str
    runs: list[_Run] = field(default_factory=list)


def compare_all(given: Given, asked: Asked) -> None:
    """Runs the grid and prints its tables. Exit code 1 if a run failed that was not refused."""
    from pimkv.report.rivals import rivals_json, rivals_text
    from pimkv.result import write_file

    folder = out_folder(asked.out)
    grounds = _grounds(given, asked)
    with logging_to_stderr(quiet=asked.quiet):
        tables, failed = _tables(grounds, asked)
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_file(folder / "compare.json", rivals_json(tables, wall_clock=False) + "\n")
        except OSError as error:
            raise ConfigError(f"out = {asked.out!r}: {error.strerror} (--out)") from error
    click.echo(
        rivals_json(tables, wall_clock=True) if asked.as_json else rivals_text(tables, pareto=asked.pareto)
    )
    if failed:
        raise click.exceptions.Exit(1)


def _listed(given: Given, section: str) -> list[str]:
    """The presets that a flag lists, split at commas; empty if none was given."""
    table = given.tables.get(section)
    value = table.get("preset") if isinstance(table, dict) else None
    return split(value) if isinstance(value, str) else []


def split(value: str) -> list[str]:
    """The names of a comma-separated list."""
    return [name.strip() for name in value.split(",")]


def unique(names: Sequence[str], what: str, flag: str) -> None:
    """`ConfigError` for a name that comes twice."""
    if len(set(names)) < len(names):
        raise ConfigError(f"{what} = {','.join(names)}: each at most once ({flag})")


def _grounds(given: Given, asked: Asked) -> list[_Ground]:
    """Every (model, DRAM, workload) with a config per allocator. What is wrong for `paged` too is refused as a whole."""
    from pimkv.allocators import kinds
    from pimkv.sweep.runner import check_jobs
    from pimkv.wording import choose_from, config_error, did_you_mean, nearest

    names = list(asked.named) or list(kinds())
    models, drams = _listed(given, "model") or [""], _listed(given, "dram") or [""]
    workloads = [""] if asked.workloads is None else split(asked.workloads)
    for listing, what, flag in (
        (names, "allocators", "--allocators"),
        (workloads, "workloads", "--workloads"),
        (models, "model", "--model"),
        (drams, "dram", "--dram"),
    ):
        unique(listing, what, flag)
    problems = dict.fromkeys(str(config_error([p])) for p in _clashes(given, asked))
    for name in names:
        if name not in kinds():
            hint = did_you_mean(nearest(name, kinds()))
            problem = Problem("allocators", name, choose_from(kinds()), hint, flag="--allocators")
            problems[str(config_error([problem]))] = None
    problems |= dict.fromkeys(str(config_error([p])) for p in _unknown_options(given, names))
    try:
        if asked.jobs is not None:
            check_jobs(asked.jobs)
    except ConfigError as error:
        problems[str(error)] = None
    grounds = []
    for model in models:
        for dram in drams:
            for workload in workloads:
                here = given
                for name, path in (
                    (model, "model.preset"),
                    (dram, "dram.preset"),
                    (workload, "workload.kind"),
                ):
                    here = _set(here, path, name) if name else here
                try:
                    base = here.for_allocator("paged").load(backend=asked.backend)
                except ConfigError as error:
                    problems |= dict.fromkeys(str(error).splitlines())
                    continue
                source = base.workload.trace or base.workload.kind
                ground = _Ground(base.model.preset, base.dram.preset, source)
                ground.runs = [_run(here, name, base, asked.backend) for name in names]
                grounds.append(ground)
    if problems:
        raise ConfigError("\n".join(problems))
    return grounds


def _clashes(given: Given, asked: Asked) -> list[Problem]:
    """What goes without `--all` or `--workloads`."""
    problems = []
    if asked.everything and asked.named:
        told = "all of them or these: leave out --all or this"
        problems.append(Problem("allocators", ",".join(asked.named), told, flag="--allocators"))
    table = given.tables.get("workload")
    if asked.workloads is not None and isinstance(table, dict):
        told = "--workloads says which; leave one of them out"
        for name, flag in (("kind", "--workload"), ("trace", "--trace")):
            if name in table:
                problems.append(Problem(f"workload.{name}", table[name], told, flag=flag))
    return problems


def _unknown_options(given: Given, names: Sequence[str]) -> list[Problem]:
    """Options that no allocator of the comparison has: each gets only its own, so that nobody would miss them."""
    from pimkv.allocators import options_of
    from pimkv.wording import did_you_mean, nearest

    table = given.tables.get("allocator")
    options = table.get("options") if isinstance(table, dict) else None
    known = {field for name in names for field in options_of(name).model_fields}
    what = "no allocator of the comparison has it"
    return [
        Problem(f"allocator.options.{name}", value, what, did_you_mean(nearest(name, sorted(known))))
        for name, value in (options.items() if isinstance(options, dict) else ())
        if name not in known
    ]


def _set(given: Given, path: str, value: str) -> Given:
    from pimkv.config import merge

    # Not only `merge`: a list of presets is no preset whose values could be dropped.
    section, name = path.split(".")
    table = given.tables.get(section)
    rest = {k: v for k, v in table.items() if k != name} if isinstance(table, dict) else {}
    return replace(given, tables=merge({**given.tables, section: rest}, nest(path, value)))


def _run(given: Given, allocator: str, base: Config, backend: str) -> _Run:
    from pimkv.allocators import options_of

    given = given.for_allocator(allocator)
    try:
        if not base.scheduler.pool_blocks or not options_of(allocator).own_unit:
            return _Run(allocator, given.load(backend=backend))
        # Pools are compared in bytes: the number given is of the others' blocks.
        blocks = _as_many_bytes(base, given.load(_pool(0), backend=backend))
        if blocks == 0:
            return _Run(allocator, refused="no unit of it fits the pool (--pool-blocks)")
        return _Run(allocator, given.load(_pool(blocks), backend=backend))
    except ConfigError as error:
        return _Run(allocator, refused=_one_line(str(error)))


def _pool(blocks: int) -> dict[str, Any]:
    return {"scheduler": {"pool_blocks": blocks}}


def _as_many_bytes(base: Config, config: Config) -> int:
    """Units of an allocator, rounded down to what its pool is made of, in the bytes of `base`'s pool."""
    from pimkv.config import geometry

    mine, groups = geometry(config), geometry(config).row_groups
    blocks = base.scheduler.pool_blocks * geometry(base).block_bytes // mine.block_bytes
    multiple = groups.channels if groups else config.allocator.options.pool_multiple(mine.blocks_per_region)
    return blocks // multiple * multiple


def _one_line(message: str) -> str:
    return "; ".join(message.splitlines())


def _tables(grounds: Sequence[_Ground], asked: Asked) -> tuple[list[Table], bool]:
    """The finished tables, and whether a run failed rather than being refused."""
    from pimkv.report.rivals import Table

    outcomes = iter(_outcomes([run.config for g in grounds for run in g.runs if run.config], asked))
    entries = [
        [_entry(run, next(outcomes) if run.config else None) for run in ground.runs] for ground in grounds
    ]
    failed = any(entry.failed for row in entries for entry in row)
    if not failed and all(entry.summary is None for row in entries for entry in row):
        reasons = dict.fromkeys(f"{e.allocator}: {e.refused}" for row in entries for e in row)
        raise ConfigError("\n".join(reasons))
    if not asked.untimed and asked.backend == "rust":
        entries = _timed(entries, asked)
    return [Table(g.model, g.dram, g.workload, row) for g, row in zip(grounds, entries, strict=True)], failed


def _entry(run: _Run, outcome: Outcome | None) -> Entry:
    """A row: the run's summary, or why it has none."""
    from pimkv.report.rivals import Entry
    from pimkv.sweep.runner import Failure

    if outcome is None:
        return Entry(run.allocator, refused=run.refused)
    if not isinstance(outcome, Failure):
        return Entry(run.allocator, run.config, outcome)
    # What could not be known before the run, such as a pool that the DRAM does not hold, is no failure.
    if outcome.error in ("ConfigError", "TraceError"):
        return Entry(run.allocator, run.config, refused=_one_line(outcome.message))
    return Entry(run.allocator, run.config, refused=f"the run failed: {outcome}", failed=True)


def _timed(entries: Sequence[Sequence[Entry]], asked: Asked) -> list[list[Entry]]:
    """The rows with their CPU time, taken one by one after the runs: no run of ours takes the clock's core."""
    total, done = sum(map(len, entries)), 0
    timed: list[list[Entry]] = []
    with progress("allocators timed", quiet=asked.quiet) as bar:
        for row in entries:
            timed.append([])
            for entry in row:
                timed[-1].append(replace(entry, ns_per_token=_ns_per_token(entry)))
                done += 1
                if bar is not None:
                    bar(done, total)
    return timed


def _outcomes(configs: Sequence[Config], asked: Asked) -> list[Outcome]:
    """The summary of each run, or why there is none; the twins run here, the core over processes."""
    from pimkv.simulation import Simulation
    from pimkv.sweep.runner import Failure, run_all

    with progress("compare", quiet=asked.quiet) as bar:
        if asked.backend == "rust":
            return run_all(configs, jobs=asked.jobs, progress=bar)
        outcomes: list[Outcome] = []
        for config in configs:
            try:
                outcomes.append(Simulation(config, backend=asked.backend).run().summary)
            except PimkvError as error:
                outcomes.append(Failure(type(error).__name__, str(error)))
            if bar is not None:
                bar(len(outcomes), len(configs))
        return outcomes


def _ns_per_token(entry: Entry) -> float | None:
    """CPU time of the policy per generated token, ns: its operations recorded and replayed in Rust."""
    from pimkv.bench.ops import measure
    from pimkv.simulation import Simulation

    if entry.config is None or entry.summary is None:
        return None
    options: Any = entry.config.allocator.options
    log = Simulation(entry.config).operations()
    got = measure(log, log.kind, repeats=REPEATS, region_impl=getattr(options, "region_impl", None))
    tokens = entry.summary["capacity"]["generated_tokens"]
    return float(got["total_ns"]) / tokens if tokens else None
