"""From block tables to all-bank PIM commands and cycles, worked out afresh for every sequence observed.

Unlike the fast scorer this one keeps nothing per sequence, but how far its writes have been counted. It
remembers only results of pure functions: where the bursts of a block lie (here), which commands a given run
of bursts makes (`grouper.py`), and how long they take (`lanes.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pimkv.errors import InvalidArgument
from pimkv.reference.arguments import Ints, integer, vector
from pimkv.reference.controller import Controller, RefreshClock
from pimkv.reference.dram import AddressMap
from pimkv.reference.grouper import BURST, MEMO_BYTES, Grouper, activations
from pimkv.reference.lanes import LaneTimer, Window
from pimkv.reference.manager import BlockManager
from pimkv.reference.parts import Part, PartBytes, alignment, parse_passes, part_bursts
from pimkv.reference.writes import WriteCounter

MOST_STRIDE = 2**12
LIMITS = 2**16  # lengths whose best score is remembered

# What is read of one block: (its id, the first token read, the token after the last one read).
Read = tuple[int, int, int]


class Score(NamedTuple):
    """What one pass over one sequence came to, over all channels."""

    commands: int
    hits: int
    bursts: int
    cycles: int
    visits: int


class Scorer:
    """Counts the all-bank commands, row hits and bursts of reading whole sequences, and times them.

    `block_bytes` is a multiple of `token_bytes`, itself a multiple of the map's burst size. `window` is the
    number of bursts per channel that are grouped at once; 0 groups in order. Every command is issued
    `repeat` times. A row visit of c commands is cut into chunks of ceil(c / `mac_stride`), before they are
    repeated, and each chunk takes an activation of its own. With a `controller` sequences are timed too: a
    lane, the queue of one channel, or of a pair 2i and 2i + 1 if a command acts on two (`per_command` = 2),
    takes its commands in the order in which the windows release them.

    `passes` says what is read: of each pass its parts as (base, stride, bytes, block, unit), all bytes and
    whole bursts. The part of token i of block b lies at base + (b // n) * unit + (b % n) * block + i *
    stride, with n = `blocks_per_unit`. A pass reads the parts of each token in turn, token after token, and
    starts from cold channels; what a sequence comes to is the sum over its passes. Without `passes` there is
    one, which reads whole tokens of blocks that lie one behind the other, whatever `blocks_per_unit` is.

    `window_tokens` W > 0 reads the last W tokens of each table only. `traversal` "token" reads blocks in the
    order of the table; "row" reads them by ascending id, but those of the unit (of `blocks_per_unit` ids)
    that holds the last token after the others, and the block that holds it last of all.

    With `count_writes` what sequences have written is counted too, when they are observed or settled.
    Raises InvalidArgument for other values.
    """

    def __init__(
        self,
        address_map: AddressMap,
        *,
        block_bytes: int,
        token_bytes: int,
        window: int,
        controller: Controller | None = None,
        per_command: int = 1,
        repeat: int = 1,
        mac_stride: int = 1,
        passes: Sequence[Sequence[PartBytes]] | None = None,
        blocks_per_unit: int = 1,
        window_tokens: int = 0,
        traversal: str = "token",
        count_writes: bool = False,
    ) -> None:
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
        if controller is not None and not isinstance(controller, Controller):
            raise InvalidArgument(
                f"controller = {controller!r}: must be a Controller of this package or None"
            )
        if traversal not in ("token", "row"):
            raise InvalidArgument(f"traversal = {traversal!r}: must be 'token' or 'row'")
        blocks_per_unit = integer("blocks_per_unit", blocks_per_unit, 1)
        if passes is None:
            passes = [[(0, token_bytes, token_bytes, block_bytes, block_bytes)]]
            blocks_per_unit = 1
        parts_of = parse_passes(passes, address_map.burst_bytes)
        window = integer("window", window, 0)
        per_command = integer("per_command", per_command, 1, 2)
        repeat = integer("repeat", repeat, 1)
        stride = integer("mac_stride", mac_stride, 1, MOST_STRIDE)
        self._block_tokens = block_bytes // token_bytes
        self._window_tokens = integer("window_tokens", window_tokens, 0)
        self._by_row = traversal == "row"
        self._blocks_per_unit = blocks_per_unit
        self._clock = (
            RefreshClock(controller.timing) if controller is not None and controller.refresh else None
        )
        grouper = Grouper(address_map.banks, window)
        timer = None if controller is None else LaneTimer(controller, repeat, stride)
        self._passes = [
            PassScorer(
                address_map,
                parts,
                blocks_per_unit,
                grouper,
                timer,
                per_command=per_command,
                repeat=repeat,
                stride=stride,
                run_tokens=self._block_tokens,
                memo_bytes=MEMO_BYTES // len(parts_of),
            )
            for parts in parts_of
        ]
        self._writes = (
            WriteCounter(address_map, parts_of, blocks_per_unit, self._block_tokens) if count_writes else None
        )
        self._pass_totals = np.zeros((len(self._passes), len(Score._fields)), dtype=object)
        self._refresh_cycles = 0
        self._limit_totals = (0, 0, 0)
        self._limit = lru_cache(LIMITS)(self._score_limit)

    def observe(self, manager: BlockManager, seqs: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """(commands, hits, bursts, cycles, visits) of reading each sequence, all passes together.

        Five int64 arrays, one element per sequence: counts over all channels, the cycles of the slowest lane
        of each pass without refresh, and the activations of all lanes; the last two are 0 without a
        controller. The sums are added to the totals. Every pass over a sequence starts with all channels
        cold. Counts what the sequences have written, if asked for. Raises UnknownSequence, and
        InvalidArgument when what is read or was written lies outside the address map.
        """
        seqs_list = vector("seqs", seqs, -(2**63))
        lengths = [manager.length(seq) for seq in seqs_list]
        scores = [
            self._score(self._reads(length, manager.table(seq).tolist()), self._tokens_read(length))
            for seq, length in zip(seqs_list, lengths, strict=True)
        ]
        limits = [self._limit(self._tokens_read(length)) for length in lengths]
        if self._writes is not None:
            self._writes.count(self._writes.find(manager, seqs_list))

        counts = np.array(scores, dtype=np.int64).reshape(len(seqs_list), *self._pass_totals.shape)
        self._pass_totals += counts.sum(axis=0)
        per_sequence = counts.sum(axis=1).T.copy()
        if self._clock is not None:
            self._refresh_cycles += self._clock.advance(int(per_sequence[3].sum()))
        for commands, hits, cycles in limits:
            so_far = self._limit_totals
            self._limit_totals = (so_far[0] + commands, so_far[1] + hits, so_far[2] + cycles)
        return per_sequence[0], per_sequence[1], per_sequence[2], per_sequence[3], per_sequence[4]

    def settle(self, manager: BlockManager, seqs: Ints) -> None:
        """Count what these sequences have written since they were last observed or settled.

        For those that are about to leave, or to be trimmed: nothing says any more where they wrote what is
        gone. Changes nothing without `count_writes`. Raises UnknownSequence, and InvalidArgument when what
        was written lies outside the address map.
        """
        seqs_list = vector("seqs", seqs, -(2**63))
        for seq in seqs_list:
            manager.length(seq)  # refuses an unknown one, also where nothing is counted
        if self._writes is not None:
            self._writes.count(self._writes.find(manager, seqs_list))

    def totals(self) -> tuple[int, int, int]:
        """(commands, hits, bursts) summed over everything observed so far."""
        commands, hits, bursts, _, _ = (int(total) for total in self._pass_totals.sum(axis=0))
        return commands, hits, bursts

    def pass_totals(self) -> list[tuple[int, int, int, int, int]]:
        """(commands, hits, bursts, cycles, visits) of each pass, summed over everything observed so far."""
        return [Score(*map(int, of_pass)) for of_pass in self._pass_totals]

    def timed_totals(self) -> tuple[int, int, int]:
        """(cycles, refresh cycles, visits) summed over everything observed so far.

        The refresh cycles come on top of the cycles: one clock runs on over all steps, and each call of
        `observe` is a step. 0 if the controller does not refresh.
        """
        _, _, _, cycles, visits = (int(total) for total in self._pass_totals.sum(axis=0))
        return cycles, self._refresh_cycles, visits

    def limit_totals(self) -> tuple[int, int, int]:
        """(commands, hits, cycles) had every sequence observed lain in blocks 0, 1, 2, and so on.

        Of a sequence longer than `window_tokens` so many tokens count, from the start of block 0 on.
        """
        return self._limit_totals

    def write_totals(self) -> tuple[int, int, int]:
        """(tokens, bursts, activations) of everything counted as written so far.

        A token has bursts in every part that is stored, once for parts that passes share. Each (channel,
        bank, row) that a sequence writes of one part of a block is an activation, once in each call of
        `observe` or `settle`. Zeros without `count_writes`.
        """
        return (0, 0, 0) if self._writes is None else self._writes.totals

    def forget(self, seqs: Ints) -> None:
        """Drop what is kept about these sequences: how far they have written. Unknown ones are ignored."""
        seqs_list = vector("seqs", seqs, -(2**63))
        if self._writes is not None:
            self._writes.forget(seqs_list)

    def _score(self, reads: list[Read], tokens: int) -> list[Score]:
        return [one_pass.score(reads, tokens) for one_pass in self._passes]

    def _score_limit(self, tokens: int) -> tuple[int, int, int]:
        blocks = range(-(-tokens // self._block_tokens))
        reads = [(b, 0, min(self._block_tokens, tokens - b * self._block_tokens)) for b in blocks]
        scores = self._score(reads, tokens)
        return sum(s.commands for s in scores), sum(s.hits for s in scores), sum(s.cycles for s in scores)

    def _tokens_read(self, length: int) -> int:
        return min(length, self._window_tokens) if self._window_tokens else length

    def _reads(self, length: int, table: list[int]) -> list[Read]:
        """What is read of each block, in order."""
        size = self._block_tokens
        first_place, first = divmod(length - self._tokens_read(length), size)
        blocks = -(-length // size)
        reads = [(block, 0, size) for block in table[first_place:blocks]]
        if reads:
            reads[0] = (reads[0][0], first, size)
            block, first, _ = reads[-1]  # the same one if it is the only one
            reads[-1] = (block, first, length - (blocks - 1) * size)
        if self._by_row and reads:
            # The unit of the last block after the others, so that none is visited twice.
            last = reads[-1][0] // self._blocks_per_unit
            reads[:-1] = sorted(reads[:-1], key=lambda read: (read[0] // self._blocks_per_unit == last, read))
        return reads


class PassScorer:
    """Scores one pass over sequences. Keeps nothing of them; remembers where the bursts of a block lie.

    `run_tokens` is the most tokens of a block read at once, `memo_bytes` about what may be remembered.
    """

    def __init__(
        self,
        address_map: AddressMap,
        parts: list[Part],
        blocks_per_unit: int,
        grouper: Grouper,
        timer: LaneTimer | None,
        *,
        per_command: int,
        repeat: int,
        stride: int,
        run_tokens: int,
        memo_bytes: int,
    ) -> None:
        self._map = address_map
        self._parts = parts
        self._blocks_per_unit = blocks_per_unit
        self._grouper = grouper
        self._timer = timer
        self._repeat = repeat
        self._stride = stride
        self._token_bursts = sum(part.size for part in parts)

        # The channels to score; each stands for `self._alike` channels that see the same bursts.
        stand_ins = representatives(address_map, alignment(parts))
        self._channels = sorted(set(stand_ins))
        self._alike = address_map.channels // len(self._channels)
        # The lanes to time, as the channels that stand in for theirs, and for how many lanes each stands. A
        # channel that is the only one has no partner.
        self._lanes = Counter(
            tuple(stand_ins[first : first + per_command])
            for first in range(0, address_map.channels, per_command)
        )
        held_per_read = 1 + BURST * run_tokens * self._token_bursts // self._alike
        self._runs: Callable[[int, int, int], list[bytes]] = lru_cache(1 + memo_bytes // held_per_read)(
            self._decode
        )

    def score(self, reads: list[Read], tokens: int) -> Score:
        """What reading this, `tokens` in all, comes to from cold channels and closed banks."""
        runs_by_read = [self._runs(*read) for read in reads]
        windows = {
            channel: self._grouper.windows(b"".join([runs[index] for runs in runs_by_read]))
            for index, channel in enumerate(self._channels)
        }
        commands = self._repeat * self._alike * sum(w.commands for of in windows.values() for w in of)
        misses = self._alike * sum(self._misses(of) for of in windows.values())
        cycles, visits = self._time(windows)
        return Score(commands, commands - misses, tokens * self._token_bursts, cycles, visits)

    def _misses(self, windows: list[Window]) -> int:
        if self._stride > 1:
            return activations(windows, self._stride)
        return sum(window.misses for window in windows)

    def _time(self, windows: dict[int, list[Window]]) -> tuple[int, int]:
        """(cycles of the slowest lane, activations of all lanes) of a pass; zeros without a controller."""
        if self._timer is None:
            return 0, 0
        timed = [
            (self._timer.time([windows[channel] for channel in channels]), alike)
            for channels, alike in self._lanes.items()
        ]
        return max(cycles for (cycles, _), _ in timed), sum(visits * alike for (_, visits), alike in timed)

    def _decode(self, block: int, first: int, stop: int) -> list[bytes]:
        """The bursts of these tokens of a block in order, as each of `self._channels` sees them."""
        bursts = [
            part_bursts(self._map, part, self._blocks_per_unit, block, first, stop) for part in self._parts
        ]
        # token after token, of each its parts in order
        channel, bank, row, _ = self._map.decode(np.hstack(bursts).ravel())
        burst = row * self._map.banks + bank
        return [burst[channel == c].tobytes() for c in self._channels]


def representatives(address_map: AddressMap, chunk: int) -> list[int]:
    """For each channel the one that is scored in its place: both see the same (bank, row) stream.

    `chunk` is a number of bursts that divides where everything that is read starts and how long it is. Let
    2**k be the largest power of two that divides it. Whole sequences are made of aligned chunks of 2**k
    bursts: in a chunk the low k address bits count up and the others stand still. A channel bit among those
    k splits a chunk into halves that run through the remaining bits alike, so channels that differ only in
    such bits see the same banks and rows in the same order. A channel hash does not change this while the
    row stands still in a chunk: it XORs both channels with one value, and they still differ only in those
    bits. If a hashed channel has row bits among the k, the halves may come in another order; then every
    channel is scored.
    """
    k = (chunk & -chunk).bit_length() - 1
    inside = [bit for bit, place in enumerate(address_map.positions["ch"]) if place < k]
    row_moves = any(place < k for place in address_map.positions["row"])
    if row_moves and any(field == "ch" for field, _ in address_map.hashes):
        inside = []
    mask = sum(1 << bit for bit in inside)
    return [channel & ~mask for channel in range(address_map.channels)]
