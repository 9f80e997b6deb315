"""The block manager's calls of a run, kept and made again apart from it: what allocation costs an engine.

A call holds everything: the crossing from Python, block tables, reference counts, the policy and what it
plans. Differences between policies on one workload are thus differences of allocation alone.
"""

from __future__ import annotations

import time
from typing import Any

from pimkv.backend import BlockManager
from pimkv.errors import BrokenInvariant

CALLS = frozenset(
    (
        "admit",
        "pin_prefix",
        "grow",
        "speculate",
        "release",
        "compact",
        "feed",
        "repair",
        "pending_copies",
        "copies",
        "trim",
    )
)
"""The calls that change something, and the question that a step asks when some policy moves blocks."""

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


class CallTrace:
    """Stands between scheduler and manager and keeps every call that an engine makes."""

    def __init__(self, manager: BlockManager) -> None:
        self.calls: list[Call] = []
        self._manager = manager

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._manager, name)
        if name not in CALLS:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            return found(*args, **kwargs)

        return call


def replay_ns(calls: list[Call], manager: BlockManager, allocated: int) -> int:
    """ns that the calls take on a fresh manager; BrokenInvariant if it does not hand out as many blocks."""
    bound = [(getattr(manager, name), args, kwargs) for name, args, kwargs in calls]
    started = time.perf_counter_ns()
    for function, args, kwargs in bound:
        function(*args, **kwargs)
    taken = time.perf_counter_ns() - started
    if manager.blocks_allocated != allocated:
        raise BrokenInvariant(
            f"the calls made again took {manager.blocks_allocated} blocks, not the run's {allocated}"
        )
    return taken
