"""The sizes a config implies: what is left after sharding, and where the parts of a token lie."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pimkv import presets, timing
from pimkv.addrmap import expand_map
from pimkv.row_groups import RowGroups, owns_row_groups, row_groups_of

if TYPE_CHECKING:
    from pimkv.config import Config
    from pimkv.timing import Timing

DEFAULT_BLOCK_TOKENS = 16
MOST_BLOCK_TOKENS = 2**20  # of a block, given or worked out from a region
MOST_SHARDS = 2**10
MOST_HASH_TOKENS = 2**20  # of a hash of a trace


MOST_WASTE = 0.07  # of a padded region; above it, whole rows are filled instead

Part = tuple[int, int, int, int, int]
"""Where a part of every token lies, bytes: base, stride, bytes, block, unit (see `Geometry.passes`)."""


@dataclass(frozen=True)
class Unit:
    """What whole blocks of one tensor fill: a region, a padded region, or a span of whole rows.

    kind: "exact" (blocks divide a region or fill whole ones), "padded" (`waste` of it stays empty) or "span"
    (blocks cross the rows inside it). bytes and regions are those of the unit, its empty rest included. A
    "row group" is a block of its own, a row index in one channel; `waste` is that of full pages.
    """

    kind: str
    bytes: int
    blocks: int
    regions: int
    waste: float


@dataclass(frozen=True)
class Geometry:
    """One shard's memory and blocks. Sizes in bytes unless named otherwise; see `geometry`."""

    channels: int
    bank_groups: int
    banks_per_group: int
    rows: int
    row_bytes: int
    burst_bytes: int
    token_bytes: int  # stored of a token: K and V
    read_bytes: int  # read of a token in a decode step, all passes
    block_tokens: int
    block_bytes: int  # of all its tensors
    region_bytes: int
    blocks_per_region: int  # of a unit, 1 when a block is a region or more
    capacity_blocks: int
    tensors: int  # 2 where K and V have pools of their own
    unit: Unit  # of one tensor
    row_groups: RowGroups | None = None  # where a block is one

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens of one request take."""
        if self.row_groups is None:
            return -(-tokens // self.block_tokens)
        return sum(-(-tokens // held) * blocks for held, blocks in self.row_groups.pages)

    def passes(self, config: Config, pool_blocks: int) -> list[list[Part]]:
        """What each pass reads of a token, for a pool of so many blocks.

        Token i of block b has a part at base + (b // unit.blocks) * unit + (b % unit.blocks) * block +
        i * stride. `split` keeps V in a pool of its own behind that of K.
        """
        token, block = self.token_bytes // self.tensors, self.block_bytes // self.tensors
        k, v = token, token // 2
        if self.tensors == 2:
            behind = -(-pool_blocks // self.unit.blocks) * self.unit.bytes
            return [[(base, token, token, block, self.unit.bytes)] for base in (0, behind)]
        if config.model.v_dim:
            read_v = config.model.v_dim * config.model.dtype_bytes
            return [[(0, token, part, block, self.unit.bytes)] for part in (k, read_v)]
        if config.layout.kv_layout == "merged-block":
            halves = [(base, v, v, block, self.unit.bytes) for base in (0, block // 2)]
        elif passes_of(config) == 1:
            return [[(0, token, token, block, self.unit.bytes)]]
        else:
            halves = [(base, token, v, block, self.unit.bytes) for base in (0, v)]
        return [halves] if passes_of(config) == 1 else [[half] for half in halves]


def geometry(config: Config) -> Geometry:
    """The sizes of one shard: channels and KV heads divided by `kv_shards`, `block_tokens` 0 worked out."""
    dram = config.dram
    token = token_bytes(config)
    region = region_bytes(config)
    tokens = block_tokens(config)
    block = tokens * token
    tensors = 2 if config.layout.kv_layout == "split" and not config.model.v_dim else 1
    unit = unit_of(block // tensors, region)
    capacity = dram.rows // unit.regions // tensors * unit.blocks
    if groups := row_groups_of(config):
        block, tensors, unit = groups.bytes, 1, Unit("row group", groups.bytes, 1, 1, groups.waste)
        capacity = dram.rows * groups.channels
    return Geometry(
        channels=dram.channels // config.layout.kv_shards,
        bank_groups=dram.bank_groups,
        banks_per_group=dram.banks_per_group,
        rows=dram.rows,
        row_bytes=dram.row_bytes,
        burst_bytes=dram.burst_bytes,
        token_bytes=token,
        read_bytes=token + config.model.v_dim * config.model.dtype_bytes,
        block_tokens=tokens,
        block_bytes=block,
        region_bytes=region,
        blocks_per_region=unit.blocks,
        capacity_blocks=capacity,
        tensors=tensors,
        unit=unit,
        row_groups=groups,
    )


def unit_of(block: int, region: int) -> Unit:
    """The unit that blocks of so many bytes fill in regions of `region` bytes.

    Where neither divides the other a region is padded if at most 7 % of it stays empty, else the smallest
    span of whole rows is taken that whole blocks fill.
    """
    if region % block == 0:
        return Unit("exact", region, region // block, 1, 0.0)
    if block % region == 0:
        return Unit("exact", block, 1, block // region, 0.0)
    blocks, regions = max(1, region // block), max(1, -(-block // region))
    waste = 1 - blocks * block / (regions * region)
    if waste <= MOST_WASTE:
        return Unit("padded", regions * region, blocks, regions, waste)
    span = math.lcm(block, region)
    return Unit("span", span, span // block, span // region, 0.0)


def passes_of(config: Config) -> int:
    """Sweeps over a sequence's cache per decode step: as asked, else what the layout needs.

    Softmax stands between Q.K and S.V, so K and V in tensors of their own, and a latent stream, are read in
    two, and so are K and V pages; one merged stream in one, as published.
    """
    needs_two = config.layout.kv_layout == "split" or config.model.v_dim > 0 or owns_row_groups(config)
    realistic = config.experiment == "realistic" and config.layout.kv_layout != "published-split"
    return config.layout.passes or (2 if needs_two or realistic else 1)


def explicit_map(config: Config) -> str:
    """The address map of one shard with every width a number, such as `row:14 col:4 bg:2 ba:2 ch:5 col:1`.

    Fields are most significant first. A map describes the whole device; `kv_shards` S takes log2(S) bits off
    the top of its channel field. Segments without bits are left out, as are hashes of a field without bits.
    """
    bits = map_bits(config)
    shard_bits = log2(config.layout.kv_shards)
    return expand_map(map_text(config.layout.addrmap), bits, line_bits(config), shard_bits)


def map_text(addrmap: str) -> str:
    """The map string that `layout.addrmap` stands for: a preset's, else the string itself."""
    return str(presets.values("addrmap", addrmap)["map"]) if presets.known("addrmap", addrmap) else addrmap


def map_bits(config: Config) -> dict[str, int]:
    """Bits of each field of the whole device's address map, in units of bursts."""
    dram = config.dram
    return {
        "row": log2(dram.rows),
        "col": log2(dram.row_bytes // dram.burst_bytes),
        "bg": log2(dram.bank_groups),
        "ba": log2(dram.banks_per_group),
        "ch": log2(dram.channels),
    }


def line_bits(config: Config) -> int:
    """Column bits within one cache line."""
    return log2(config.dram.cache_line_bytes // config.dram.burst_bytes)


def token_bytes(config: Config) -> int:
    """Bytes of one token and layer in one shard; the published split proxy counts half of them."""
    halves = 2 if config.layout.kv_layout == "published-split" else 1
    return config.model.bytes_per_token // config.layout.kv_shards // config.layout.stacks // halves


def region_bytes(config: Config) -> int:
    """Bytes of one row index in every bank of every channel of one shard."""
    return config.dram.region_bytes // config.layout.kv_shards


def capacity_bytes(config: Config) -> int:
    """Bytes of one shard's channels."""
    return config.dram.capacity_bytes // config.layout.kv_shards


def block_tokens(config: Config) -> int:
    """Tokens of a block: of an allocator with a unit of its own that unit, else what the layout says.

    The layout's 0 stands for as many as fill a region; left out it is 16.
    """
    options, given = config.allocator.options, config.layout.block_tokens
    if options.own_unit:
        # A unit that holds no token is refused; what stands in for it lets the other checks go on.
        return options.unit_tokens(config) or 1
    if given is None:
        return DEFAULT_BLOCK_TOKENS
    return given or region_tokens(config)


def region_tokens(config: Config) -> int:
    """Whole tokens of a region, at least 1."""
    return max(1, region_bytes(config) // token_bytes(config))


def log2(power: int) -> int:
    """The exponent of a power of two."""
    return power.bit_length() - 1


def timing_presets(config: Config) -> dict[str, Timing]:
    """Every timing preset that the config may name: the built-in ones and those of its own file.

    Raises ConfigError for a file that cannot be read or holds a timing that cannot be run.
    """
    path = config.controller.presets
    return timing.presets() | (timing.load_presets(path) if path is not None else {})


def timing_of(config: Config) -> Timing:
    """The controller's timing: as named, else the DRAM's own."""
    return timing_presets(config)[config.controller.timing or config.dram.timing]


def refreshes(config: Config) -> bool:
    """Whether refresh is charged: as asked, else where the timing has figures for it."""
    asked = config.controller.refresh
    return timing_of(config).has_refresh if asked is None else asked


def command_repeat(config: Config) -> int:
    """Times each all-bank command is issued: ceil(query heads of a KV head / queries per command)."""
    heads = config.model.query_heads // config.model.kv_heads
    return -(-heads // (config.controller.queries_per_command or heads))
