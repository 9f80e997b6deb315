"""ns per operation of a log: the figures of a replay inside Rust.

A batch is 256 operations between two clock reads. Its time is the median over the repetitions, minus the
median of the same batch over a policy that does nothing: the loop, the calls and the clock. By kind, a batch
is put together from consecutive runs of that kind until it has 256 operations; the clock is then read at
every run's end, over the empty policy too, and subtracted alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pimkv import backend
from pimkv.backend import Cuts, Ints, OpLog
from pimkv.bench.host import spread

BATCH = 256
SCHEMA_VERSION = 1
KINDS: dict[str, tuple[str, ...]] = {
    "take": ("admit", "grow", "branch", "take"),
    "give": ("release", "give"),
    "admit": ("admit",),
    "grow": ("grow",),
    "branch": ("branch",),
    "release": ("release",),
    "compact": ("compact",),
}
"""Reported kind -> tags of the replay. A release ends with the owner being forgotten, which is in it."""

Floats = npt.NDArray[np.float64]


def measure(
    log: OpLog,
    policy: str,
    *,
    blocks: int | None = None,
    strict: bool | None = None,
    repeats: int = 15,
    region_impl: str | None = None,
) -> dict[str, Any]:
    """Replays `log` against a policy and says what its operations cost.

    `strict` (left out: whether it is the recorded policy) demands the recorded ids. `InvalidArgument` for
    another pool size, `LogError` for a log that the policy cannot follow.
    """
    strict = policy == log.kind if strict is None else strict
    calls, takes, same, bytes_, mixed, apart = log.replay(
        policy, blocks=blocks, strict=strict, repeats=repeats, region_impl=region_impl or "indexed"
    )
    tags = backend.core().OpLog.tags()
    net, gross, worst = _nets(mixed)
    operations = mixed[0]
    per_pass = (mixed[3].sum(axis=1) - np.median(mixed[4].sum(axis=1))).tolist()
    total = float(net.sum())
    found: dict[str, Any] = {
        "policy": policy,
        "region_impl": (region_impl or "indexed") if policy == "pim-aware" else None,
        "recorded_policy": log.kind,
        "blocks": log.blocks,
        "blocks_per_region": log.blocks_per_region,
        "operations": calls,
        "takes": takes,
        "takes_with_recorded_id": same,
        "ids_checked": strict,
        "repeats": repeats,
        "bookkeeping_bytes": bytes_,
        "total_ns": total,
        "total_ns_spread": spread(per_pass) if per_pass else None,
        "loop_ns": _ratio(float(np.median(mixed[4], axis=0).sum()), calls),
        "with_loop_ns": _ratio(float(gross.sum()), calls),
        "operations_per_s": _ratio(calls * 1e9, float(gross.sum())),
        "all": _figures(operations, net, worst),
        "kinds": {},
    }
    nets, _, worsts = _nets(apart)
    for name, of in KINDS.items():
        picked = np.isin(apart[1], [tags.index(tag) for tag in of])
        if picked.any():
            found["kinds"][name] = _figures(apart[0][picked], nets[picked], worsts[picked])
    return found


def _ratio(value: float, by: float) -> float | None:
    return value / by if by > 0 else None


def _nets(cuts: Cuts) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Per cut: net ns, ns with the loop, whether in the worst state."""
    policy, null = cuts[3], cuts[4]
    if not len(policy):
        nothing = np.zeros(len(cuts[0]))
        return nothing, nothing, cuts[2].astype(bool)
    gross = np.median(policy, axis=0)
    return gross - np.median(null, axis=0), gross, cuts[2].astype(bool)


def _figures(operations: Ints, net: Floats, worst: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Of one kind: mean, median and 99th percentile over batches, and the median in the worst state."""
    batches = _batches(operations, net)
    in_worst = _batches(operations[worst], net[worst])
    return {
        "operations": int(operations.sum()),
        "batches": len(batches),
        "mean_ns": _ratio(float(net.sum()), int(operations.sum())),
        "median_ns": float(np.median(batches)) if len(batches) else None,
        "p99_ns": float(np.percentile(batches, 99)) if len(batches) else None,
        "worst_state_operations": int(operations[worst].sum()),
        "worst_state_median_ns": float(np.median(in_worst)) if len(in_worst) else None,
    }


def _batches(operations: Ints, net: Floats) -> Floats:
    """ns per operation of batches of at least 256 operations; a rest makes a batch only if it is all."""
    if not len(operations):
        return np.empty(0)
    ends, count = [], 0
    for index, n in enumerate(operations.tolist()):
        count += n
        if count >= BATCH:
            ends.append(index + 1)
            count = 0
    if not ends:
        ends = [len(operations)]
    starts = [0, *ends[:-1]]
    sums = np.add.reduceat(net, starts) if starts else np.empty(0)
    sizes = np.add.reduceat(operations, starts)
    # reduceat takes the last slice to the end: the rest after the last full batch is not part of it.
    sums[-1], sizes[-1] = net[starts[-1] : ends[-1]].sum(), operations[starts[-1] : ends[-1]].sum()
    figures: Floats = sums / sizes
    return figures
