"""Which allocators there are: the policy behind each, the size of its blocks, its options, what a run must know of it.

A policy is one Rust file with a twin of the same name in `reference/policies`, and each is an allocator by
that name. An allocator that needs more than the policy's name (options, a unit of its own, a rule for the
scheduler) has a class here; several may stand on one policy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny, field_validator

from pimkv.section import Section

if TYPE_CHECKING:
    from pimkv.config import Config

# Counts stay within 31 bits, so that no product of them leaves the 64-bit integers of the core.
MOST_COUNT = 2**31
MOST_PAGE_TOKENS = 2**20


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
    # Whether the size of a block is the allocator's own and not the layout's: `unit_tokens` says which.
    own_unit: ClassVar[bool] = False

    def unit_tokens(self, config: Config) -> int:
        """Tokens of a block, of an allocator with a unit of its own; 0 if a unit holds no token."""
        raise NotImplementedError


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
    """Options of the `neupims` allocator; the defaults are what its source has."""

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


_OPTIONS: dict[str, type[AllocatorOptions]] = {
    "contiguous": ContiguousOptions,
    "neupims": NeupimsOptions,
    "random": RandomOptions,
    "pim-aware": PimAwareOptions,
    "pim-gather": PimGatherOptions,
}


def kinds() -> tuple[str, ...]:
    """Every allocator that a config may name, ascending."""
    return tuple(sorted({*policies(), *_OPTIONS}))


def options_of(kind: str) -> type[AllocatorOptions]:
    """The class of an allocator's options, which also says what a run must know of it."""
    return _OPTIONS.get(kind, AllocatorOptions)


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
        return self.options.policy or self.kind
