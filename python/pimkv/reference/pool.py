"""Pool, the twin of a policy by itself, and what makes a refused call leave it as it was."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pimkv.errors import DoubleFree, ForeignBlock, InvalidArgument
from pimkv.reference.arguments import Ints, integer, vector
from pimkv.reference.policies import kinds, make_policy
from pimkv.reference.policies.random import Random
from pimkv.reference.policy import Policy


def check_region_impl(name: str) -> None:
    """InvalidArgument for an unknown one. The twin keeps the published heaps under either: the ids are the same."""
    if name not in ("indexed", "heaps"):
        raise InvalidArgument(f"region_impl = {name!r}: must be indexed or heaps")


@contextmanager
def undone_on_error(holder: Any, policy: Policy) -> Iterator[None]:
    """Put the attributes of `holder`, which owns `policy`, back if the body raises InvalidArgument.

    Only drawn indices can prove wrong half-way through a call, so only `random` pays for the copy.
    """
    saved = copy.deepcopy(holder.__dict__) if isinstance(policy, Random) else {}
    try:
        yield
    except InvalidArgument:
        holder.__dict__.update(saved)
        raise


class Pool:
    """A policy by itself: `blocks` block ids handed out to owners (ints, 0 or more).

    `kind` is one of `kinds()`; `blocks_per_region` (G) is the number of consecutive ids that fill one DRAM
    region, of which `blocks` must be a multiple for `pim-aware`. A failed call changes nothing.
    """

    def __init__(
        self, kind: str, blocks: int, *, blocks_per_region: int = 1, region_impl: str = "indexed"
    ) -> None:
        check_region_impl(region_impl)
        self._policy = make_policy(kind, blocks, blocks_per_region)

    @staticmethod
    def kinds() -> list[str]:
        """The names of all policies."""
        return list(kinds())

    def take(self, owner: int, n: int) -> Ints:
        """The ids of `n` blocks taken for `owner` one by one, int64; fewer when the pool runs out.

        For `contiguous` it runs out at the end of the owner's span. Raises InvalidArgument for a negative
        number or (`random`) for a missing or too large index.
        """
        owner = integer("owner", owner, 0)
        taken: list[int] = []
        with undone_on_error(self, self._policy):
            for _ in range(integer("n", n, 0)):
                block = self._policy.take(owner)
                if block is None:
                    break
                taken.append(block)
        return np.array(taken, dtype=np.int64)

    def give(self, ids: Ints) -> None:
        """Give back the blocks `ids` (int64, one-dimensional) in that order, all or none.

        Raises ForeignBlock for an id outside the pool and DoubleFree for one that is not in use or comes
        twice; the first such id counts.
        """
        blocks = vector("ids", ids, -(2**63))
        seen: set[int] = set()
        for block in blocks:
            if not 0 <= block < self._policy.blocks:
                raise ForeignBlock(f"ids contains {block}: the pool has blocks 0..{self._policy.blocks - 1}")
            if block in seen:
                raise DoubleFree(f"ids contains {block} twice: a block can be given back once")
            if block not in self._policy.in_use:
                raise DoubleFree(f"ids contains {block}: that block is not in use")
            seen.add(block)
        for block in blocks:
            self._policy.give(block)

    def forget(self, owner: int) -> None:
        """Drop what the policy remembers about `owner` (its current region, the untaken rest of its span)."""
        self._policy.forget(integer("owner", owner, 0))

    def reserve(self, owner: int, n: int) -> bool:
        """Reserve `n` blocks (1 or more) in a row for `owner`, first fit; False if no extent is long enough.

        `contiguous` only: InvalidArgument otherwise, and when the owner already holds a span.
        """
        return self._policy.reserve(integer("owner", owner, 0), integer("n", n, 1), 0)

    def feed(self, indices: Ints) -> None:
        """Queue the indices numpy drew, one per coming take (`random` only: InvalidArgument otherwise)."""
        self._policy.feed(vector("indices", indices, 0, self._policy.blocks - 1))

    @property
    def free_blocks(self) -> int:
        """Blocks neither in use nor reserved."""
        return self._policy.free_blocks

    def check(self) -> None:
        """Raise BrokenInvariant unless free, reserved and used blocks are every id once and all agrees."""
        self._policy.check()
