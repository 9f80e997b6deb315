"""Hash chains: which prompts of a trace begin with the same tokens.

A trace that has them cuts every prompt into stretches of so many tokens and names each stretch, the last one of a
prompt perhaps a short one, by a number. Two prompts begin alike as far as their numbers are the same from the
start: what counts is the leading run, whether the trace numbers stretches by their own tokens or by all up to their end.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pimkv.derived import MOST_HASH_TOKENS
from pimkv.errors import InvalidArgument

_Ints = npt.NDArray[np.int64]

_PLACE_BITS = 32  # of a block key: the block's place in its sequence; the rest is the node


@dataclass(frozen=True, eq=False)
class Chains:
    """The chains of n requests, one after the other, each a run of nodes of one tree of prefixes.

    Attributes:
        tokens: tokens that a node stands for, 1 to `MOST_HASH_TOKENS`; the last one of a chain for 1 to `tokens`.
        offsets: where each request's nodes begin in `nodes`, and the end: int64, shape (n + 1,).
        nodes: int64, each 0 to 2**31 - 1; equal nodes mean that all tokens up to their end are equal.

    Raises:
        InvalidArgument: `tokens` or a node out of range, offsets that do not start at 0, fall, or end elsewhere
            than the nodes.
    """

    tokens: int
    offsets: _Ints
    nodes: _Ints

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= MOST_HASH_TOKENS:
            raise InvalidArgument(f"tokens = {self.tokens}: allowed 1 to {MOST_HASH_TOKENS}")
        ends = self.offsets[[0, -1]].tolist() if self.offsets.size else []
        if ends != [0, self.nodes.size] or (np.diff(self.offsets) < 0).any():
            raise InvalidArgument(f"offsets: must rise from 0 to the number of nodes, {self.nodes.size}")
        if self.nodes.size and not 0 <= self.nodes.min() <= self.nodes.max() < 2**31:
            raise InvalidArgument(
                f"nodes from {self.nodes.min()} to {self.nodes.max()}: allowed 0 to 2**31 - 1"
            )

    def __len__(self) -> int:
        """Number of requests."""
        return int(self.offsets.size) - 1

    def take(self, requests: Sequence[int]) -> Chains:
        """The chains of these requests, in this order."""
        parts = [self.nodes[self.offsets[i] : self.offsets[i + 1]] for i in requests]
        offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        return Chains(self.tokens, offsets, np.concatenate([*parts, np.empty(0, dtype=np.int64)]))

    def block_keys(self, request: int, prompt: int, block_tokens: int) -> list[int]:
        """A key for each block of the request that its prompt of so many tokens fills, in order.

        Equal keys mean equal tokens from the start of the sequence to the end of the block: a key is the node that
        the block's last token lies in, and the block's place.
        """
        nodes = self.nodes[self.offsets[request] : self.offsets[request + 1]]
        places = np.arange(prompt // block_tokens, dtype=np.int64)
        ends = ((places + 1) * block_tokens - 1) // self.tokens
        keys: list[int] = (nodes[ends] << _PLACE_BITS | places).tolist()
        return keys


class ChainReader:
    """Gathers the chains of a trace line by line, and finds out how many tokens a hash stands for.

    Every prompt of t tokens has ceil(t / tokens) hashes. `tokens` is as given, or else the one number that fits
    every line; where several do, the one power of two among them. `optional`: a trace may have no chains at all.
    """

    def __init__(self, tokens: int | None, *, optional: bool = False) -> None:
        self.optional = optional
        self._given = tokens
        self._low, self._high = (1, MOST_HASH_TOKENS) if tokens is None else (tokens, tokens)
        self._offsets = array("q", [0])
        self._nodes = array("q")
        # (node before, hash) -> node, numbered as they come.
        self._tree: dict[tuple[int, int], int] = {}

    def check(self, prompt: int, hashes: int) -> str | None:
        """What is wrong with so many hashes of a prompt of 1 token or more, None for nothing."""
        low = -(-prompt // hashes) if hashes else MOST_HASH_TOKENS + 1
        high = -(-prompt // (hashes - 1)) - 1 if hashes > 1 else MOST_HASH_TOKENS
        if max(low, self._low) > min(high, self._high):
            before = f"{self._low}" if self._low == self._high else f"{self._low} to {self._high}"
            source = "workload.hash_tokens" if self._given else "the lines before"
            return (
                f"{hashes} hashes of a prompt of {prompt} tokens: must be ceil(prompt / tokens per hash), with "
                f"{before} tokens per hash by {source}"
            )
        self._low, self._high = max(low, self._low), min(high, self._high)
        return None

    def add(self, hashes: Sequence[int]) -> None:
        """The chain of the next request."""
        node = -1
        for number in hashes:
            node = self._tree.setdefault((node, number), len(self._tree))
            self._nodes.append(node)
        self._offsets.append(len(self._nodes))

    def tokens(self) -> int:
        """Tokens per hash; `InvalidArgument` where the lines leave it open."""
        powers = [1 << e for e in range(MOST_HASH_TOKENS.bit_length()) if self._low <= 1 << e <= self._high]
        if self._low == self._high:
            return self._low
        if len(powers) == 1:
            return powers[0]
        raise InvalidArgument(
            f"tokens per hash: any number from {self._low} to {self._high} fits every line; say which with "
            "workload.hash_tokens (--set workload.hash_tokens=N)"
        )

    def chains(self) -> Chains:
        """All chains; `InvalidArgument` where it is left open how many tokens a hash stands for."""
        offsets, nodes = (np.array(column, dtype=np.int64) for column in (self._offsets, self._nodes))
        return Chains(self.tokens(), offsets, nodes)
