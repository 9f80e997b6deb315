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

from pydantic import Field

from pimkv.allocators import (
    MOST_COUNT,
    Allocator,
    AllocatorOptions,
    ContiguousOptions,
    PimAwareOptions,
    PimGatherOptions,
    RandomOptions,
)
from pimkv.config_checks import check_config
from pimkv.derived import (
    MOST_BLOCK_TOKENS,
    MOST_SHARDS,
    Geometry,
    command_repeat,
    explicit_map,
    geometry,
    passes_of,
    refreshes,
    timing_of,
)
from pimkv.errors import Problem
from pimkv.presets import presets
from pimkv.section import PowerOfTwo, PresetSection, Report, Section, fill, from_preset
from pimkv.timing import MAX_QUEUE
from pimkv.toml_io import parse_set, read_toml, write_toml
from pimkv.wording import kind_of

__all__ = [
    "Allocator",
    "AllocatorOptions",
    "Config",
    "ContiguousOptions",
    "Controller",
    "Dram",
    "Geometry",
    "Layout",
    "Model",
    "PimAwareOptions",
    "PimGatherOptions",
    "RandomOptions",
    "Scheduler",
    "Scoring",
    "Speculation",
    "Traffic",
    "Workload",
    "command_repeat",
    "dumps_toml",
    "explicit_map",
    "geometry",
    "json_schema",
    "load",
    "merge",
    "parse_set",
    "passes_of",
    "presets",
    "read_toml",
    "refreshes",
    "timing_of",
]


class Workload(Section):
    """Which requests arrive, and when."""

    kind: Annotated[
        Literal["steady", "longctx", "prefix", "spec"],
        Field(description="synthetic workload; spec is steady under speculative decoding"),
    ] = "steady"
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
        Field(
            gt=0,
            description="requests per decode step; left out: 0.25 (longctx 0.2), or a trace's own time stamps",
        ),
    ] = None

    @property
    def request_limit(self) -> int | None:
        """Number of requests to run; None for all of a trace."""
        return 1000 if self.requests is None and self.trace is None else self.requests

    @property
    def rate(self) -> float | None:
        """Requests per decode step; None for a trace's own time stamps."""
        if self.arrival_rate is not None or self.trace is not None:
            return self.arrival_rate
        return 0.2 if self.kind == "longctx" else 0.25


class Model(PresetSection):
    """What one attention layer keeps of a token."""

    kind: ClassVar[str] = "model"
    preset: Annotated[str, Field(description="named model; values beside it win")] = "llama-gqa-8kv"
    kv_heads: int = from_preset("KV heads of a layer", ge=1, le=1024)
    query_heads: int = from_preset("query heads of a layer, a multiple of kv_heads", ge=1, le=65536)
    head_dim: int = from_preset("elements of one head", ge=1, le=65536)
    dtype_bytes: int = from_preset("bytes of an element", ge=1, le=8)
    layers: int = from_preset("layers; one of each kind is simulated", ge=1, le=65536)
    v_dim: Annotated[
        int,
        Field(
            ge=0, le=65536, description="elements of a latent stream that the V pass reads; 0: K and V apart"
        ),
    ] = 0
    window: Annotated[int, Field(ge=0, le=2**31, description="tokens that a sliding-window layer sees")] = 0
    window_layers: Annotated[int, Field(ge=0, le=65536, description="layers with a sliding window")] = 0

    @classmethod
    def resolved(cls, given: dict[str, Any]) -> dict[str, Any]:
        """A number of layers of one's own keeps the preset's share of sliding ones, rounded up."""
        values = super().resolved(given)
        preset = super().resolved({"preset": given.get("preset", cls.model_fields["preset"].default)})
        layers, sliding = given.get("layers"), preset.get("window_layers", 0)
        if sliding and "window_layers" not in given and type(layers) is int and 0 < layers <= 65536:
            values = {**values, "window_layers": -(-layers * sliding // preset["layers"])}
        return values

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V (or of their latent) that one layer keeps per token, all heads."""
        return (1 if self.v_dim else 2) * self.kv_heads * self.head_dim * self.dtype_bytes


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
    pin_gbps: float = from_preset("bandwidth over the pins, GB/s", ge=0.001, le=1e9)
    timing: str = from_preset("timing preset of its controller", min_length=1)
    pch_per_command: int = from_preset("pseudo-channels that one all-bank command acts on", ge=1, le=2)
    ranks_per_command: int = from_preset(
        "ranks that one all-bank command acts on; `channels` and `banks` count one of them", ge=1, le=4
    )

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
        Literal["merged-token", "merged-block", "split", "published-split"],
        Field(description="K and V by token, by block, in pools apart, or the study's proxy of that"),
    ] = "merged-token"
    passes: Annotated[
        int | None, Field(ge=1, le=2, description="sweeps per decode step; left out: what the layout needs")
    ] = None
    traversal: Annotated[
        Literal["token", "row", "row-batch"],
        Field(description="blocks read in logical or in row order; row-batch also states a bound"),
    ] = "token"
    stacks: Annotated[
        int, Field(ge=1, le=1024, description="stacks that the KV heads are split over; one is simulated")
    ] = 1
    block_tokens: Annotated[
        int | None,
        Field(
            ge=0,
            le=MOST_BLOCK_TOKENS,
            description="tokens of a block; 0: as many as fill one region; left out: 16, or the allocator's own unit",
        ),
    ] = None
    kv_shards: Annotated[
        int,
        Field(
            ge=1,
            le=MOST_SHARDS,
            description="shards of KV heads and channels; a power of two that divides both",
        ),
    ] = 1


class Speculation(Section):
    """A round of speculative decoding (workload `spec`): branches of drafted tokens, one of them adopted."""

    width: Annotated[int, Field(ge=1, le=1024, description="branches of a round")] = 4
    depth: Annotated[int, Field(ge=0, le=1024, description="drafted tokens of a branch")] = 3
    accept: Annotated[float, Field(ge=0, le=1, description="chance accept**i that draft i is accepted")] = 0.8
    adopt: Annotated[
        Literal["splice", "copyback"],
        Field(description="the branch's blocks join the table, or its tokens are copied into it"),
    ] = "splice"


class Scheduler(Section):
    """Who is admitted to the running batch, and how many blocks there are for it."""

    admission: Annotated[
        Literal["oracle", "vllm"],
        Field(description="admit what can reach its final length, or as vLLM v0.2.7 and preempt"),
    ] = "oracle"
    free_order: Annotated[
        Literal["table", "reversed", "shuffled"] | None,
        Field(description="order in which a table's blocks are freed; left out: the allocator's own"),
    ] = None
    max_batch: Annotated[int, Field(ge=1, le=65536, description="running sequences at most")] = 64
    headroom: Annotated[
        float, Field(gt=0, description="automatic pool, as a multiple of what max_batch mean sequences fill")
    ] = 1.3
    pool_blocks: Annotated[
        int, Field(ge=0, le=MOST_COUNT, description="blocks of the pool; 0: automatic")
    ] = 0


class Scoring(Section):
    """How the reads of a sequence are grouped into all-bank commands, and which are sampled."""

    coalesce: Annotated[
        Literal["window", "inorder"],
        Field(description="group within windows of bursts, or strictly in order"),
    ] = "window"
    window: Annotated[int, Field(ge=1, le=65536, description="bursts of a window, per channel")] = 64
    sample_every: Annotated[int, Field(ge=1, le=MOST_COUNT, description="decode steps between samples")] = 16
    sample_seqs: Annotated[
        int, Field(ge=1, le=MOST_COUNT, description="sequences measured per sample, at most")
    ] = 8


class Controller(Section):
    """The cycle-exact controller model that stands beside the published formula."""

    timing: Annotated[
        str | None, Field(min_length=1, description="timing preset; left out: the DRAM's own")
    ] = None
    presets: Annotated[
        str | None, Field(min_length=1, description="TOML file with timing presets of your own")
    ] = None
    refresh: Annotated[
        bool | None, Field(description="charge refresh; left out: where the timing has figures for it")
    ] = None
    queue: Annotated[int, Field(ge=1, le=MAX_QUEUE, description="commands in a channel's queue")] = 33
    feed: Annotated[
        Literal["paired", "per-pch"],
        Field(description="one command for a pair of pseudo-channels, or one for each"),
    ] = "paired"
    queries_per_command: Annotated[
        int | None,
        Field(ge=1, le=65536, description="query heads that one command serves; left out: all of a KV head"),
    ] = None
    mac_stride: Annotated[
        int,
        Field(ge=1, le=4096, description="an activation serves 1 / mac_stride of a row visit's commands"),
    ] = 1


EXPERIMENTS: dict[str, dict[str, Any]] = {
    "published": {},
    "realistic": {
        "layout": {"kv_layout": "split"},
        "scheduler": {"admission": "vllm"},
        "traffic": {"writes": True},
    },
}
"""The defaults that each experiment changes."""


class Traffic(Section):
    """What moves over the pins beside the PIM reads."""

    writes: Annotated[
        bool, Field(description="charge the writing of new tokens and the copying of blocks")
    ] = False


class Config(Section):
    """One simulation, completely: equal configs give byte-identical results."""

    seed: Annotated[int, Field(ge=0, le=2**32 - 1, description="seed of everything random")] = 0
    experiment: Annotated[Literal["published", "realistic"], Field(description="bundle of defaults")] = (
        "published"
    )
    workload: Workload = Field(default_factory=Workload, description="requests")
    model: Model = Field(default_factory=Model, description="model")
    dram: Dram = Field(default_factory=Dram, description="memory")
    layout: Layout = Field(default_factory=Layout, description="KV layout")
    allocator: Allocator = Field(default_factory=Allocator, description="allocator")
    speculation: Speculation = Field(default_factory=Speculation, description="speculative decoding")
    scheduler: Scheduler = Field(default_factory=Scheduler, description="scheduler")
    scoring: Scoring = Field(default_factory=Scoring, description="scoring")
    controller: Controller = Field(default_factory=Controller, description="controller")
    traffic: Traffic = Field(default_factory=Traffic, description="writes and copies")

    def __init__(self, /, **data: Any) -> None:
        super().__init__(**with_experiment(data))

    def check(self, path: str, report: Report) -> None:
        check_config(self, report)


def with_experiment(data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` over the defaults of the experiment that it names."""
    name = data.get("experiment")
    defaults = EXPERIMENTS.get(name, {}) if isinstance(name, str) else {}
    merged = dict(data)
    for section, values in defaults.items():
        given = merged.get(section, {})
        # A section built in Python, or no table at all, stands as it is.
        if isinstance(given, Mapping):
            merged[section] = {**values, **given}
    return merged


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
    fill(config, with_experiment(data), "", report)
    report.finish()
    return config


def merge(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `overrides` laid over it, table by table; neither is changed.

    An override that names a preset drops the values of `base` that only repeat its old preset, so that a
    resolved config can change its DRAM or model; values of `base` that differ from its preset stay. So does
    one that names another experiment with the defaults of the old one. A table over something that is no table leaves the latter, for `load` to refuse.
    """
    merged = copy.deepcopy(dict(base))
    if overrides.get("experiment") not in {None, merged.get("experiment", "published")}:
        _forget_experiment(merged)
    for section in (Model, Dram):
        ours, theirs = merged.get(section.kind), overrides.get(section.kind)
        if isinstance(ours, dict) and isinstance(theirs, Mapping) and "preset" in theirs:
            old = section.resolved({"preset": ours.get("preset", section.model_fields["preset"].default)})
            merged[section.kind] = {
                key: value for key, value in ours.items() if not _repeats(old, key, value)
            }
    return _overlay(merged, overrides)


def _forget_experiment(tables: dict[str, Any]) -> None:
    """Drop what only repeats the defaults that experiments change."""
    plain = Config().model_dump()
    old = EXPERIMENTS.get(str(tables.get("experiment", "published")), {})
    for fields in EXPERIMENTS.values():
        for section, values in fields.items():
            table = tables.get(section)
            defaults = {**plain[section], **old.get(section, {})}
            if isinstance(table, dict):
                for key in values:
                    if key in table and _repeats(defaults, key, table[key]):
                        del table[key]


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
