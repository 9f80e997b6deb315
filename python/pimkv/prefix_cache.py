"""A prefix cache: blocks whose tokens are known stay after their sequence, and later requests start with them.

`PrefixCache` decides which blocks are there to share and which go first; it knows keys, sequences and block
numbers, no pool. `CachingManager` carries that out on a block manager for the scheduler. Modelled on vLLM:
full blocks of prompts, least recently used first, of equal age the deepest of a chain first. Deliberately
different: generated tokens are not found again, because a trace does not name their contents.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pimkv.backend import BlockManager, Ints
from pimkv.errors import BrokenInvariant


@dataclass
class CacheCounters:
    """What a cache has done, blocks; definitions in docs/model.md."""

    looked_up_blocks: int = 0
    hit_blocks: int = 0
    recovered_blocks: int = 0
    evicted_blocks: int = 0
    peak_blocks: int = 0

    @property
    def hit_share(self) -> float | None:
        """Hits per block looked up; None if none was."""
        return self.hit_blocks / self.looked_up_blocks if self.looked_up_blocks else None


@dataclass(frozen=True)
class Found:
    """Leading blocks of a request that are there, and how many of them no running sequence holds."""

    blocks: int = 0
    idle: int = 0


class PrefixCache:
    """Which blocks hold which beginnings, under keys as `Requests.block_keys` gives them.

    A block is *idle* while the cache alone holds it; at most `limit` are (0: any number). A sequence holds all
    beginnings of what it holds, and what leaves together becomes idle from its end on, so the least recently
    used idle block is never one that another idle block continues: every beginning that is there is complete.
    """

    def __init__(self, limit: int = 0) -> None:
        self.counters = CacheCounters()
        self._limit = limit
        # Key -> block, the least recently used first.
        self._idle: OrderedDict[int, int] = OrderedDict()
        # Key -> the running sequences whose tables have its block.
        self._holders: dict[int, list[int]] = {}
        # Keys of each running sequence's first blocks.
        self._keys: dict[int, Sequence[int]] = {}

    def __len__(self) -> int:
        """Number of idle blocks."""
        return len(self._idle)

    def find(self, keys: Sequence[int], most: int) -> Found:
        """How many leading blocks are there, of `most` at most."""
        blocks = idle = 0
        for key in keys[:most]:
            if key in self._idle:
                idle += 1
            elif key not in self._holders:
                break
            blocks += 1
        return Found(blocks, idle)

    def enter(
        self, seq: int, keys: Sequence[int], hits: int, tables: Callable[[int], Ints]
    ) -> tuple[list[int], list[int]]:
        """A sequence starts with the blocks of its first `hits` keys, as `find` counted them.

        Returns those blocks, and those of them that were idle: from here on they are the sequence's. `tables`
        gives the table of a running sequence. The sequence's further blocks will have its further keys.
        """
        shared, passed = [], []
        known: dict[int, Ints] = {}
        for place, key in enumerate(keys[:hits]):
            block = self._idle.pop(key, None)
            if block is None:
                holder = self._holders[key][0]
                if holder not in known:
                    known[holder] = tables(holder)
                block = int(known[holder][place])
            else:
                passed.append(block)
            self._holders.setdefault(key, []).append(seq)
            shared.append(block)
        for key in keys[hits:]:
            # A block that is there but must be computed once more stays what others find.
            if key not in self._idle and key not in self._holders:
                self._holders[key] = [seq]
        self._keys[seq] = keys
        return shared, passed

    def count(self, hits: int, looked_up: int, *, again: bool) -> None:
        """Notes what a request found; `again`: it had been running before, and found what it had left."""
        if again:
            self.counters.recovered_blocks += hits
        else:
            self.counters.hit_blocks += hits
            self.counters.looked_up_blocks += looked_up

    def leave(self, seq: int, table: Sequence[int]) -> list[int]:
        """A sequence leaves: the places of its table whose blocks become idle, the deepest first."""
        keys = self._keys.pop(seq)
        places = []
        for place in range(len(keys) - 1, -1, -1):
            key = keys[place]
            holders = self._holders.get(key)
            if holders is not None:
                if seq not in holders:
                    continue
                holders.remove(seq)
                if holders:
                    continue
                del self._holders[key]
            elif key in self._idle:
                # It has used what the block holds, in a copy of its own.
                self._idle.move_to_end(key)
                continue
            self._idle[key] = table[place]
            places.append(place)
        return places

    def evict(self, blocks: int) -> list[int]:
        """The least recently used idle blocks, so many or all, which are no longer there."""
        evicted = [self._idle.popitem(last=False)[1] for _ in range(min(blocks, len(self._idle)))]
        self.counters.evicted_blocks += len(evicted)
        return evicted

    def trim(self) -> list[int]:
        """Evicts down to the limit."""
        evicted = self.evict(len(self._idle) - self._limit) if self._limit else []
        self.counters.peak_blocks = max(self.counters.peak_blocks, len(self._idle))
        return evicted


class CachingManager:
    """A block manager under a prefix cache: idle blocks count as free and go when somebody needs one.

    Operations that neither take nor give blocks pass through.
    """

    def __init__(self, manager: BlockManager, cache: PrefixCache, *, block_tokens: int) -> None:
        self._manager = manager
        self._cache = cache
        self._block_tokens = block_tokens

    def __getattr__(self, name: str) -> object:
        return getattr(self._manager, name)

    @property
    def free_blocks(self) -> int:
        """Blocks that can still be handed out, idle ones included."""
        return self._manager.free_blocks + len(self._cache)

    @property
    def live_blocks(self) -> int:
        """Blocks that running sequences hold, a shared one once."""
        return self._manager.live_blocks - len(self._cache)

    def find(self, keys: Sequence[int], tokens: int) -> Found:
        """What a request of so many tokens finds; its last token is always computed, as in vLLM."""
        return self._cache.find(keys, (tokens - 1) // self._block_tokens)

    def admit(self, seq: int, tokens: int, *, keys: Sequence[int] = (), again: bool = False) -> bool:
        """As `BlockManager.admit`, after the blocks of the leading keys that are there.

        `again`: the sequence had been running before. False, with nothing changed, if too few blocks are free.
        """
        found = self.find(keys, tokens)
        blocks = -(-tokens // self._block_tokens)
        if self.free_blocks - found.idle < blocks - found.blocks:
            return False
        shared, passed = self._cache.enter(seq, keys, found.blocks, self._manager.table)
        self._make_free(blocks - found.blocks)
        if not self._manager.admit(seq, tokens, shared=np.array(shared, dtype=np.int64)):
            raise BrokenInvariant(f"sequence {seq} was refused blocks that were made free")
        # What was held for nobody is the sequence's now.
        self._let_go(passed)
        self._cache.count(found.blocks, blocks, again=again)
        return True

    def grow(self, seqs: Ints, tokens: Ints, start: int = 0) -> int:
        """As `BlockManager.grow`."""
        done = self._manager.grow(seqs, tokens, start)
        while done < len(seqs) and len(self._cache):
            self._let_go(self._cache.evict(1))
            done = self._manager.grow(seqs, tokens, done)
        return done

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
        """As `BlockManager.speculate`; first all blocks are made free that its turns may need at most."""
        most = -(-(self._block_tokens + depth) // self._block_tokens)
        self._make_free((len(seqs) - start + width) * most)
        return self._manager.speculate(
            seqs, advances, picks, width=width, depth=depth, adopt=adopt, separate=separate, start=start
        )

    def release(self, seqs: Ints, order: Ints | None = None) -> None:
        """As `BlockManager.release`; blocks whose contents are known become idle instead of free."""
        for seq in seqs.tolist():
            places = self._cache.leave(seq, self._manager.table(seq).tolist())
            self._manager.hold(seq, np.array(places, dtype=np.int64))
        self._manager.release(seqs, order)
        self._let_go(self._cache.trim())

    def _make_free(self, blocks: int) -> None:
        """Evicts until so many blocks are free, or none is idle."""
        self._let_go(self._cache.evict(max(0, blocks - self._manager.free_blocks)))

    def _let_go(self, blocks: list[int]) -> None:
        if blocks:
            self._manager.let_go(np.array(blocks, dtype=np.int64))
