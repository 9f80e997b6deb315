"""Speculative decoding as published: the draws of a round, and how many rounds one call may play."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pimkv.backend import BlockManager, Ints


@dataclass(frozen=True)
class Shape:
    """A round: `width` branches of `depth` drafted tokens, each draft accepted with chance accept**i.

    `adopt` is "splice" or "copyback"; `separate` takes branches under a key of their own.
    """

    width: int
    depth: int
    accept: float
    adopt: str
    separate: bool

    def blocks_per_branch(self, block_tokens: int) -> int:
        """Most blocks of one branch: a partial tail block, the drafts and the token always accepted."""
        return -(-(block_tokens - 1 + self.depth + 1) // block_tokens)


class Rounds:
    """Draws rounds from one generator of its own, seeded with seed + 2, and plays them.

    Per sequence: draft i (from 1) is accepted while random() < accept**i, at most `depth`; the sequence
    advances by the accepted drafts and one, capped by what it still has to generate; then integers(width)
    picks the branch. A turn that stalls has drawn all the same.
    """

    def __init__(
        self, shape: Shape, manager: BlockManager, *, block_tokens: int, seed: int, branches: bool
    ) -> None:
        self.shape = shape
        self.stalls = 0
        self.copied_tokens = 0
        self._manager = manager
        self._rng = np.random.default_rng(seed + 2)
        self._chances = [shape.accept**i for i in range(1, shape.depth + 1)]
        self._most = shape.blocks_per_branch(block_tokens)
        self._branches = branches
        self._waiting: tuple[int, int] | None = None

    def batch(self, left: int) -> int:
        """How many of `left` sequences may draw before any of them plays.

        A sequence that another one preempts before its turn must not have drawn; where the pool cannot run
        out, none is preempted, and all may play in one call.
        """
        if self._waiting is not None:
            return 1
        if not self._branches:
            return left
        enough = (left + self.shape.width) * self._most
        return left if self._manager.free_blocks >= enough else 1

    def play(self, seqs: Ints, remaining: Sequence[int]) -> tuple[int, Ints]:
        """Plays a round for each sequence: (where no block was found or len(seqs), tokens appended to each)."""
        if self._waiting is None:
            drawn = [self._draw(left) for left in remaining]
        else:
            # Only a batch of one can have been stopped: it resumes with what it has drawn.
            drawn, self._waiting = [self._waiting], None
        advances = np.array([advance for advance, _ in drawn], dtype=np.int64)
        if not self._branches:
            done = self._manager.grow(seqs, advances)
            self.copied_tokens += int(advances[:done].sum())
            return done, advances
        shape = self.shape
        done, advanced, stalls, copied = self._manager.speculate(
            seqs,
            advances,
            np.array([pick for _, pick in drawn], dtype=np.int64),
            width=shape.width,
            depth=shape.depth,
            adopt=shape.adopt,
            separate=shape.separate,
        )
        self.stalls += stalls
        self.copied_tokens += copied
        if done < len(seqs):
            self._waiting = drawn[done]
        return done, advanced

    def forget_waiting(self) -> None:
        """The stopped sequence was preempted itself: its draws are spent."""
        self._waiting = None

    def _draw(self, remaining: int) -> tuple[int, int]:
        accepted = 0
        for chance in self._chances:
            if not self._rng.random() < chance:
                break
            accepted += 1
        return min(accepted + 1, remaining), int(self._rng.integers(self.shape.width))
