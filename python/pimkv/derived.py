"""The sizes a config implies: what is left after sharding, in the units the simulator computes with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pimkv import presets
from pimkv.addrmap import expand_map

if TYPE_CHECKING:
    from pimkv.config import Config

MOST_BLOCK_TOKENS = 2**20  # of a block, given or worked out from a region
MOST_SHARDS = 2**10


@dataclass(frozen=True)
class Geometry:
    """One shard's memory and blocks. Sizes in bytes unless named otherwise; see `geometry`."""

    channels: int
    bank_groups: int
    banks_per_group: int
    rows: int
    row_bytes: int
    burst_bytes: int
    token_bytes: int
    block_tokens: int
    block_bytes: int
    region_bytes: int
    blocks_per_region: int  # 1 when a block is a region or more
    capacity_blocks: int


def geometry(config: Config) -> Geometry:
    """The sizes of one shard: channels and KV heads divided by `kv_shards`, `block_tokens` 0 worked out."""
    dram = config.dram
    token = token_bytes(config)
    region = region_bytes(config)
    tokens = block_tokens(config)
    block = tokens * token
    return Geometry(
        channels=dram.channels // config.layout.kv_shards,
        bank_groups=dram.bank_groups,
        banks_per_group=dram.banks_per_group,
        rows=dram.rows,
        row_bytes=dram.row_bytes,
        burst_bytes=dram.burst_bytes,
        token_bytes=token,
        block_tokens=tokens,
        block_bytes=block,
        region_bytes=region,
        blocks_per_region=max(1, region // block),
        capacity_blocks=capacity_bytes(config) // block,
    )


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
    return config.model.bytes_per_token // config.layout.kv_shards // halves


def region_bytes(config: Config) -> int:
    """Bytes of one row index in every bank of every channel of one shard."""
    return config.dram.region_bytes // config.layout.kv_shards


def capacity_bytes(config: Config) -> int:
    """Bytes of one shard's channels."""
    return config.dram.capacity_bytes // config.layout.kv_shards


def block_tokens(config: Config) -> int:
    """Tokens of a block; as many as fill a region where the config says 0."""
    return config.layout.block_tokens or region_bytes(config) // token_bytes(config)


def log2(power: int) -> int:
    """The exponent of a power of two."""
    return power.bit_length() - 1
