"""From block tables to all-bank PIM commands: the command grouper, applied afresh to every sequence observed.

Unlike the fast scorer this one keeps nothing per sequence. It remembers only results of pure functions:
where the bursts of a block lie, and how many commands a given run of bursts makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from pimkv.errors import InvalidArgument
from pimkv.reference.arguments import Ints, integer, vector
from pimkv.reference.dram import AddressMap
from pimkv.reference.manager import BlockManager

# A burst as one channel sees it is the number row * banks + bank; a run of bursts is the bytes of an int64
# array of them, because bytes are quick to join, cut and look up.
BURST = np.dtype(np.int64).itemsize
MEMO_BYTES = 2**27  # the most that each memo below may hold, about
IN_ORDER_RUN = 64  # bursts per remembered run without windows; any number gives the same counts

# The open command of the in-order rule: (its row, its banks, the row of the command before it).
OpenCommand = tuple[int, frozenset[int], int]
NO_ROW = -1


class Scorer:
    """Counts the all-bank commands, row hits and bursts of reading whole sequences.

    `block_bytes` is a multiple of `token_bytes`, itself a multiple of the map's burst size. `window` is the
    number of bursts per channel that are grouped at once; 0 groups in order. Raises InvalidArgument
    otherwise.
    """

    def __init__(self, address_map: AddressMap, *, block_bytes: int, token_bytes: int, window: int) -> None:
        self._map = address_map
        token_bytes = integer("token_bytes", token_bytes, 1)
        if token_bytes % address_map.burst_bytes:
            raise InvalidArgument(
                f"token_bytes = {token_bytes}: must be a multiple of burst_bytes ({address_map.burst_bytes})"
            )
        block_bytes = integer("block_bytes", block_bytes, 1)
        if block_bytes % token_bytes:
            raise InvalidArgument(
                f"block_bytes = {block_bytes}: must be a multiple of token_bytes ({token_bytes})"
            )
        self._token_bursts = token_bytes // address_map.burst_bytes
        self._block_tokens = block_bytes // token_bytes
        self._window = integer("window", window, 0)
        # The channels to score; each stands for `self._alike` channels that see the same bursts.
        self._channels, self._alike = channel_classes(address_map, self._token_bursts)
        self._totals = (0, 0, 0)

        held_per_block = BURST * self._block_tokens * self._token_bursts // self._alike
        held_per_run = BURST * (self._window or IN_ORDER_RUN)
        self._block_runs: Callable[[int, int], list[bytes]] = lru_cache(1 + MEMO_BYTES // held_per_block)(
            self._decode_block
        )
        self._group_window = lru_cache(1 + MEMO_BYTES // held_per_run)(group_window)
        self._group_in_order = lru_cache(1 + MEMO_BYTES // held_per_run)(group_in_order)

    def observe(self, manager: BlockManager, seqs: Ints) -> tuple[Ints, Ints, Ints]:
        """(commands, hits, bursts) of reading tokens 0..length - 1 of each sequence, over all channels.

        Three int64 arrays, one element per sequence; the sums are added to the totals. Every sequence starts
        with all channels cold. Raises UnknownSequence, and InvalidArgument when a block lies outside the
        address map.
        """
        seqs_list = vector("seqs", seqs, -(2**63))
        counts = [self._score(manager.length(seq), manager.table(seq).tolist()) for seq in seqs_list]
        commands, hits, bursts = np.array(counts, dtype=np.int64).reshape(-1, 3).T.copy()
        self._totals = (
            self._totals[0] + int(commands.sum()),
            self._totals[1] + int(hits.sum()),
            self._totals[2] + int(bursts.sum()),
        )
        return commands, hits, bursts

    def totals(self) -> tuple[int, int, int]:
        """(commands, hits, bursts) summed over everything observed so far."""
        return self._totals

    def forget(self, seqs: Ints) -> None:
        """Drop what is kept about these sequences: nothing, here. Unknown ones are ignored."""
        vector("seqs", seqs, -(2**63))

    def _score(self, length: int, table: list[int]) -> tuple[int, int, int]:
        runs_by_block = []
        for place in range(-(-length // self._block_tokens)):
            tokens = min(self._block_tokens, length - place * self._block_tokens)
            runs_by_block.append(self._block_runs(table[place], tokens))
        commands = hits = 0
        for channel in range(len(self._channels)):
            stream = b"".join([runs[channel] for runs in runs_by_block])
            more_commands, more_hits = self._score_channel(stream)
            commands += more_commands
            hits += more_hits
        return commands * self._alike, hits * self._alike, length * self._token_bursts

    def _score_channel(self, stream: bytes) -> tuple[int, int]:
        """(commands, hits) of one cold channel that sees these bursts."""
        return self._score_windows(stream) if self._window else self._score_in_order(stream)

    def _score_windows(self, stream: bytes) -> tuple[int, int]:
        commands = hits = 0
        carried_row = NO_ROW
        size = self._window * BURST
        for start in range(0, len(stream), size):
            in_window, rows, last_row = self._group_window(stream[start : start + size], self._map.banks)
            # one miss per distinct row, none for the row carried in
            misses = len(rows) - (carried_row in rows)
            commands += in_window
            hits += in_window - misses
            carried_row = last_row
        return commands, hits

    def _score_in_order(self, stream: bytes) -> tuple[int, int]:
        commands = hits = 0
        command: OpenCommand = (NO_ROW, frozenset(), NO_ROW)
        size = IN_ORDER_RUN * BURST
        for start in range(0, len(stream), size):
            closed, closed_hits, command = self._group_in_order(
                stream[start : start + size], self._map.banks, command
            )
            commands += closed
            hits += closed_hits
        row, banks, row_before = command
        if banks:  # the last open command counts
            commands += 1
            hits += row == row_before
        return commands, hits

    def _decode_block(self, block: int, tokens: int) -> list[bytes]:
        """The bursts of a block's first `tokens` tokens in order, as each of `self._channels` sees them."""
        first = block * self._block_tokens * self._token_bursts
        channel, bank, row, _ = self._map.decode(
            first + np.arange(tokens * self._token_bursts, dtype=np.int64)
        )
        burst = row * self._map.banks + bank
        return [burst[channel == c].tobytes() for c in self._channels]


def channel_classes(address_map: AddressMap, token_bursts: int) -> tuple[list[int], int]:
    """(channels, alike): channels to score, each for `alike` channels that see the same (bank, row) stream.

    Let 2**k be the largest power of two that divides `token_bursts`. Tokens, and so whole sequences, are
    made of aligned chunks of 2**k bursts: in a chunk the low k address bits count up and the others stand
    still. A channel bit among those k splits a chunk into halves that run through the remaining bits alike,
    so channels that differ only in such bits see the same banks and rows in the same order. A channel hash
    does not change this while the row stands still in a chunk: it XORs both channels with one value, and
    they still differ only in those bits. If a hashed channel has row bits among the k, the halves may come
    in another order; then every channel is scored.
    """
    k = (token_bursts & -token_bursts).bit_length() - 1
    inside = [bit for bit, place in enumerate(address_map.positions["ch"]) if place < k]
    row_moves = any(place < k for place in address_map.positions["row"])
    if row_moves and any(field == "ch" for field, _ in address_map.hashes):
        inside = []
    mask = sum(1 << bit for bit in inside)
    return [channel for channel in range(address_map.channels) if not channel & mask], 2 ** len(inside)


def group_window(window: bytes, banks: int) -> tuple[int, frozenset[int], int]:
    """(commands, distinct rows, row of the last burst) of one window.

    The bursts of a row form a group that needs as many commands as its fullest bank has bursts.
    """
    per_row: dict[int, Counter[int]] = {}
    row = NO_ROW
    for burst in np.frombuffer(window, dtype=np.int64).tolist():
        row, bank = divmod(burst, banks)
        per_row.setdefault(row, Counter())[bank] += 1
    commands = sum(max(group.values()) for group in per_row.values())
    return commands, frozenset(per_row), row


def group_in_order(run: bytes, banks: int, command: OpenCommand) -> tuple[int, int, OpenCommand]:
    """(commands closed, hits among them, open command) after these bursts.

    A command closes when the row changes, a bank repeats or it is full; it is a hit if its row is that of
    the command before it.
    """
    row, in_command, row_before = command
    commands = hits = 0
    for burst in np.frombuffer(run, dtype=np.int64).tolist():
        next_row, bank = divmod(burst, banks)
        if in_command and (next_row != row or bank in in_command or len(in_command) == banks):
            commands += 1
            hits += row == row_before
            row_before = row
            in_command = frozenset()
        row = next_row
        in_command |= {bank}
    return commands, hits, (row, in_command, row_before)
