"""Continuous batching: admission, growth and release of requests, one decode step after the other.

The scheduler decides *when*; the block manager decides *where*. Source: the published experiment
(iteration-level scheduling as in vLLM v0.2.7), order of operations as docs/model.md states it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pimkv.backend import BlockManager, Ints
from pimkv.errors import BrokenInvariant
from pimkv.workload.table import Requests


@dataclass(slots=True)
class Running:
    """A request that has been taken from the arrivals."""

    id: int
    length: int
    final: int
    final_blocks: int


@dataclass
class Counters:
    """What happened; definitions in docs/model.md."""

    decode_steps: int = 0
    completed: int = 0
    dropped: int = 0
    peak_live_blocks: int = 0
    admission_failures: int = 0
    preemptions: int = 0


Observer = Callable[[int, Ints], None]


class Scheduler:
    """Runs a request table through a block manager."""

    def __init__(
        self, requests: Requests, manager: BlockManager, *, block_tokens: int, max_batch: int
    ) -> None:
        self.counters = Counters()
        self._manager = manager
        self._block_tokens = block_tokens
        self._max_batch = max_batch
        self._arrivals = deque(self._request(requests, i) for i in range(len(requests)))
        self._running: list[Running] = []
        self._committed = 0
        self._batch = _Batch([])

    def _request(self, requests: Requests, index: int) -> tuple[int, Running]:
        prompt, final = int(requests.prompt[index]), int(requests.prompt[index] + requests.output[index])
        return int(requests.arrival[index]), Running(index, prompt, final, self._blocks(final))

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)

    def run(self, observe: Observer, leave: Callable[[Ints], None]) -> Counters:
        """Steps until every request is done.

        `observe(step, seqs)` sees the batch in admission order between decode and release, finished
        sequences included; `leave(seqs)` hears of sequences whose blocks are about to go.
        """
        step = 0
        counters = self.counters
        while self._running or self._arrivals:
            if not self._running:
                step = max(step, self._arrivals[0][0])
            self._admit(step)
            if self._running:
                finished = self._decode()
                counters.decode_steps += 1
                counters.peak_live_blocks = max(counters.peak_live_blocks, self._manager.live_blocks)
                observe(step, self._batch.seqs)
                if finished:
                    self._release(finished, leave)
            step += 1
        return counters

    def _admit(self, step: int) -> None:
        arrivals, before = self._arrivals, len(self._running)
        while arrivals and arrivals[0][0] <= step and len(self._running) < self._max_batch:
            request = arrivals[0][1]
            if self._place(request):
                self._running.append(request)
            elif self._running:
                break
            else:
                self.counters.dropped += 1
            arrivals.popleft()
        if len(self._running) != before:
            self._batch = _Batch(self._running)

    def _place(self, request: Running) -> bool:
        """Oracle admission: every running sequence and this one can reach its final length."""
        if self._manager.free_blocks - self._committed < request.final_blocks:
            return False
        if not self._manager.admit(request.id, request.length):
            raise BrokenInvariant(f"request {request.id} was refused blocks that are free")
        self._committed += request.final_blocks - self._blocks(request.length)
        return True

    def _decode(self) -> list[Running]:
        """Each running sequence appends a token, in admission order; returns the finished ones."""
        batch = self._batch
        grown = self._manager.grow(batch.seqs, batch.ones)
        if grown != len(self._running):
            raise BrokenInvariant(f"sequence {self._running[grown].id} found no block it was promised")
        finished = []
        block_tokens = self._block_tokens
        for request in self._running:
            if request.length % block_tokens == 0:
                self._committed -= 1
            request.length += 1
            if request.length == request.final:
                finished.append(request)
        return finished

    def _release(self, finished: list[Running], leave: Callable[[Ints], None]) -> None:
        seqs = np.array([r.id for r in finished], dtype=np.int64)
        leave(seqs)
        self._manager.release(seqs)
        self.counters.completed += len(finished)
        self._running = [r for r in self._running if r.length < r.final]
        self._batch = _Batch(self._running)


class _Batch:
    """The running sequences as arrays, made anew when the batch changes and not at every step."""

    __slots__ = ("ones", "seqs")

    def __init__(self, running: list[Running]) -> None:
        self.seqs: Ints = np.array([r.id for r in running], dtype=np.int64)
        self.ones: Ints = np.ones(len(running), dtype=np.int64)
