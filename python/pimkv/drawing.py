"""The `random` policy's draws: feeds a block manager the indices that numpy draws, one per block taken.

One generator, seeded with the run's seed; the index of each take is integers(number of free blocks). An
array of bounds gives the same stream as one call per bound, so each operation draws in one batch.
"""

from __future__ import annotations

import numpy as np

from pimkv.backend import BlockManager, Ints


class DrawingManager:
    """A block manager whose takes are drawn; the operations that take no block pass through."""

    def __init__(self, manager: BlockManager, *, block_tokens: int, seed: int) -> None:
        self._manager = manager
        self._block_tokens = block_tokens
        self._rng = np.random.default_rng(seed)
        # Tokens that the turn of a sequence waiting for a block will append.
        self._waiting: dict[int, int] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self._manager, name)

    def _draw(self, takes: int) -> None:
        free = self._manager.free_blocks
        takes = min(takes, free)
        if takes > 0:
            self._manager.feed(self._rng.integers(np.arange(free, free - takes, -1)))

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)

    def _growth(self, seq: int, tokens: int) -> int:
        """Blocks that a sequence lacks to append so many tokens."""
        return max(0, self._blocks(self._manager.length(seq) + tokens) - len(self._manager.table(seq)))

    def admit(self, seq: int, tokens: int, *, prefix: int | None = None, shared: Ints | None = None) -> bool:
        """As `BlockManager.admit`."""
        others = self._manager.prefix_blocks(prefix) if prefix is not None else 0
        own = self._blocks(tokens) - others - (0 if shared is None else len(shared))
        if own <= self._manager.free_blocks:
            self._draw(own)
        return self._manager.admit(seq, tokens, prefix=prefix, shared=shared)

    def pin_prefix(self, key: int, blocks: int) -> bool:
        """As `BlockManager.pin_prefix`."""
        if blocks <= self._manager.free_blocks:
            self._draw(blocks)
        return self._manager.pin_prefix(key, blocks)

    def grow(self, seqs: Ints, tokens: Ints, start: int = 0) -> int:
        """As `BlockManager.grow`."""
        pairs = zip(seqs[start:].tolist(), tokens[start:].tolist(), strict=True)
        self._draw(sum(self._growth(seq, n) for seq, n in pairs))
        return self._manager.grow(seqs, tokens, start)

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
        """As `BlockManager.speculate`, one sequence a call: how many blocks are free depends on the one before."""
        advanced = np.zeros(len(seqs), dtype=np.int64)
        stalls = copied_tokens = 0
        for i in range(start, len(seqs)):
            seq, advance = int(seqs[i]), int(advances[i])
            if seq in self._waiting:
                takes = self._growth(seq, self._waiting[seq])
            else:
                tail = self._manager.length(seq) % self._block_tokens
                branches = width * self._blocks(tail + depth + 1)
                stalled = self._manager.free_blocks < branches
                self._waiting[seq] = 1 if stalled else advance
                grows = stalled or adopt == "copyback"
                takes = (0 if stalled else branches) + grows * self._growth(seq, self._waiting[seq])
            self._draw(takes)
            done, appended, stall, copied = self._manager.speculate(
                seqs[i : i + 1],
                advances[i : i + 1],
                picks[i : i + 1],
                width=width,
                depth=depth,
                adopt=adopt,
                separate=separate,
            )
            stalls += stall
            copied_tokens += copied
            if not done:
                return i, advanced, stalls, copied_tokens
            advanced[i] = appended[0]
            del self._waiting[seq]
        return len(seqs), advanced, stalls, copied_tokens

    def release(self, seqs: Ints, order: Ints | None = None) -> None:
        """As `BlockManager.release`; a turn that waits ends with its sequence."""
        self._manager.release(seqs, order)
        for seq in seqs.tolist():
            self._waiting.pop(seq, None)
