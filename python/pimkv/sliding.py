"""Sliding-window layers: a block table of their own that follows the full one, freed from the front.

Such a layer reads only the last `window` tokens. Its pool holds a window for every sequence of the largest
batch, so it never runs out and decides nothing: the full layers' pool does.
"""

from __future__ import annotations

import numpy as np

from pimkv.backend import BlockManager, Ints, Scorer
from pimkv.errors import BrokenInvariant


def pool_blocks(window: int, block_tokens: int, max_batch: int, per_unit: int, *, held_back: int = 0) -> int:
    """Blocks that hold a window, a block that is being left and one that is begun, for each sequence; whole units.

    `window` includes the tokens that one step may append beyond the first; `held_back` blocks are never handed out.
    """
    blocks = max_batch * (-(-window // block_tokens) + 2) + held_back
    return -(-blocks // per_unit) * per_unit


class Sliding:
    """The tables of the sliding-window layers, one layer standing for all."""

    def __init__(self, manager: BlockManager, scorer: Scorer, *, window: int, block_tokens: int) -> None:
        self.manager = manager
        self.scorer = scorer
        self._window = window
        self._block_tokens = block_tokens
        # Tokens of each sequence that its table here has followed.
        self._lengths: dict[int, int] = {}

    def step(self, full: BlockManager, seqs: Ints) -> None:
        """Follows the full tables of the running batch by one step, then reads the windows."""
        grown, tokens = [], []
        for seq in seqs.tolist():
            length = full.length(seq)
            before = self._lengths.get(seq)
            if before is None:
                self._admit(seq, length)
            elif length > before:
                grown.append(seq)
                tokens.append(length - before)
            self._lengths[seq] = length
        if grown:
            done = self.manager.grow(np.array(grown, dtype=np.int64), np.array(tokens, dtype=np.int64))
            if done != len(grown):
                raise BrokenInvariant(f"the window of sequence {grown[done]} found no block it has room for")
        self.manager.trim(seqs, self._window)
        self.scorer.observe(self.manager, seqs)

    def _admit(self, seq: int, length: int) -> None:
        """Only the blocks of the last window are taken of a prompt; block boundaries stay where they are."""
        skipped = max(0, length - self._window) // self._block_tokens * self._block_tokens
        if not self.manager.admit(seq, length - skipped):
            raise BrokenInvariant(f"the window of sequence {seq} found no blocks it has room for")

    def leave(self, seqs: Ints) -> None:
        """Lets go of sequences; unknown ones (preempted before their first step) are none of ours."""
        known = np.array([seq for seq in seqs.tolist() if self._lengths.pop(seq, 0)], dtype=np.int64)
        if len(known):
            self.scorer.forget(known)
            self.manager.release(known)
