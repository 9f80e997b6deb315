"""Runs an installed simulator on an export and holds what it prints against what we predicted."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pimkv.errors import ConfigError, Problem
from pimkv.export import runs_of
from pimkv.interop import attacc, ramulator2
from pimkv.interop.reads import CHANNELS
from pimkv.wording import config_error

HIT_RATE_TOLERANCE = 0.0003


@dataclass(frozen=True)
class Verdict:
    """One run of the simulator beside ours. `error` is theirs - ours, `note` what else is wrong with theirs."""

    sequence: int
    config: str
    refresh: bool
    statistic: str
    ours: float
    theirs: float
    agrees: bool
    note: str = ""

    @property
    def error(self) -> float:
        """What the simulator has more than we predicted."""
        return self.theirs - self.ours


def find_simulator(path: str) -> Path:
    """The executable of that path, or of that name on PATH; `ConfigError` saying why there is none."""
    # The simulator runs in the folder of the export, where a relative path would lead elsewhere.
    file = Path(shutil.which(path) or path).absolute()
    if not file.exists():
        raise _trouble(
            path, "there is no such file, nor a command of that name; give an installed simulator's"
        )
    if file.is_dir():
        raise _trouble(path, "is a directory; must be the simulator's executable")
    if not os.access(file, os.X_OK):
        raise _trouble(path, "is not executable; must be the simulator's executable")
    return file


def validate(simulator: Path, folder: Path, manifest: dict[str, Any]) -> list[Verdict]:
    """Runs `simulator -f CONFIG` in the folder for every config of the export.

    Raises `ConfigError` where it cannot be run, fails, or does not print the statistic.
    """
    judge = _judge_cycles if manifest["format"] == "attacc" else _judge_rows
    return [judge(simulator, _output(simulator, folder, run), entry, run) for entry, run in runs_of(manifest)]


def _output(simulator: Path, folder: Path, run: dict[str, Any]) -> str:
    name = run["config"]["file"]
    try:
        done = subprocess.run(
            [simulator, "-f", name],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise _trouble(str(simulator), f"cannot be run: {error.strerror}") from error
    if done.returncode:
        how = (
            f"ended with exit code {done.returncode}"
            if done.returncode > 0
            else f"died of signal {-done.returncode}"
        )
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise _trouble(
            str(simulator), f"{how} on {name}" + (f"; its last line: {said[-1].strip()}" if said else "")
        )
    return done.stdout


def _judge_cycles(simulator: Path, output: str, entry: dict[str, Any], run: dict[str, Any]) -> Verdict:
    theirs = attacc.cycles_of(output)
    if theirs is None:
        raise _silent(simulator, run, (attacc.CYCLES,))
    ours = run["predicted"]["cycles"]
    return _verdict(entry, run, "cycles", ours, theirs, agrees=theirs == ours)


def _judge_rows(simulator: Path, output: str, entry: dict[str, Any], run: dict[str, Any]) -> Verdict:
    """Compares hit rates over the reads of the trace: those never served found their row open, or would have."""
    counts = ramulator2.rows_of(output)
    if counts is None:
        raise _silent(simulator, run, ramulator2.ROW_STATISTICS)
    reads = entry["trace"]["reads"]
    unserved = reads - counts.reads
    theirs = (reads - counts.misses - counts.conflicts) / reads
    ours = run["predicted"]["hit_rate"]
    note = ""
    if not 0 <= unserved <= ramulator2.UNSERVED * CHANNELS:
        note = f"served {counts.reads:,} of {reads:,} reads"
    agrees = not note and abs(theirs - ours) <= HIT_RATE_TOLERANCE
    return _verdict(entry, run, "hit rate", ours, theirs, agrees=agrees, note=note)


def _verdict(
    entry: dict[str, Any],
    run: dict[str, Any],
    statistic: str,
    ours: float,
    theirs: float,
    *,
    agrees: bool,
    note: str = "",
) -> Verdict:
    return Verdict(
        entry["sequence"], run["config"]["file"], run["refresh"], statistic, ours, theirs, agrees, note
    )


def _silent(simulator: Path, run: dict[str, Any], names: tuple[str, ...]) -> ConfigError:
    message = (
        f"printed no {', '.join(names)} for {run['config']['file']}; is it the simulator of this --format?"
    )
    return _trouble(str(simulator), message)


def _trouble(simulator: str, message: str) -> ConfigError:
    return config_error([Problem("simulator", simulator, message, flag="--simulator")])
