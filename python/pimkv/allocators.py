"""Which allocators there are: the policy behind each, the size of its blocks, its options, what a run must know of it.

A policy is one Rust file with a twin of the same name in `reference/policies`, and each is an allocator by
that name. An allocator that needs more than the policy's name (options, a unit of its own, a rule for the
scheduler) has a class here; several may stand on one policy.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny, field_validator

from pimkv.derived import region_tokens, token_bytes
from pimkv.section import Section

if TYPE_CHECKING:
    from pimkv.config import Config

# Counts stay within 31 bits, so that no product of them leaves the 64-bit integers of the core.
MOST_COUNT = 2**31
MOST_PAGE_TOKENS = 2**20


@cache
def policies() -> tuple[str, ...]:
    """The names of all policies, ascending: those of their twins' files, which are not imported for it."""
    folder = Path(__file__).parent / "reference" / "policies"
    return tuple(sorted(f.stem.replace("_", "-") for f in folder.glob("*.py") if f.stem[0] != "_"))


class AllocatorOptions(Section):
    """Options of an allocator that has none, and what a run must know of any: the base of those that have."""

    # Name of the policy; None: the allocator's own.
    policy: ClassVar[str | None] = None
    # The pool is made of whole regions; a request reserves one span; the policy's takes are drawn; a block may
    # be held by several sequences (a prefix).
    regions: ClassVar[bool] = False
    spans: ClassVar[bool] = False
    draws: ClassVar[bool] = False
    shares: ClassVar[bool] = True
    # The pool is made of groups of so many blocks, so many of its blocks are never handed out, and a table's
    # blocks are freed in this order unless the scheduler is told another one.
    group_blocks: ClassVar[int] = 1
    held_back: ClassVar[int] = 0
    free_order: ClassVar[str] = "table"
    # V of a partial block lies apart and is copied into the block when that is full.
    stages: ClassVar[bool] = False
    # Whether the size of a block is the allocator's own and not the layout's: `unit_tokens` says which.
    own_unit: ClassVar[bool] = False

    @classmethod
    def pool_multiple(cls, blocks_per_region: int) -> int:
        """The pool has a multiple of so many blocks."""
        return blocks_per_region if cls.regions else cls.group_blocks

    def unit_tokens(self, config: Config) -> int:
        """Tokens of a block, of an allocator with a unit of its own; 0 if a unit holds no token."""
        raise NotImplementedError

    @property
    def page_tokens(self) -> tuple[int, int] | None:
        """Tokens of a K and of a V page, where a request owns both in whole row groups of one channel."""
        return None


class PagedFifoOptions(AllocatorOptions):
    """Options of the `paged-fifo` allocator: none. Block 0 is vLLM V1's null block."""

    held_back: ClassVar[int] = 1
    free_order: ClassVar[str] = "reversed"


class ContiguousOptions(AllocatorOptions):
    """Options of the `contiguous` allocator: none."""

    spans: ClassVar[bool] = True
    shares: ClassVar[bool] = False


class RandomOptions(AllocatorOptions):
    """Options of the `random` allocator: none."""

    draws: ClassVar[bool] = True


class PimAwareOptions(AllocatorOptions):
    """Options of the `pim-aware` allocator."""

    regions: ClassVar[bool] = True
    scratch: Annotated[
        Literal["shared", "separate"],
        Field(description="take branches under the sequence's own key, or under one of their own"),
    ] = "shared"
    plan: Annotated[
        Literal["none", "best-fit"],
        Field(description="with no empty region, start a request in the tightest region that holds it"),
    ] = "none"
    compact: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="after each step empty the regions filled up to this share, block by block; 0: never",
        ),
    ] = 0.0
    region_impl: Annotated[
        Literal["indexed", "heaps"],
        Field(description="structures behind the same ids: an index by free count, or the published heaps"),
    ] = "indexed"


class PimGatherOptions(AllocatorOptions):
    """Options of the `pim-gather` allocator; each is a lever that works without the others."""

    regions: ClassVar[bool] = True
    own_first: Annotated[
        bool, Field(description="grow into any region with blocks of the sequence before an empty one")
    ] = True
    relocate_tail: Annotated[
        bool, Field(description="move tails so that a growing sequence needs no further region")
    ] = True
    repair: Annotated[
        int,
        Field(ge=0, le=MOST_COUNT, description="blocks moved between two steps to gather sequences, at most"),
    ] = 32
    reserve: Annotated[
        int, Field(ge=0, le=MOST_COUNT, description="blocks that admission keeps free beyond its watermark")
    ] = 0


class NeupimsOptions(AllocatorOptions):
    """Options of the `neupims` allocator: whole row groups of one channel per request.

    Source: NeuPIMs (ASPLOS 2024) and its public simulator keep the K of a token in one bank, 32 banks to a page,
    and each dimension of V in one bank, 512 tokens along a row; a channel's free rows are a queue, and a request
    stays on the channel it was put on, which is found greedily by estimated attention time. Our minimal model: that
    layout whatever `kv_layout` says; the channel with most row groups that are not promised; the final length is
    promised at admission, claimed page by page, and a request waits until a channel can promise it. No sharing.
    """

    spans: ClassVar[bool] = True
    shares: ClassVar[bool] = False
    own_unit: ClassVar[bool] = True
    k_tokens: Annotated[
        int, Field(ge=1, le=MOST_PAGE_TOKENS, description="tokens of a K page, each of them in one bank")
    ] = 32
    v_tokens: Annotated[
        int,
        Field(ge=1, le=MOST_PAGE_TOKENS, description="tokens of a V page, one behind the other along a row"),
    ] = 512

    def unit_tokens(self, config: Config) -> int:
        """Tokens of a K page."""
        return self.k_tokens

    @property
    def page_tokens(self) -> tuple[int, int] | None:
        """Tokens of a K and of a V page."""
        return self.k_tokens, self.v_tokens


class GrowBlockOptions(AllocatorOptions):
    """Options of the `grow-block` allocator: none. It is `paged` with blocks of one region each.

    That a larger block makes a sequence's rows its own needs no source; 128 tokens for 4,096 bytes per token on
    `hbm3-pim`.
    """

    policy: ClassVar[str | None] = "paged"
    own_unit: ClassVar[bool] = True

    def unit_tokens(self, config: Config) -> int:
        """As many whole tokens as fill a region, at least one."""
        return region_tokens(config)


class BlockpimOptions(AllocatorOptions):
    """Options of the `blockpim` allocator: none. It is `paged` over the block that one all-bank operation reads.

    Source: BlockPIM sizes a block so that the K of one head fills one row of every bank that an all-bank
    operation acts on: 256 tokens on AttAcc's HBM3 (16 banks x 2 pseudo-channels x 2 ranks), 128 on AiM (16 banks
    of 2 KiB rows). Our minimal model: that unit for the whole block, whatever `kv_layout` says, under a stack of free ids.
    """

    policy: ClassVar[str | None] = "paged"
    own_unit: ClassVar[bool] = True

    def unit_tokens(self, config: Config) -> int:
        """Banks of an all-bank operation x row bytes / bytes of one head's K of a token, whole tokens."""
        dram, model = config.dram, config.model
        banks = dram.banks * dram.pch_per_command * dram.ranks_per_command
        return banks * dram.row_bytes // (model.head_dim * model.dtype_bytes)


class PimphonyOptions(AllocatorOptions):
    """Options of the `pimphony` allocator: chunks that belong to one request.

    Source: PIMphony allocates chunks of 1 MiB lazily, any free one. Our minimal model: the lowest free chunk, as
    many whole tokens as it holds, no fallback (a full pool stalls or preempts) and no sharing: a prefix is private.
    The branches of a speculation round are chunks of the request itself, taken and given back like any other.
    """

    policy: ClassVar[str | None] = "lowest-id"
    own_unit: ClassVar[bool] = True
    shares: ClassVar[bool] = False
    chunk_bytes: Annotated[int, Field(ge=1, le=2**40, description="bytes of a chunk, one layer")] = 2**20

    def unit_tokens(self, config: Config) -> int:
        """Whole tokens of a chunk; the rest of it stays empty."""
        return self.chunk_bytes // token_bytes(config)


class AttaccOptions(AllocatorOptions):
    """Options of the `attacc` allocator: a static reservation.

    Source: AttAcc and the PIM systems before paging keep a contiguous place of the maximum length per request.
    Our minimal model: `contiguous`, first fit, with a span of `max_tokens` for every request; admission stalls
    when no span is free, nothing is shared, and a request that would outgrow its span is dropped and counted.
    """

    policy: ClassVar[str | None] = "contiguous"
    spans: ClassVar[bool] = True
    shares: ClassVar[bool] = False
    max_tokens: Annotated[int, Field(ge=1, le=MOST_COUNT, description="tokens reserved per request")] = 2048


class PattonOptions(AllocatorOptions):
    """Options of the `patton` allocator: none. Groups of 16 blocks, and V staged until its block is full."""

    group_blocks: ClassVar[int] = 16
    stages: ClassVar[bool] = True


_OPTIONS: dict[str, type[AllocatorOptions]] = {
    "paged-fifo": PagedFifoOptions,
    "contiguous": ContiguousOptions,
    "neupims": NeupimsOptions,
    "random": RandomOptions,
    "pim-aware": PimAwareOptions,
    "pim-gather": PimGatherOptions,
    "grow-block": GrowBlockOptions,
    "blockpim": BlockpimOptions,
    "pimphony": PimphonyOptions,
    "attacc": AttaccOptions,
    "patton": PattonOptions,
}


@cache
def kinds() -> tuple[str, ...]:
    """Every allocator that a config may name, ascending."""
    return tuple(sorted({*policies(), *_OPTIONS}))


def options_of(kind: str) -> type[AllocatorOptions]:
    """The class of an allocator's options, which also says what a run must know of it."""
    return _OPTIONS.get(kind, AllocatorOptions)


def policy_of(kind: str) -> str:
    """The policy that an allocator stands on; any other name as it is."""
    return options_of(kind).policy or kind


class Allocator(Section):
    """Which policy hands out blocks."""

    kind: Annotated[
        str, Field(description="allocation policy", json_schema_extra={"enum": list(kinds())})
    ] = "paged"
    options: SerializeAsAny[AllocatorOptions] = Field(
        default_factory=AllocatorOptions, description="options of this kind of allocator"
    )

    @field_validator("kind")
    @classmethod
    def _exists(cls, kind: str) -> str:
        if kind not in kinds():
            raise ValueError("no such allocator")
        return kind

    @classmethod
    def choices(cls, name: str) -> tuple[str, ...]:
        return kinds() if name == "kind" else super().choices(name)

    @classmethod
    def options_of(cls, kind: str) -> tuple[str, ...]:
        """Names of the options that an allocator has."""
        return tuple(options_of(kind).model_fields)

    @classmethod
    def tables(cls, given: dict[str, Any]) -> dict[str, type[Section]]:
        kind = given.get("kind", "paged")
        if isinstance(kind, str) and kind in kinds():
            return {"options": options_of(kind)}
        # The kind is refused by itself; which options it would take is anyone's guess.
        given.pop("options", None)
        return {"options": AllocatorOptions}

    @property
    def policy(self) -> str:
        """The policy that both backends know it by."""
        return policy_of(self.kind)
