"""What requests take that own whole row groups of one channel, worked out column by column.

The twin of the Rust core's scorer of K and V pages. It keeps nothing of a request but how far its writes have
been counted; it remembers only results of pure functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pimkv.errors import InvalidArgument
from pimkv.reference.arguments import Ints, integer, vector
from pimkv.reference.controller import Controller, RefreshClock, run_reference
from pimkv.reference.lanes import drains_whole_groups, group_cycles
from pimkv.reference.manager import BlockManager
from pimkv.reference.scoring import Score

LARGEST = 2**20
LENGTHS = 2**16  # lengths whose score is remembered


@dataclass(frozen=True)
class Sheet:
    """How the tokens of a page lie in its row groups.

    A bank holds slots of `stride` columns one behind the other, and goes on from row to row (`columns` each).
    A slot of a K page is one token, token t in bank t mod banks, its elements along the row. A slot of a V
    page is one dimension, dimension d in bank d mod banks, its tokens along the row.
    """

    of_v: bool
    tokens: int
    banks: int
    elements: int
    dtype_bytes: int
    burst_bytes: int
    columns: int

    @property
    def stride(self) -> int:
        """Columns of a slot."""
        held = self.tokens if self.of_v else self.elements
        return -(-held * self.dtype_bytes // self.burst_bytes)

    @property
    def row_groups(self) -> int:
        """Row groups of a page."""
        slots = -(-(self.elements if self.of_v else self.tokens) // self.banks)
        return -(-slots * self.stride // self.columns)

    def places(self, first: int, stop: int) -> Iterable[tuple[int, int]]:
        """(bank, column, counted over the rows of the page) of every burst with data of tokens first..stop - 1."""
        if not self.of_v:
            for token in range(first, stop):
                slot, bank = divmod(token, self.banks)
                for column in range(self.stride):
                    yield bank, slot * self.stride + column
        elif first < stop:
            begin = first * self.dtype_bytes // self.burst_bytes
            end = -(-stop * self.dtype_bytes // self.burst_bytes)
            for dimension in range(self.elements):
                slot, bank = divmod(dimension, self.banks)
                for column in range(begin, end):
                    yield bank, slot * self.stride + column

    def visits(self, tokens: int) -> list[int]:
        """Column commands of each row visit of a page that holds so many tokens.

        A command reads one column of all banks, so the columns that hold anything in any bank are counted.
        """
        columns = {column for _, column in self.places(0, tokens)}
        commands = Counter(column // self.columns for column in columns)
        return [commands[row] for row in sorted(commands)]

    def written(self, first: int, stop: int) -> tuple[int, int]:
        """(bursts, rows opened in a bank each) of writing tokens first..stop - 1 of a page in one go."""
        places = list(self.places(first, stop))
        return len(places), len({(bank, column // self.columns) for bank, column in places})


class RowGroupScorer:
    """Scores requests with K and V pages of whole row groups, each request in one of `channels` channels.

    A channel is one command queue: a command acts on `banks` banks in `per_command` pseudo-channels, each of
    which counts it, and is issued `repeat` times. A block is a row group, `rows` to a channel: channel c has
    the ids c * rows to (c + 1) * rows - 1. A token has `elements` of K and as many of V.

    Reading opens each row group that holds anything once per pass and then reads its columns: a drain group. With
    `mac_stride` an activation serves ceil(c / mac_stride) of the c commands of such a visit.
    The busiest channel of a call of `observe` is the time of that step; on the published formula, which
    charges `hit_ps` or `miss_ps` for a command, it is found by itself. Raises InvalidArgument for values that
    no device has.
    """

    def __init__(
        self,
        *,
        channels: int,
        rows: int,
        banks: int,
        row_bytes: int,
        burst_bytes: int,
        elements: int,
        dtype_bytes: int,
        k_tokens: int,
        v_tokens: int,
        hit_ps: int,
        miss_ps: int,
        controller: Controller,
        per_command: int = 1,
        repeat: int = 1,
        mac_stride: int = 1,
        count_writes: bool = False,
    ) -> None:
        self._channels = integer("channels", channels, 1, 2**31)
        self._rows = integer("rows", rows, 1, 2**31)
        burst_bytes = integer("burst_bytes", burst_bytes, 1, LARGEST)
        if integer("row_bytes", row_bytes, 1, LARGEST) % burst_bytes:
            raise InvalidArgument(
                f"row_bytes = {row_bytes}: must be a multiple of burst_bytes ({burst_bytes})"
            )
        shape = {
            "banks": integer("banks", banks, 1, LARGEST),
            "elements": integer("elements", elements, 1, LARGEST),
            "dtype_bytes": integer("dtype_bytes", dtype_bytes, 1, LARGEST),
            "burst_bytes": burst_bytes,
            "columns": row_bytes // burst_bytes,
        }
        if elements * dtype_bytes % burst_bytes:
            raise InvalidArgument(f"elements = {elements}: must be whole bursts of {burst_bytes} bytes")
        self._sheets = (
            Sheet(of_v=False, tokens=integer("k_tokens", k_tokens, 1, LARGEST), **shape),
            Sheet(of_v=True, tokens=integer("v_tokens", v_tokens, 1, LARGEST), **shape),
        )
        if max(sheet.row_groups for sheet in self._sheets) > 2**31:
            raise InvalidArgument(f"elements = {elements}: a page has more than {2**31} row groups")
        self._token_bursts = elements * dtype_bytes // burst_bytes
        self._prices = (integer("hit_ps", hit_ps, 0, 2**32 - 1), integer("miss_ps", miss_ps, 0, 2**32 - 1))
        self._controller = controller
        self._per_command = integer("per_command", per_command, 1, 2)
        self._repeat = integer("repeat", repeat, 1, 2**16)
        self._mac_stride = integer("mac_stride", mac_stride, 1, 2**32 - 1)
        self._clock = RefreshClock(controller.timing) if controller.refresh else None
        self._refresh_cycles = 0
        self._pass_totals = np.zeros((2, len(Score._fields)), dtype=object)
        self._all_cycles = 0
        self._formula_ps = 0
        self._written = (0, 0, 0) if count_writes else None
        self._ends: dict[int, int] = {}
        self._visits = lru_cache(LENGTHS)(Sheet.visits)
        self._of_length = lru_cache(LENGTHS)(self._score)

    @property
    def pages(self) -> list[tuple[int, int]]:
        """(tokens, row groups) of a K page and of a V page: what the block manager is to hand out."""
        return [(sheet.tokens, sheet.row_groups) for sheet in self._sheets]

    def observe(self, manager: BlockManager, seqs: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """(commands, hits, bursts, cycles, visits) of reading each request, K pass and V pass together.

        Five int64 arrays, one element per request: counts over all pseudo-channels of its channel, and cycles
        as if it were alone. A call is one step: the sums are added to the totals, and the cycles of the channel
        that has most of them. Raises UnknownSequence, and InvalidArgument for a manager of other pages.
        """
        seqs_list = self._known(manager, seqs)
        scores = [self._of_length(manager.length(seq)) for seq in seqs_list]
        busy = [[0, 0] for _ in range(self._channels)]
        formula = [0] * self._channels
        for seq, passes in zip(seqs_list, scores, strict=True):
            channel = int(manager.table(seq)[0]) // self._rows
            for index, score in enumerate(passes):
                busy[channel][index] += score.cycles
                formula[channel] += self._formula_time(score)
                self._pass_totals[index] += (score.commands, score.hits, score.bursts, 0, score.visits)
            self._write(manager, seq)
        self._all_cycles += sum(map(sum, busy))
        busiest = max(busy, key=sum)  # of equals the first
        self._pass_totals[:, 3] += busiest
        self._formula_ps += max(formula)
        if self._clock is not None:
            self._refresh_cycles += self._clock.advance(sum(busiest))
        counts = np.array(scores, dtype=np.int64).reshape(len(seqs_list), 2, 5).sum(axis=1).T.copy()
        return counts[0], counts[1], counts[2], counts[3], counts[4]

    def settle(self, manager: BlockManager, seqs: Ints) -> None:
        """Count what these requests have written since they were last observed or settled."""
        for seq in self._known(manager, seqs):
            self._write(manager, seq)

    def totals(self) -> tuple[int, int, int]:
        """(commands, hits, bursts) summed over everything observed so far."""
        commands, hits, bursts, _, _ = (int(total) for total in self._pass_totals.sum(axis=0))
        return commands, hits, bursts

    def pass_totals(self) -> list[tuple[int, int, int, int, int]]:
        """(commands, hits, bursts, cycles, visits) of the K and of the V pass; cycles of the busiest channels."""
        return [Score(*map(int, of_pass)) for of_pass in self._pass_totals]

    def timed_totals(self) -> tuple[int, int, int]:
        """(cycles of each step's busiest channel, refresh cycles on top, visits) over everything observed."""
        _, _, _, cycles, visits = (int(total) for total in self._pass_totals.sum(axis=0))
        return cycles, self._refresh_cycles, visits

    def limit_totals(self) -> tuple[int, int, int]:
        """(commands, hits, cycles) had all channels been equally busy, cycles rounded up."""
        commands, hits, _ = self.totals()
        return commands, hits, -(-self._all_cycles // self._channels)

    @property
    def formula_ps(self) -> int:
        """The published formula's time of each step's busiest channel, summed, ps."""
        return self._formula_ps

    def write_totals(self) -> tuple[int, int, int]:
        """(tokens, bursts, activations) written so far; zeros without `count_writes`.

        A page's bursts and (bank, row) pairs count once in each call of `observe` or `settle`.
        """
        return (0, 0, 0) if self._written is None else self._written

    def forget(self, seqs: Ints) -> None:
        """Drop what is kept of these requests: how far they have written. Unknown ones are ignored."""
        for seq in vector("seqs", seqs, -(2**63)):
            self._ends.pop(seq, None)

    def _known(self, manager: BlockManager, seqs: Ints) -> list[int]:
        seqs_list = vector("seqs", seqs, -(2**63))
        if manager.pages != self.pages or manager.blocks != self._channels * self._rows:
            raise InvalidArgument(
                f"pages = {manager.pages} of {manager.blocks} blocks: the scorer has {self.pages} of"
                f" {self._channels * self._rows}"
            )
        for seq in seqs_list:
            manager.length(seq)  # refuses an unknown one
        return seqs_list

    def _score(self, tokens: int) -> tuple[Score, Score]:
        """What the K and the V pass over so many tokens come to."""
        k, v = (self._score_pass(sheet, tokens) for sheet in self._sheets)
        return k, v

    def _score_pass(self, sheet: Sheet, tokens: int) -> Score:
        pages, rest = divmod(tokens, sheet.tokens)
        visits = self._visits(sheet, sheet.tokens) * pages + self._visits(sheet, rest)
        commands = sum(visits) * self._repeat * self._per_command
        misses = len(self._cut(visits)) * self._per_command
        timing = self._controller.timing
        # Every activation is of a row of its own; both pseudo-channels of a channel have the same visits.
        fed = [columns * (1 + self._controller.per_pch) for columns in visits]
        sizes = [size * self._repeat for size in self._cut(fed)]
        if drains_whole_groups(timing):
            cycles, activations = group_cycles(sizes, timing), len(sizes)
        else:
            rows = [(0, row) for row, size in enumerate(sizes) for _ in range(size)]
            run = run_reference(rows, timing, refresh=False, queue=self._controller.queue)
            cycles, activations = run.cycles, run.activations
        return Score(commands, commands - misses, tokens * self._token_bursts, cycles, activations)

    def _cut(self, visits: list[int]) -> list[int]:
        """The commands of each activation."""
        sizes = []
        for commands in visits:
            most = -(-commands // self._mac_stride)
            sizes += [min(most, commands - start) for start in range(0, commands, most)]
        return sizes

    def _formula_time(self, score: Score) -> int:
        """Of a pass, ps: its pseudo-channels take every command at once."""
        hit_ps, miss_ps = self._prices
        return (score.hits * hit_ps + (score.commands - score.hits) * miss_ps) // self._per_command

    def _write(self, manager: BlockManager, seq: int) -> None:
        if self._written is None:
            return
        tokens, bursts, activations = self._written
        end = manager.length(seq)
        begin = min(self._ends.get(seq, 0), end)
        self._ends[seq] = end
        for sheet in self._sheets:
            for page in range(begin // sheet.tokens, -(-end // sheet.tokens)):
                start = page * sheet.tokens
                found = sheet.written(max(begin - start, 0), min(end - start, sheet.tokens))
                bursts, activations = bursts + found[0], activations + found[1]
        self._written = (tokens + end - begin, bursts, activations)
