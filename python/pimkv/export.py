"""Exports: the block tables of one decode step -> a folder of traces, configs and what we predict for them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pimkv.backend import BlockManager, Ints
from pimkv.config import Config, refreshes, timing_of
from pimkv.controller import Controller
from pimkv.errors import ConfigError, Problem
from pimkv.interop import attacc, ramulator2
from pimkv.interop.reads import CHANNELS, Table, reads_of
from pimkv.result import dumps, write_file
from pimkv.simulation import Progress, Simulation
from pimkv.wording import choose_from, config_error, did_you_mean, nearest

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
DEFAULT_STEP = 400
DEFAULT_SEQUENCES = 3

_PROBLEMS = {"attacc": attacc.problems, "ramulator2": ramulator2.problems}
FORMATS = tuple(_PROBLEMS)


@dataclass(frozen=True)
class Snapshot:
    """The block tables of the exported sequences after the decode step `step`."""

    step: int
    tables: tuple[Table, ...]


def request_problems(format_: object, step: object, sequences: object) -> list[Problem]:
    """What is wrong with what an export is asked for, the config aside; None stands for the default."""
    found = []
    if format_ not in FORMATS:
        found.append(
            Problem(
                "format", format_, choose_from(FORMATS), did_you_mean(nearest(format_, FORMATS)), "--format"
            )
        )
    for name, value in (("step", step), ("sequences", sequences)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            found.append(Problem(name, value, "must be an integer from 0 up", flag=f"--{name}"))
    return found


def take_snapshot(
    config: Config,
    *,
    step: int | None = None,
    sequences: int | None = None,
    backend: str = "rust",
    progress: Progress | None = None,
) -> Snapshot:
    """Runs the config and keeps the tables of the first sampled step from `step` on.

    `step` left out is `DEFAULT_STEP`, or the last sampled step of a shorter run. Of its sampled sequences the
    first `sequences` are kept, 0 for the whole running batch; left out, `DEFAULT_SEQUENCES` or as many as
    there are. Raises `ConfigError` where the run has no such step or not so many sampled sequences.
    """
    keeper = _Keeper(config.scoring.sample_every, DEFAULT_STEP if step is None else step)
    result = Simulation(config, backend=backend).run(progress, on_step=keeper.hear)
    if keeper.last is None:
        raise config_error([Problem("step", step, "the run has no decode step to export", flag="--step")])
    if step is not None and keeper.last < step:
        message = f"no sampled step of this run comes so late; at most {keeper.last}, the last"
        raise config_error([Problem("step", step, message, did_you_mean(keeper.last), "--step")])
    columns = result.samples.columns()
    sampled: list[int] = columns["seq_id"][columns["step"] == keeper.last].tolist()
    if sequences is not None and sequences > len(sampled):
        message = f"step {keeper.last} has {len(sampled)} sampled (--sample-seqs); 0 exports all that run"
        raise config_error([
            Problem("sequences", sequences, message, did_you_mean(len(sampled)), "--sequences")
        ])  # fmt: skip
    chosen = (
        sorted(keeper.tables)
        if sequences == 0
        else sampled[: DEFAULT_SEQUENCES if sequences is None else sequences]
    )
    return Snapshot(keeper.last, tuple(keeper.tables[seq] for seq in chosen))


@dataclass
class _Keeper:
    """Keeps the tables of the latest sampled step until one from `wanted` on has come."""

    every: int
    wanted: int
    last: int | None = None
    tables: dict[int, Table] = field(default_factory=dict)

    def hear(self, step: int, seqs: Ints, manager: BlockManager) -> None:
        if step % self.every or (self.last is not None and self.last >= self.wanted):
            return
        self.last = step
        self.tables = {s: Table(s, manager.length(s), manager.table(s)) for s in seqs.tolist()}


def check(config: Config, format_: str) -> None:
    """Raises `ConfigError` with all that the simulator of this format could not run of the config."""
    problems = _PROBLEMS[format_](config)
    if problems:
        raise config_error(problems)


def write_export(config: Config, format_: str, snapshot: Snapshot, folder: Path) -> dict[str, Any]:
    """Writes traces, configs and manifest.json; returns the manifest. A file that exists is replaced.

    Equal configs give equal bytes. `config` must have passed `check`.
    """
    write = _write_attacc if format_ == "attacc" else _write_ramulator2
    try:
        folder.mkdir(parents=True, exist_ok=True)
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "format": format_,
            "versions": {"pimkv": version("pimkv"), "numpy": version("numpy")},
            "config": config.model_dump(mode="json"),
            "step": snapshot.step,
            "sequences": [table.sequence for table in snapshot.tables],
            "exports": [write(config, table, folder) for table in snapshot.tables],
        }
        write_file(folder / MANIFEST, dumps(manifest) + "\n")
    except OSError as error:
        raise ConfigError(f"out = {str(folder)!r}: {error.strerror} (--out)") from error
    return manifest


def _write_attacc(config: Config, table: Table, folder: Path) -> dict[str, Any]:
    macs = attacc.stream(table, config)
    name = f"sequence-{table.sequence}"
    written = _written(folder, f"{name}.trace", attacc.trace(macs))
    runs = []
    for refresh in _refresh_settings(config):
        text = attacc.simulator_config(written["file"], config, refresh=refresh)
        controller = Controller(timing_of(config), refresh=refresh, queue=config.controller.queue)
        run = controller.run(attacc.rows(macs), channels=CHANNELS)
        runs.append({
            "config": _written(folder, f"{name}-refresh.yaml" if refresh else f"{name}.yaml", text),
            "refresh": refresh,
            "predicted": {
                "cycles": run.cycles,
                "activations": run.activations,
                "precharges": run.precharges,
                "refreshes": run.refreshes,
            },
            "warnings": list(run.warnings),
        })  # fmt: skip
    return _entry(table, written | {"commands": len(macs)}, runs)


def _refresh_settings(config: Config) -> Sequence[bool]:
    """As asked; both where nothing was asked and the timing has figures for refresh."""
    if config.controller.refresh is not None or not refreshes(config):
        return (refreshes(config),)
    return (False, True)


def _write_ramulator2(config: Config, table: Table, folder: Path) -> dict[str, Any]:
    reads = reads_of(table, config)
    name = f"sequence-{table.sequence}"
    written = _written(folder, f"{name}.trace", ramulator2.trace(reads))
    counts = ramulator2.count_rows(reads)
    run = {
        "config": _written(folder, f"{name}.yaml", ramulator2.simulator_config(written["file"])),
        "refresh": False,
        "predicted": {
            "row_hits": counts.hits,
            "row_misses": counts.misses,
            "row_conflicts": counts.conflicts,
            "hit_rate": counts.hit_rate,
        },
        "warnings": [],
    }
    return _entry(table, written | {"reads": len(reads)}, [run])


def _entry(table: Table, trace: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "sequence": table.sequence,
        "tokens": table.tokens,
        "blocks": len(table.blocks),
        "trace": trace,
        "runs": runs,
    }


def _written(folder: Path, name: str, text: str) -> dict[str, Any]:
    write_file(folder / name, text)
    return {"file": name, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def runs_of(manifest: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every (export, run) of a manifest, in order."""
    for entry in manifest["exports"]:
        for run in entry["runs"]:
            yield entry, run
