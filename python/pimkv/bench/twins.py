"""The same log replayed in Python: on the twin of its policy, and on vLLM's own block pool if it is installed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pimkv.backend import OpLog, twin_policy
from pimkv.errors import BrokenInvariant
from pimkv.oplog import NO_BLOCK, OWNER_BASES, names, records_of

Step = tuple[int, int, int, int]
POLICY_OPERATIONS = ("Take", "Give", "Forget", "Reserve", "Plan", "Draw")


def replay_twin(log: OpLog, repeats: int) -> dict[str, float]:
    """ns per operation of a log on the twin of the policy that it is of, with and without the loop."""
    steps = _steps(log)
    codes = _codes()

    def once() -> int:
        policy = twin_policy(log.kind, log.blocks, log.blocks_per_region)
        return _timed(steps, codes, policy.take, policy.give, policy)

    return _figures(steps, codes, once, repeats)


def replay_vllm(log: OpLog, repeats: int) -> dict[str, Any]:
    """The takes and gives of a log on vLLM's BlockPool; {"skipped": why} where it cannot be imported."""
    try:
        pool_class = import_module("vllm.v1.core.block_pool").BlockPool
        release = version("vllm")
    except (ImportError, PackageNotFoundError) as error:
        return {"skipped": f"vLLM's BlockPool cannot be imported: {error}"}
    steps = [step for step in _steps(log) if step[0] in (_codes()["Take"], _codes()["Give"])]

    def once() -> int:
        # One more: vLLM keeps block 0 as its null block.
        pool = pool_class(num_gpu_blocks=log.blocks + 1, enable_caching=False)
        held: dict[int, Any] = {}
        take, give = pool.get_new_blocks, pool.free_blocks
        code = _codes()["Take"]
        started = time.perf_counter_ns()
        for operation, _, block, _ in steps:
            if operation == code:
                held[block] = take(1)[0]
            else:
                give([held.pop(block)])
        return time.perf_counter_ns() - started

    try:
        return _figures(steps, _codes(), once, repeats) | {"version": release}
    except TypeError as error:
        return {"skipped": f"vLLM {release}: BlockPool wants other arguments: {error}"}


def _codes() -> dict[str, int]:
    return {name: code for code, name in names().items()}


def _steps(log: OpLog) -> list[Step]:
    """(operation, owner, block, count) of what the policy was asked; markers are left out."""
    codes = {code for code, name in names().items() if name in POLICY_OPERATIONS}
    records = records_of(log)
    rows = zip(
        records["operation"].tolist(),
        records["owner_class"].tolist(),
        records["owner"].tolist(),
        records["block"].tolist(),
        records["count"].tolist(),
        strict=True,
    )
    return [(op, OWNER_BASES[c] + owner, block, count) for op, c, owner, block, count in rows if op in codes]


def _timed(
    steps: list[Step],
    codes: dict[str, int],
    take: Callable[[int], int | None],
    give: Callable[[int], None],
    policy: Any,
) -> int:
    takes, gives, forgets = codes["Take"], codes["Give"], codes["Forget"]
    reserves, plans = codes["Reserve"], codes["Plan"]
    forget, reserve, plan, feed = policy.forget, policy.reserve, policy.plan, policy.feed
    wrong = 0
    started = time.perf_counter_ns()
    for operation, owner, block, count in steps:
        if operation == takes:
            if take(owner) != block:
                wrong += 1
        elif operation == gives:
            give(block)
        elif operation == forgets:
            forget(owner)
        elif operation == plans:
            plan(owner, count)
        elif operation == reserves:
            reserve(owner, count, block)
        else:
            feed([count])
    taken = time.perf_counter_ns() - started
    # A take that found nothing answers None, which is no block either.
    if wrong > sum(step[0] == takes and step[2] == NO_BLOCK for step in steps):
        raise BrokenInvariant(f"the twin hands out another block in {wrong} takes")
    return taken


class _Nothing:
    """A policy that does nothing: the cost of the loop."""

    def take(self, _owner: int) -> int | None:
        return NO_BLOCK

    def give(self, _block: int) -> None:
        return

    def forget(self, _owner: int) -> None:
        return

    def reserve(self, _owner: int, _blocks: int, _scratch: int) -> bool:
        return True

    def plan(self, _owner: int, _blocks: int) -> None:
        return

    def feed(self, _indices: list[int]) -> None:
        return


def _figures(
    steps: list[Step], codes: dict[str, int], once: Callable[[], int], repeats: int
) -> dict[str, float]:
    nothing = _Nothing()
    # What it answers is not the point here: a loop without the check of ids.
    blind = [(op, owner, NO_BLOCK if op == codes["Take"] else block, n) for op, owner, block, n in steps]
    loop = statistics.median(
        _timed(blind, codes, nothing.take, nothing.give, nothing) for _ in range(repeats)
    )
    gross = statistics.median(once() for _ in range(repeats))
    count = max(1, len(steps))
    return {
        "operations": len(steps),
        "mean_ns": (gross - loop) / count,
        "with_loop_ns": gross / count,
        "loop_ns": loop / count,
        "total_ns": gross - loop,
    }
