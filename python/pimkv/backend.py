"""The one door to the ground floor: chooses between the Rust core and its Python twins.

Nothing else in the package imports `_pimkv` or `pimkv.reference`. Both backends hand out the same
block ids at every step and count the same integers, so a summary does not depend on the choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pimkv.errors import Problem
from pimkv.wording import choose_from, config_error

Ints = npt.NDArray[np.int64]

NAMES = ("rust", "reference")


class AddressMap(Protocol):
    """A bit-field address map over burst numbers (DESIGN: host maps of the published study)."""

    def decode(self, bursts: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Burst numbers -> (channel, flat bank, row, column)."""

    def encode(self, channel: Ints, bank: Ints, row: Ints, column: Ints) -> Ints:
        """(channel, flat bank, row, column) -> burst numbers, the inverse of `decode`."""


Times = npt.NDArray[np.int64]
Cuts = tuple[Ints, Ints, Ints, Times, Times]
"""Per cut: operations, tag, worst state or not; times of policy and empty loop, one row per repetition."""


class OpLog(Protocol):
    """What a block manager asked of its policy (Rust only: it is there to time Rust)."""

    @property
    def kind(self) -> str:
        """The policy that was recorded."""

    @property
    def blocks(self) -> int:
        """Blocks of its pool."""

    @property
    def blocks_per_region(self) -> int:
        """Blocks that share one row index."""

    @property
    def block_tokens(self) -> int:
        """Tokens per block."""

    @property
    def best_fit(self) -> bool:
        """Whether the policy planned by best fit."""

    @property
    def warm_up(self) -> int:
        """Records that only make the state that is measured."""

    def __len__(self) -> int:
        """Number of records."""

    def to_bytes(self) -> bytes:
        """The log as a file holds it."""

    def replay(
        self,
        kind: str,
        *,
        blocks: int | None = None,
        strict: bool = False,
        repeats: int = 15,
        region_impl: str = "indexed",
    ) -> tuple[int, int, int, int, Cuts, Cuts]:
        """(calls, takes, takes with the recorded id, bookkeeping bytes, mixed batches, cuts by kind)."""


class BlockManager(Protocol):
    """Block tables, reference counts and one allocation policy."""

    @property
    def free_blocks(self) -> int:
        """Blocks that can still be handed out."""

    @property
    def live_blocks(self) -> int:
        """Blocks in use, a shared one once."""

    @property
    def blocks_allocated(self) -> int:
        """Blocks handed out since the start."""

    @property
    def cow_copies(self) -> int:
        """Blocks copied on write so far."""

    def record(self) -> None:
        """Records from here on what the policy is asked (Rust only)."""

    def oplog(self) -> OpLog | None:
        """What has been recorded so far."""

    def admit(
        self,
        seq: int,
        tokens: int,
        *,
        prefix: int | None = None,
        reserve_tokens: int = 0,
        scratch_blocks: int = 0,
        shared: Ints | None = None,
    ) -> bool:
        """Gives a new sequence blocks for `tokens` tokens; False, nothing changed, if too few are free.

        Its first blocks are those `shared`, full ones that are in use, or those of a pinned `prefix`.
        """

    def hold(self, seq: int, places: Ints) -> None:
        """Takes a reference more on the blocks at these places of a table, for a prefix cache."""

    def let_go(self, blocks: Ints) -> None:
        """Drops that reference on blocks that are held, in this order."""

    def pin_prefix(self, key: int, blocks: int) -> bool:
        """Takes blocks under a prefix's key, held until the end; False, nothing changed, if too few are free."""

    def prefix_blocks(self, key: int) -> int:
        """Number of blocks pinned under a key."""

    def grow(self, seqs: Ints, tokens: Ints, start: int = 0) -> int:
        """Appends tokens in order from `start`; returns where no block was found, or len(seqs)."""

    def speculate(
        self,
        seqs: Ints,
        advances: Ints,
        picks: Ints,
        *,
        width: int,
        depth: int,
        adopt: str,
        separate: bool,
        start: int = 0,
    ) -> tuple[int, Ints, int, int]:
        """One speculation round per sequence: (done, advanced, stalls, copied tokens)."""

    def trim(self, seqs: Ints, window: int) -> int:
        """Lets blocks go at the front that hold none of the last `window` tokens; their number."""

    def compact(self, most_used: int) -> int:
        """Empties regions of at most `most_used` blocks, block by block; the number of moves."""

    @property
    def relocations(self) -> tuple[int, int, int, int]:
        """(moves of growth, moves of repair, splits, pairs that repair removed) so far (`pim-gather` only)."""

    def repair(self, budget: int) -> int:
        """Moves at most `budget` blocks so that sequences lie in fewer regions; the number of moves."""

    def pending_copies(self) -> int:
        """Number of block copies recorded since the last call of `copies`."""

    def copies(self) -> Ints:
        """(n, 2): the block copies (src, dst) recorded since the last call; those of `pim-gather` in parallel."""

    def feed(self, indices: Ints) -> None:
        """Appends drawn indices, one per coming take (`random` only)."""

    def release(self, seqs: Ints, order: Ints | None = None) -> None:
        """Lets go of each sequence's blocks in table order, or in that of its permutation."""

    def length(self, seq: int) -> int:
        """Tokens of a sequence."""

    def table(self, seq: int) -> Ints:
        """Block ids of a sequence, in logical order."""

    def placement(self, seqs: Ints) -> Ints:
        """(n, 4): blocks, adjacent pairs, pairs in one region, distinct regions."""

    def check(self) -> None:
        """Verifies conservation; raises `BrokenInvariant`."""


class Scorer(Protocol):
    """All-bank commands, row hits and bursts of block tables."""

    def observe(self, manager: BlockManager, seqs: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """(commands, hits, bursts, cycles, visits) of each sequence as its table stands, all channels."""

    def totals(self) -> tuple[int, int, int]:
        """(commands, hits, bursts) over everything observed."""

    def settle(self, manager: BlockManager, seqs: Ints) -> None:
        """Counts what sequences have written that leave without being observed again."""

    def write_totals(self) -> tuple[int, int, int]:
        """(tokens, bursts, row activations) written so far, if writes are counted."""

    def pass_totals(self) -> list[tuple[int, int, int, int, int]]:
        """Per pass: (commands, hits, bursts, cycles, visits) over everything observed."""

    def timed_totals(self) -> tuple[int, int, int]:
        """(cycles without refresh, cycles of refresh, row visits) over everything observed."""

    def limit_totals(self) -> tuple[int, int, int]:
        """(commands, hits, cycles) if every sequence lay contiguously."""

    def forget(self, seqs: Ints) -> None:
        """Drops cached state of sequences that left."""


class RowGroupScorer(Scorer, Protocol):
    """The same for requests confined to a channel each: a step's time is that of its busiest channel."""

    @property
    def formula_ps(self) -> int:
        """The published formula's time of each step's busiest channel, summed, ps."""


@dataclass(frozen=True)
class Backend:
    """The classes of one backend; their signatures are the protocols above."""

    name: str
    address_map: Callable[..., AddressMap]
    block_manager: Callable[..., BlockManager]
    scorer: Callable[..., Scorer]
    row_group_scorer: Callable[..., RowGroupScorer]
    controller: Callable[..., object]


def core() -> ModuleType:
    """The Rust core, for its public classes."""
    return import_module("pimkv._pimkv")


def choose(name: str) -> Backend:
    """The backend called `name`, "rust" or "reference"; `ConfigError` for any other."""
    if name not in NAMES:
        raise config_error([Problem("backend", name, choose_from(NAMES), flag="--backend")])
    module = core() if name == "rust" else import_module("pimkv.reference")
    return Backend(
        name,
        module.AddressMap,
        module.BlockManager,
        module.Scorer,
        module.RowGroupScorer,
        module.Controller,
    )


def twin_policy(kind: str, blocks: int, blocks_per_region: int) -> Any:
    """The Python twin of a policy by itself: take(owner), give(block), forget(owner), reserve, plan, feed."""
    return import_module("pimkv.reference.policies").make_policy(kind, blocks, blocks_per_region)
