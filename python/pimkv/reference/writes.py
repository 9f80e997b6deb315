"""What sequences have written: new tokens to bursts and to the rows they open, block by block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pimkv.reference.arguments import Ints
from pimkv.reference.dram import AddressMap
from pimkv.reference.manager import BlockManager
from pimkv.reference.parts import Part, part_bursts

PIECES_TOGETHER = 64  # blocks decoded at once; any number gives the same counts


class Piece(NamedTuple):
    """Tokens first..stop - 1 of a block, written in one go by one sequence."""

    block: int
    first: int
    stop: int


class Written(NamedTuple):
    """What was found new in one call, not yet counted: by `WriteCounter.count`."""

    ends: dict[int, int]  # of each sequence the tokens ever written, in front dropped ones included
    tokens: int
    bursts: int
    activations: int


class WriteCounter:
    """Counts the tokens that sequences have written since they were last seen.

    A token's place in its sequence never changes: tokens are numbered from the sequence's first, those that
    were trimmed since included. What was trimmed before it was ever seen is not counted, for nothing says
    where it lay. A write opens each (channel, bank, row) of a part of a block once per call.
    """

    def __init__(
        self,
        address_map: AddressMap,
        passes: Iterable[Sequence[Part]],
        blocks_per_unit: int,
        block_tokens: int,
    ) -> None:
        self._map = address_map
        self._parts = stored_parts(passes)
        self._blocks_per_unit = blocks_per_unit
        self._block_tokens = block_tokens
        self._ends: dict[int, int] = {}
        self.totals = (0, 0, 0)

    def find(self, manager: BlockManager, seqs: Iterable[int]) -> Written:
        """What these sequences have written since they were last counted; changes nothing."""
        ends: dict[int, int] = {}
        pieces: list[Piece] = []
        for seq in dict.fromkeys(seqs):  # the second time there is nothing new
            dropped = manager.trimmed(seq)
            end = dropped + manager.length(seq)
            seen = self._ends[seq] if seq in self._ends else manager.inherited(seq)
            ends[seq] = max(seen, end)
            table = manager.table(seq).tolist()
            token, stop = max(seen, dropped) - dropped, end - dropped
            while token < stop:
                place, first = divmod(token, self._block_tokens)
                last = min(self._block_tokens, first + stop - token)
                pieces.append(Piece(table[place], first, last))
                token += last - first
        tokens = sum(piece.stop - piece.first for piece in pieces)
        bursts = tokens * sum(part.size for part in self._parts)
        activations = sum(
            self._rows_opened(part, pieces[start : start + PIECES_TOGETHER])
            for part in self._parts
            for start in range(0, len(pieces), PIECES_TOGETHER)
        )
        return Written(ends, tokens, bursts, activations)

    def count(self, written: Written) -> None:
        """Add what `find` found to the totals, and remember how far each sequence has been seen."""
        self._ends.update(written.ends)
        tokens, bursts, activations = self.totals
        self.totals = (tokens + written.tokens, bursts + written.bursts, activations + written.activations)

    def forget(self, seqs: Iterable[int]) -> None:
        """These sequences have not been seen; unknown ones are ignored."""
        for seq in seqs:
            self._ends.pop(seq, None)

    def _rows_opened(self, part: Part, pieces: list[Piece]) -> int:
        """The distinct (channel, bank, row) of one part of each piece, added up."""
        bursts: list[Ints] = [
            part_bursts(self._map, part, self._blocks_per_unit, *piece).ravel() for piece in pieces
        ]
        channel, bank, row, _ = self._map.decode(np.concatenate(bursts))
        places = ((row * self._map.banks + bank) * self._map.channels + channel).tolist()
        ends = np.cumsum([0, *map(len, bursts)]).tolist()
        return sum(len(set(places[start:end])) for start, end in pairwise(ends))


def stored_parts(passes: Iterable[Sequence[Part]]) -> list[Part]:
    """The parts that are stored, each once: those with one base and one stride are the same bytes.

    Where one pass reads less of a part than another, as of a latent stream, the longer one is stored.
    """
    stored: dict[tuple[int, int], Part] = {}
    for parts in passes:
        for part in parts:
            place = (part.base, part.stride)
            if place not in stored or part.size > stored[place].size:
                stored[place] = part
    return list(stored.values())
