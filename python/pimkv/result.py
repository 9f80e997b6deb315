"""What a run leaves: summary, samples, timing; their stable schemas, and the files they become."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from pimkv import metrics
from pimkv.backend import OpLog
from pimkv.config import Config, dumps_toml, passes_of, refreshes, timing_of
from pimkv.derived import block_tokens
from pimkv.errors import ConfigError, MissingExtra

SCHEMA_VERSION = 1
COLUMNS = (
    "step", "seq_id", "tokens", "bytes", "commands", "hits", "bursts", "cycles", "visits",
    "m1", "m2", "m3_gbps", "m4_ns", "adjacent", "same_region", "region_spread", "runs",
)  # fmt: skip


class Samples:
    """Sampled sequences of sampled steps, one row each, in the order they were measured."""

    def __init__(self, token_bytes: int, blocks_per_region: int | None, device: metrics.Device) -> None:
        self._token_bytes = token_bytes
        self._blocks_per_region = blocks_per_region
        self._device = device
        self._parts: list[np.ndarray[Any, np.dtype[np.int64]]] = []

    def add(self, step: int, seqs: metrics.Ints, scores: metrics.Ints, placement: metrics.Ints) -> None:
        """One sampled step: (n,) ids, (n, 5) scores as `Scorer.observe` gives them, (n, 4) placement counts."""
        steps = np.full(len(seqs), step, dtype=np.int64)
        self._parts.append(np.column_stack([steps, seqs, scores, placement]))

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    def columns(self) -> dict[str, np.ndarray[Any, Any]]:
        """The table, a column each of `COLUMNS`; units in docs/formats.md."""
        rows = np.concatenate(self._parts) if self._parts else np.empty((0, 11), dtype=np.int64)
        step, seqs, commands, hits, bursts, cycles, visits = rows.T[:7]
        size = bursts * self._device.burst_bytes
        m1 = metrics.m1(commands, hits)
        m2 = metrics.m2(commands, bursts, self._device.banks)
        m3 = metrics.m3_gbps(m1, m2, self._device)
        tokens = size // self._token_bytes
        values = (step, seqs, tokens, size, commands, hits, bursts, cycles, visits, m1, m2, m3, size / m3)
        placement = metrics.placement(rows[:, 7:], self._blocks_per_region)
        return dict(zip(COLUMNS, values, strict=False)) | placement

    def published(self) -> dict[str, float | None]:
        """The published estimator: plain means of the per-sample values."""
        columns = self.columns()
        return {name: metrics.mean(columns[name]) for name in ("m1", "m2", "m3_gbps", "m4_ns")}

    def placement(self) -> dict[str, float | None]:
        """Means of the placement figures over the samples that have them."""
        columns = self.columns()
        names = ("adjacent", "same_region", "region_spread", "runs")
        return {name: metrics.mean(columns[name]) for name in names}

    def to_csv(self) -> str:
        """CSV with a header; empty where a figure is not defined."""
        columns = self.columns()
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in zip(*(columns[name].tolist() for name in COLUMNS), strict=True):
            writer.writerow(cell(value) for value in row)
        return out.getvalue()


@dataclass(frozen=True)
class Result:
    """One finished run. `timing` is the only part in which two runs of one config may differ."""

    config: Config
    summary: dict[str, Any]
    samples: Samples
    timing: dict[str, Any]
    # What the policy was asked, if that was to be recorded.
    oplog: OpLog | None = None

    def report(self) -> dict[str, Any]:
        """The result without the timing: what goes into files."""
        return {
            "schema_version": SCHEMA_VERSION,
            "config": resolved(self.config),
            "controller_timing": timing_of(self.config).model_dump(mode="json", exclude={"note"}),
            "versions": {"pimkv": version("pimkv"), "numpy": version("numpy")},
            "summary": self.summary,
        }

    def to_json(self) -> str:
        """The report and the timing as one JSON object; what is not defined is null."""
        return dumps(self.report() | {"timing": self.timing})

    def to_row(self) -> dict[str, Any]:
        """Config and summary as one flat row: `config.scheduler.headroom`, `exact.m3_gbps`, ..."""
        return flat(resolved(self.config), "config.") | flat(self.summary)

    def to_polars(self) -> Any:
        """The samples as a polars DataFrame, a column each of `COLUMNS`; null where a figure is not defined.

        Raises `MissingExtra` where polars is not installed.
        """
        polars = imported("polars", "report")
        return polars.DataFrame(self.samples.columns()).with_columns(
            polars.col(polars.Float64).fill_nan(None)
        )

    def to_pandas(self) -> Any:
        """The samples as a pandas DataFrame, a column each of `COLUMNS`; NaN where a figure is not defined.

        Raises `MissingExtra` where pandas is not installed.
        """
        return imported("pandas", "pandas").DataFrame(self.samples.columns())

    def write(self, folder: Path) -> None:
        """Writes a run folder: config.toml, summary.json, samples.csv. An existing file is replaced."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_file(folder / "config.toml", dumps_toml(self.config))
            write_file(folder / "summary.json", dumps(self.report()) + "\n")
            write_file(folder / "samples.csv", self.samples.to_csv())
        except OSError as error:
            raise ConfigError(f"out = {str(folder)!r}: {error.strerror} (--out)") from error


def imported(module: str, extra: str) -> Any:
    """An optional library; `MissingExtra`, which names the extra that brings it, where it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f'{module} is not installed; pip install "pimkv[{extra}]"') from error


def resolved(config: Config) -> dict[str, Any]:
    """The config with what was left out filled in: what ran, and a config that runs the same again."""
    tables: dict[str, Any] = config.model_dump(mode="json")
    tables["workload"] |= {"requests": config.workload.request_limit, "arrival_rate": config.workload.rate}
    tables["layout"] |= {"passes": passes_of(config), "block_tokens": block_tokens(config)}
    tables["scheduler"]["free_order"] = config.scheduler.free_order or config.allocator.options.free_order
    heads = config.model.query_heads // config.model.kv_heads
    tables["controller"] |= {
        "timing": config.controller.timing or config.dram.timing,
        "refresh": refreshes(config),
        "queries_per_command": config.controller.queries_per_command or heads,
    }
    return tables


def flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables and lists as one flat mapping with dotted names ("exact.m1", "passes.0.m1")."""
    row: dict[str, Any] = {}
    for name, value in tables.items():
        if isinstance(value, Mapping):
            row |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            row |= flat({f"{name}.{index}": item for index, item in enumerate(value)}, prefix)
        else:
            row[f"{prefix}{name}"] = value
    return row


def cell(value: float) -> float | str:
    """A CSV cell: empty where a figure is not defined."""
    return "" if math.isnan(value) else value


def dumps(value: object) -> str:
    """JSON as pimkv prints it; NaN is refused, so that it cannot slip into a file."""
    return json.dumps(value, indent=2, allow_nan=False)


def write_file(path: Path, content: str | bytes) -> None:
    """Writes a whole file or none of it: a reader never sees half."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
