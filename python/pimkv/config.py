"""What is simulated: the validated, frozen config, the one home of every option, its default and its range.

`load` turns plain tables into a `Config` or reports every mistake at once; building `Config` or one of its
sections in Python checks the same. A `Config` that exists is valid: presets are filled in, values given
beside a preset's name win, and the options fit together. What the simulator computes with (shards taken
off, sizes multiplied out) is in `Geometry`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny

from pimkv.config_checks import check_config
from pimkv.derived import MOST_BLOCK_TOKENS, MOST_SHARDS, Geometry, explicit_map, geometry
from pimkv.errors import Problem
from pimkv.presets import presets
from pimkv.section import PowerOfTwo, PresetSection, Report, Section, fill, from_preset
from pimkv.toml_io import parse_set, read_toml, write_toml
from pimkv.wording import kind_of

__all__ = [
    "Allocator",
    "Config",
    "Dram",
    "Geometry",
    "Layout",
    "Model",
    "PagedOptions",
    "PimAwareOptions",
    "Scheduler",
    "Scoring",
    "Workload",
    "dumps_toml",
    "explicit_map",
    "geometry",
    "json_schema",
    "load",
    "merge",
    "parse_set",
    "presets",
    "read_toml",
]

# Counts stay within 31 bits, so that no product of them leaves the 64-bit integers of the core.
_COUNT = 2**31


class Workload(Section):
    """Which requests arrive, and when."""

    kind: Annotated[Literal["steady"], Field(description="synthetic workload")] = "steady"
    trace: Annotated[
        str | None, Field(min_length=1, description="file with a request trace, in place of `kind`")
    ] = None
    step_ms: Annotated[
        float, Field(gt=0, description="length of a decode step, ms; turns a trace's times into steps")
    ] = 30.0
    requests: Annotated[
        int | None,
        Field(ge=1, le=1_000_000, description="number of requests; left out: 1000, or all of a trace"),
    ] = None
    arrival_rate: Annotated[
        float | None,
        Field(gt=0, description="requests per decode step; left out: 0.25, or a trace's own time stamps"),
    ] = None

    @property
    def request_limit(self) -> int | None:
        """Number of requests to run; None for all of a trace."""
        return 1000 if self.requests is None and self.trace is None else self.requests

    @property
    def rate(self) -> float | None:
        """Requests per decode step; None for a trace's own time stamps."""
        return 0.25 if self.arrival_rate is None and self.trace is None else self.arrival_rate


class Model(PresetSection):
    """What one attention layer keeps of a token."""

    kind: ClassVar[str] = "model"
    preset: Annotated[str, Field(description="named model; values beside it win")] = "llama-gqa-8kv"
    kv_heads: int = from_preset("KV heads of a layer", ge=1, le=1024)
    query_heads: int = from_preset("query heads of a layer, a multiple of kv_heads", ge=1, le=65536)
    head_dim: int = from_preset("elements of one head", ge=1, le=65536)
    dtype_bytes: int = from_preset("bytes of an element", ge=1, le=8)
    layers: int = from_preset("layers; one is simulated", ge=1, le=65536)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V that one layer keeps per token, all heads."""
        return 2 * self.kv_heads * self.head_dim * self.dtype_bytes


class Dram(PresetSection):
    """The memory: its geometry, and the two constants of the published timing formula."""

    # The sizes multiply to at most 2**62 bytes, so that a byte address fits a signed 64-bit integer.
    kind: ClassVar[str] = "dram"
    preset: Annotated[str, Field(description="named DRAM; values beside it win")] = "hbm3-pim"
    channels: PowerOfTwo = from_preset("(pseudo-)channels, a power of two", ge=1, le=2**12)
    bank_groups: PowerOfTwo = from_preset("bank groups of a channel, a power of two", ge=1, le=2**5)
    banks_per_group: PowerOfTwo = from_preset("banks of a bank group, a power of two", ge=1, le=2**5)
    rows: PowerOfTwo = from_preset("rows of a bank, a power of two", ge=1, le=2**22)
    row_bytes: PowerOfTwo = from_preset("bytes of one bank's row, a power of two", ge=1, le=2**18)
    burst_bytes: PowerOfTwo = from_preset("bytes of a burst, a power of two", ge=1, le=2**18)
    cache_line_bytes: PowerOfTwo = from_preset(
        "bytes of the host's cache line, a power of two", ge=1, le=2**18
    )
    tccd_ns: float = from_preset("all-bank command to an open row, ns (tCCD_ab)", ge=0.001, le=1e6)
    trc_ns: float = from_preset("all-bank command that opens its row first, ns (tRC)", ge=0.001, le=1e6)

    @property
    def banks(self) -> int:
        """Banks of one channel."""
        return self.bank_groups * self.banks_per_group

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the whole device."""
        return self.rows * self.region_bytes

    @property
    def region_bytes(self) -> int:
        """Bytes of one row index in every bank of every channel."""
        return self.row_bytes * self.banks * self.channels

    @property
    def ideal_gbps(self) -> float:
        """Bandwidth of full all-bank commands to open rows, GB/s (1e9 bytes), all channels."""
        return self.channels * self.banks * self.burst_bytes / self.tccd_ns


class Layout(Section):
    """How KV blocks lie in the memory."""

    addrmap: Annotated[str, Field(description="named address map, or a map string")] = "host-cacheline"
    kv_layout: Annotated[
        Literal["merged-token", "published-split"],
        Field(description="K and V of each token together, or the published proxy that halves a token"),
    ] = "merged-token"
    block_tokens: Annotated[
        int, Field(ge=0, le=MOST_BLOCK_TOKENS, description="tokens of a block; 0: as many as fill one region")
    ] = 16
    kv_shards: Annotated[
        int,
        Field(
            ge=1,
            le=MOST_SHARDS,
            description="shards of KV heads and channels; a power of two that divides both",
        ),
    ] = 1


class PagedOptions(Section):
    """Options of the `paged` allocator: none yet."""


class PimAwareOptions(Section):
    """Options of the `pim-aware` allocator: none yet."""


class Allocator(Section):
    """Which policy hands out blocks."""

    kind: Annotated[Literal["paged", "pim-aware"], Field(description="allocation policy")] = "paged"
    options: SerializeAsAny[PagedOptions | PimAwareOptions] = Field(
        default_factory=PagedOptions, description="options of this kind of allocator"
    )

    _OPTIONS: ClassVar[dict[str, type[Section]]] = {"paged": PagedOptions, "pim-aware": PimAwareOptions}

    @classmethod
    def tables(cls, given: dict[str, Any]) -> dict[str, type[Section]]:
        kind = given.get("kind", "paged")
        if isinstance(kind, str) and kind in cls._OPTIONS:
            return {"options": cls._OPTIONS[kind]}
        # The kind is refused by itself; which options it would take is anyone's guess.
        given.pop("options", None)
        return {"options": PagedOptions}


class Scheduler(Section):
    """Who is admitted to the running batch, and how many blocks there are for it."""

    admission: Annotated[Literal["oracle"], Field(description="admission rule")] = "oracle"
    max_batch: Annotated[int, Field(ge=1, le=65536, description="running sequences at most")] = 64
    headroom: Annotated[
        float, Field(gt=0, description="automatic pool, as a multiple of what max_batch mean sequences fill")
    ] = 1.3
    pool_blocks: Annotated[int, Field(ge=0, le=_COUNT, description="blocks of the pool; 0: automatic")] = 0


class Scoring(Section):
    """How the reads of a sequence are grouped into all-bank commands, and which are sampled."""

    coalesce: Annotated[
        Literal["window", "inorder"],
        Field(description="group within windows of bursts, or strictly in order"),
    ] = "window"
    window: Annotated[int, Field(ge=1, le=65536, description="bursts of a window, per channel")] = 64
    sample_every: Annotated[int, Field(ge=1, le=_COUNT, description="decode steps between samples")] = 16
    sample_seqs: Annotated[
        int, Field(ge=1, le=_COUNT, description="sequences measured per sample, at most")
    ] = 8


class Config(Section):
    """One simulation, completely: equal configs give byte-identical results."""

    seed: Annotated[int, Field(ge=0, le=2**32 - 1, description="seed of everything random")] = 0
    experiment: Annotated[Literal["published"], Field(description="bundle of defaults")] = "published"
    workload: Workload = Field(default_factory=Workload, description="requests")
    model: Model = Field(default_factory=Model, description="model")
    dram: Dram = Field(default_factory=Dram, description="memory")
    layout: Layout = Field(default_factory=Layout, description="KV layout")
    allocator: Allocator = Field(default_factory=Allocator, description="allocator")
    scheduler: Scheduler = Field(default_factory=Scheduler, description="scheduler")
    scoring: Scoring = Field(default_factory=Scoring, description="scoring")

    def check(self, path: str, report: Report) -> None:
        check_config(self, report)


def load(
    data: Mapping[str, Any], *, sources: Mapping[str, str] | None = None, problems: Iterable[Problem] = ()
) -> Config:
    """The config that nested tables describe; what they leave out comes from presets and defaults.

    `sources` maps field paths ("scheduler.max_batch") to where the caller set them ("--max-batch"), for
    messages. `problems` are mistakes found on the way here (`ConfigError.problems` of `parse_set`, say), to
    be reported with the rest. Raises ConfigError with every mistake, one per line, `problems` first.
    """
    report = Report(Config, sources=sources, problems=problems)
    if not isinstance(data, Mapping):
        report.add(
            "config", data, f"is {kind_of(data)}; must be a table with keys {', '.join(Config.model_fields)}"
        )
        data = {}
    config = Config.__new__(Config)
    fill(config, data, "", report)
    report.finish()
    return config


def merge(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `overrides` laid over it, table by table; neither is changed.

    An override that names a preset drops the values of `base` that only repeat its old preset, so that a
    resolved config can change its DRAM or model; values of `base` that differ from its preset stay.
    A table over something that is no table leaves the latter, for `load` to refuse.
    """
    merged = copy.deepcopy(dict(base))
    for section in (Model, Dram):
        ours, theirs = merged.get(section.kind), overrides.get(section.kind)
        if isinstance(ours, dict) and isinstance(theirs, Mapping) and "preset" in theirs:
            old = section.resolved({"preset": ours.get("preset", section.model_fields["preset"].default)})
            merged[section.kind] = {
                key: value for key, value in ours.items() if not _repeats(old, key, value)
            }
    return _overlay(merged, overrides)


def _repeats(preset: Mapping[str, Any], key: str, value: object) -> bool:
    # True == 1, but only one of them is a mistake that must reach `load`.
    return key in preset and type(value) is type(preset[key]) and value == preset[key]


def _overlay(base: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in overrides.items():
        if not isinstance(value, Mapping):
            base[key] = copy.deepcopy(value)
        elif isinstance(table := base.setdefault(key, {}), dict):
            _overlay(table, value)
    return base


def dumps_toml(config: Config) -> str:
    """The resolved config as TOML, every value in declared order; `load` of it gives an equal config.

    Options that are left out (`workload.requests`, say) have no value in TOML and stay left out.
    """
    return write_toml(config.model_dump())


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of what `load` takes; checks across fields are `load`'s alone."""
    schema = Config.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
