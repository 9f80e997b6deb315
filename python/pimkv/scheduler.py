"""Continuous batching: admission, growth, preemption and release of requests, one decode step after the other.

The scheduler decides *when*; the block manager decides *where*. Source: the published experiment
(iteration-level scheduling as in vLLM v0.2.7), order of operations as docs/model.md states it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pimkv.backend import BlockManager, Ints
from pimkv.errors import BrokenInvariant
from pimkv.prefix_cache import CachingManager, Found
from pimkv.speculation import Rounds
from pimkv.workload.table import Requests

FUTILE_ROUNDS = 64
"""Rounds without a token after which a sequence that has the pool to itself is dropped."""


@dataclass(slots=True)
class Running:
    """A request that has been taken from the arrivals; `length` is what it holds or will start with."""

    id: int
    length: int
    final: int
    final_blocks: int
    prefix: int | None
    # Length when last admitted, and how often in a row it was preempted by itself at that length.
    start: int = 0
    futile: int = 0
    # Of its prompt's full blocks, worked out when it is first looked at.
    keys: list[int] | None = None


@dataclass
class Counters:
    """What happened; definitions in docs/model.md."""

    decode_steps: int = 0
    completed: int = 0
    dropped: int = 0
    peak_live_blocks: int = 0
    admission_failures: int = 0
    preemptions: int = 0
    relocated_blocks: int = 0
    staged_blocks: int = 0
    blocks_read: int = 0
    # Running sequences, summed over decode steps.
    batch: int = 0
    # Of each decode step: blocks that are not free, and tokens in them.
    held_blocks: list[int] = field(default_factory=list)
    used_tokens: list[int] = field(default_factory=list)
    stalls: int = 0
    makespan: int = 0
    generated_tokens: int = 0


@dataclass(frozen=True)
class Rules:
    """How requests are admitted and let go.

    admission: "oracle" (every running sequence can reach its final length) or "vllm" (the prompt fits and
    `watermark` blocks stay free). blocks_for: blocks that so many tokens of a request take. spans: a request
    reserves all it will ever hold, and `scratch_blocks`; with span_tokens it reserves so many instead, and one
    that needs more is dropped. stages: V of a block is copied into it when it is full.
    prefix_blocks: full blocks of the shared prefix, 0 if nothing can be shared. order: gives the order in
    which n blocks of a table are freed, None for table order. compact_blocks: after each step,
    regions of at most so many blocks are emptied; 0 for never. repair: blocks moved between two steps, at
    most, to gather sequences (`pim-gather`); None for a policy that relocates nothing. reserve: blocks that
    admission keeps free beyond what its rule asks for. private: no block is ever held by two.
    """

    block_tokens: int
    blocks_for: Callable[[int], int]
    max_batch: int
    admission: str = "oracle"
    watermark: int = 0
    spans: bool = False
    private: bool = False
    span_tokens: int | None = None
    stages: bool = False
    scratch_blocks: int = 0
    prefix_blocks: int = 0
    compact_blocks: int = 0
    repair: int | None = None
    reserve: int = 0
    order: Callable[[int], Ints] | None = None


class Watcher:
    """Hears of a run as it goes; each method does nothing unless a subclass wants it."""

    def step(self, step: int, seqs: Ints) -> None:
        """A decode step is done: the running batch in admission order, finished sequences included."""

    def leave(self, seqs: Ints) -> None:
        """These sequences' blocks are about to go."""


class Scheduler:
    """Runs a request table through a block manager, which may be one with a prefix cache."""

    def __init__(
        self,
        requests: Requests,
        manager: BlockManager,
        rules: Rules,
        rounds: Rounds | None = None,
        cache: CachingManager | None = None,
    ) -> None:
        self.counters = Counters()
        self._requests = requests
        self._manager = manager
        self._rules = rules
        self._rounds = rounds
        # The same manager where it has a prefix cache.
        self._cache = cache
        self._arrivals = deque(self._request(requests, i) for i in range(len(requests)))
        self._preempted: deque[Running] = deque()
        self._running: list[Running] = []
        self._batch = _Batch([])
        # Blocks that the running sequences have yet to claim until their final length.
        self._unclaimed = 0
        # Blocks that they will hold then.
        self._final_blocks = 0
        # Tokens that they hold now.
        self._tokens = 0
        # Of a fresh pool: what is no longer free is held, whether written or only reserved.
        self._pool_blocks = manager.free_blocks

    def _request(self, requests: Requests, index: int) -> tuple[int, Running]:
        prompt, final = int(requests.prompt[index]), int(requests.prompt[index] + requests.output[index])
        shares = requests.prefix[index] >= 0 and self._rules.prefix_blocks > 0
        prefix = int(requests.prefix[index]) if shares else None
        return int(requests.arrival[index]), Running(index, prompt, final, self._blocks(final), prefix)

    def _blocks(self, tokens: int) -> int:
        return self._rules.blocks_for(tokens)

    def run(self, watcher: Watcher) -> Counters:
        """Steps until every request is done."""
        step = first = self._arrivals[0][0] if self._arrivals else 0
        counters, rules = self.counters, self._rules
        while self._running or self._arrivals or self._preempted:
            if not self._running and not self._preempted:
                step = max(step, self._arrivals[0][0])
            self._admit(step)
            if self._running:
                finished = self._decode(watcher)
                self._hand_over_copies()
                counters.decode_steps += 1
                self._count_capacity()
                if self._running:
                    watcher.step(step, self._batch.seqs)
                    counters.blocks_read += self._final_blocks - self._unclaimed
                if finished:
                    self._let_go(finished, watcher)
                    counters.completed += len(finished)
                    self._set_running([r for r in self._running if r.length < r.final])
            if rules.compact_blocks:
                counters.relocated_blocks += self._manager.compact(rules.compact_blocks)
            if rules.repair is not None and self._manager.repair(rules.repair):
                self._hand_over_copies()
            step += 1
        if rules.repair is not None:
            counters.relocated_blocks = sum(self._manager.relocations[:2])
        counters.makespan = step - first
        return counters

    def _count_capacity(self) -> None:
        """How full the pool is between decode and release, and with how many sequences.

        Only the last block of a table can have room left, and no two tables share it, so that what is written
        needs no look at the tables: where blocks are shared, all in use are full but for those rests.
        """
        counters, rules, live = self.counters, self._rules, self._manager.live_blocks
        used = self._tokens
        if not rules.private:
            rests = (self._final_blocks - self._unclaimed) * rules.block_tokens - self._tokens
            used = live * rules.block_tokens - rests
        counters.peak_live_blocks = max(counters.peak_live_blocks, live)
        counters.batch += len(self._running)
        counters.held_blocks.append(self._pool_blocks - self._manager.free_blocks)
        counters.used_tokens.append(used)

    def _hand_over_copies(self) -> None:
        """The engine performs the copies that growth, or repair, has asked for: each time one parallel set."""
        if self._rules.repair is not None and self._manager.pending_copies():
            self._manager.copies()

    def _set_running(self, running: list[Running]) -> None:
        self._running = running
        self._batch = _Batch(running)
        self._final_blocks = sum(r.final_blocks for r in running)
        self._tokens = sum(r.length for r in running)

    # ---- admission ----

    def _admit(self, step: int) -> None:
        before, rules = len(self._running), self._rules
        while len(self._running) < rules.max_batch:
            if self._preempted:
                request = self._preempted[0]
            elif self._arrivals and self._arrivals[0][0] <= step:
                request = self._arrivals[0][1]
            else:
                break
            if rules.span_tokens is not None and request.final > rules.span_tokens:
                self.counters.dropped += 1
            elif self._place(request):
                request.start = request.length
                self._running.append(request)
            elif self._running:
                self.counters.stalls += 1
                break
            else:
                self.counters.dropped += 1
            if self._preempted:
                self._preempted.popleft()
            else:
                self._arrivals.popleft()
        if len(self._running) != before:
            self._set_running(self._running)

    def _place(self, request: Running) -> bool:
        rules, manager = self._rules, self._manager
        if rules.spans:
            return self._place_span(request)
        shared = rules.prefix_blocks if request.prefix is not None else 0
        pinned = 0 if request.prefix is None else manager.prefix_blocks(request.prefix)
        # The first sharer asks for the prefix's blocks and for its own.
        extra = shared - pinned
        own = (request.final_blocks if rules.admission == "oracle" else self._blocks(request.length)) - shared
        found = self._find(request)
        own -= found.blocks
        kept = self._unclaimed if rules.admission == "oracle" else rules.watermark
        # With nobody running there is no growth to keep blocks for.
        kept += rules.reserve if self._running else 0
        if manager.free_blocks - found.idle - kept < own + extra:
            return False
        if request.prefix is not None and extra and not manager.pin_prefix(request.prefix, extra):
            raise BrokenInvariant(f"prefix {request.prefix} was refused blocks that are free")
        if not self._take_in(request):
            raise BrokenInvariant(f"request {request.id} was refused blocks that are free")
        self._unclaimed += request.final_blocks - self._blocks(request.length)
        return True

    def _find(self, request: Running) -> Found:
        """What the prefix cache, if there is one, has of a request."""
        if self._cache is None:
            return Found()
        if request.keys is None:
            request.keys = self._requests.block_keys(request.id, self._rules.block_tokens)
        return self._cache.find(request.keys, request.length)

    def _take_in(self, request: Running) -> bool:
        if self._cache is None:
            return self._manager.admit(request.id, request.length, prefix=request.prefix)
        # A request that has run before starts with a length of its own.
        return self._cache.admit(request.id, request.length, keys=request.keys or (), again=request.start > 0)

    def _place_span(self, request: Running) -> bool:
        """Room for all it will hold; that there is none although enough blocks are free is a failure."""
        scratch, tokens = self._rules.scratch_blocks, self._rules.span_tokens or request.final
        if self._manager.free_blocks < self._blocks(tokens) + scratch:
            return False
        placed = self._manager.admit(
            request.id, request.length, reserve_tokens=tokens, scratch_blocks=scratch
        )
        if placed:
            self._unclaimed += request.final_blocks - self._blocks(request.length)
        else:
            self.counters.admission_failures += 1
        return placed

    # ---- decode ----

    def _decode(self, watcher: Watcher) -> list[Running]:
        """Each running sequence appends, in admission order; returns the finished ones in that order."""
        batch, running = self._batch, list(self._running)
        finished: list[Running] = []
        turn = 0
        while turn < len(running):
            turn, stuck = self._append(batch, running, turn, finished)
            if stuck:
                turn = self._make_room(running, turn, watcher)
                batch = _Batch(running)
        if len(running) != len(self._running):
            self._set_running(running)
        return finished

    def _append(
        self, batch: _Batch, running: list[Running], turn: int, finished: list[Running]
    ) -> tuple[int, bool]:
        """Sequences from `turn` on append: whose turn is next, and whether it found no block."""
        if self._rounds is None:
            done = self._manager.grow(batch.seqs, batch.ones, turn)
            for request in running[turn:done]:
                self._lengthen(request, 1, finished)
            return done, done < len(running)
        players = running[turn : turn + self._rounds.batch(len(running) - turn)]
        seqs = batch.seqs[turn : turn + len(players)]
        played, advanced = self._rounds.play(seqs, [r.final - r.length for r in players])
        for request, tokens in zip(players[:played], advanced[:played].tolist(), strict=True):
            self._lengthen(request, tokens, finished)
        return turn + played, played < len(players)

    def _lengthen(self, request: Running, tokens: int, finished: list[Running]) -> None:
        before = self._blocks(request.length)
        request.length += tokens
        self._tokens += tokens
        self.counters.generated_tokens += tokens
        self._unclaimed -= self._blocks(request.length) - before
        if self._rules.stages:
            block_tokens = self._rules.block_tokens
            filled = request.length // block_tokens - (request.length - tokens) // block_tokens
            self.counters.staged_blocks += filled
        if request.length == request.final:
            finished.append(request)

    def _make_room(self, running: list[Running], stuck: int, watcher: Watcher) -> int:
        """Preempts the most recently admitted other sequence that has not finished, or the stuck one
        itself if there is none; returns whose turn is next."""
        if self._rounds is None and self._rules.admission == "oracle":
            raise BrokenInvariant(f"sequence {running[stuck].id} found no block it was promised")
        others = (
            i for i in reversed(range(len(running))) if i != stuck and running[i].length < running[i].final
        )
        index = next(others, stuck)
        if index == stuck and self._rounds is not None:
            self._rounds.forget_waiting()
        victim = running.pop(index)
        self._let_go([victim], watcher)
        self._unclaimed -= victim.final_blocks - self._blocks(victim.length)
        if not running and self._is_hopeless(victim):
            self.counters.dropped += 1
        else:
            self._preempted.appendleft(victim)
            self.counters.preemptions += 1
        return stuck - (index < stuck)

    def _is_hopeless(self, request: Running) -> bool:
        """Whether a sequence that had the pool to itself and appended nothing would go on like this.

        At a block boundary any next token needs the block that is not there. Elsewhere a round that accepts
        fewer drafts may still fit, so it is tried again, but not for ever.
        """
        request.futile = request.futile + 1 if request.length == request.start else 0
        tries = 1 if request.length % self._rules.block_tokens == 0 else FUTILE_ROUNDS
        return request.futile >= tries

    # ---- release ----

    def _let_go(self, requests: list[Running], watcher: Watcher) -> None:
        seqs = np.array([r.id for r in requests], dtype=np.int64)
        watcher.leave(seqs)
        order = self._rules.order
        if order is None:
            self._manager.release(seqs)
        else:
            orders = [order(len(self._manager.table(r.id))) for r in requests]
            self._manager.release(seqs, np.concatenate(orders))


class _Batch:
    """The running sequences as arrays, made anew when the batch changes and not at every step."""

    __slots__ = ("ones", "seqs")

    def __init__(self, running: list[Running]) -> None:
        self.seqs: Ints = np.array([r.id for r in running], dtype=np.int64)
        self.ones: Ints = np.ones(len(running), dtype=np.int64)
