"""The cost table: what placement costs the CPU and what it saves the memory, per workload and policy.

benefit / cost = attention time saved per decode step (all layers; by the published formula, and beside it by the
PIM controller) / CPU time that the policy adds per step over `paged`. Both come from one run of each policy on the
same requests; the CPU time is the recorded operations' or the recorded calls', replayed apart.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pimkv.backend import BlockManager, OpLog, core
from pimkv.bench.batches import batch_calls
from pimkv.bench.calls import CallTrace, replay_ns
from pimkv.bench.host import host, spread
from pimkv.bench.ops import SCHEMA_VERSION, measure
from pimkv.bench.twins import replay_twin, replay_vllm
from pimkv.config import load, merge
from pimkv.errors import BrokenInvariant, ConfigError
from pimkv.result import Result
from pimkv.simulation import Simulation, requests_of
from pimkv.workload.table import Requests

Progress = Callable[[str], None]

WORKLOADS: dict[str, dict[str, Any]] = {
    "steady": {},
    "spec": {"workload": {"kind": "spec"}},
    "prefix": {"workload": {"kind": "prefix"}},
    "longctx": {"workload": {"kind": "longctx"}},
    "0.6x preemption": {"scheduler": {"headroom": 0.6, "admission": "vllm"}},
}


@dataclass(frozen=True)
class Contender:
    """A row of the table. `base` is what its costs are over; `by_calls`: its work is not in the policy alone."""

    name: str
    kind: str
    region_impl: str | None = None
    by_calls: bool = False

    @property
    def has_twin(self) -> bool:
        """Whether the Python twin does the same work: it keeps the published structures, and plans are no policy's."""
        return self.region_impl != "indexed" and not self.by_calls


PAGED = Contender("paged", "paged")
VLLM = "vLLM BlockPool"
CONTENDERS: tuple[Contender, ...] = (
    PAGED,
    Contender("pim-aware, indexed", "pim-aware", "indexed"),
    Contender("pim-aware, heaps", "pim-aware", "heaps"),
    Contender("pim-gather", "pim-gather", by_calls=True),
    Contender("contiguous", "contiguous"),
)


@dataclass
class _Run:
    """One simulation: its result, its manager's calls and how to make that manager again."""

    result: Result
    calls: CallTrace
    fresh: Callable[[], BlockManager]

    @property
    def log(self) -> OpLog:
        log = self.result.oplog
        if log is None:
            raise BrokenInvariant("the run was to be recorded")
        return log

    @property
    def steps(self) -> int:
        return int(self.result.summary["decode_steps"])

    def attention_us(self, bandwidth: str) -> float:
        """Time of one layer's attention reads per decode step, by a bandwidth in GB/s of the exact aggregate."""
        exact = self.result.summary["exact"]
        return float(exact["bytes"] / exact[bandwidth] / self.steps / 1000)

    def calls_us(self) -> float:
        """us per decode step of the manager's calls."""
        allocated = int(self.result.summary["blocks_allocated"])
        return replay_ns(self.calls.calls, self.fresh(), allocated) / self.steps / 1000


def cost_table(
    *,
    requests: int = 1000,
    twin_requests: int = 100,
    repeats: int = 15,
    scale: float = 1.0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Everything that `pimkv bench cost` prints; times vary from run to run, ratios inside it hardly.

    `scale` shrinks the made-up logs, for a look at the shape of the table.
    """
    tell = progress or (lambda _: None)
    table: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "host": host(),
        "requests": requests,
        "twin_requests": twin_requests,
        "repeats": repeats,
        "workloads": {},
    }
    for name, tables in WORKLOADS.items():
        tell(name)
        table["workloads"][name] = _workload(tables, requests, repeats)
    tell("twins")
    table["twins"] = _twins(twin_requests, _few(repeats))
    tell("worst case")
    table["worst_case"] = worst_cases(repeats, regions=(396, max(400, int(1_000_000 * scale))))
    tell("mix")
    table["mix"] = mixes(
        repeats, blocks=max(1024, int((1 << 16) * scale)), steps=max(2000, int(200_000 * scale))
    )
    tell("batch calls")
    table["batch_calls"] = batch_calls(repeats, calls=max(20, int(2000 * scale)))
    return table


def _simulate(tables: dict[str, Any], contender: Contender, requests: int, drawn: Requests | None) -> _Run:
    options = {} if contender.region_impl is None else {"region_impl": contender.region_impl}
    base = {"workload": {"requests": requests}, "allocator": {"kind": contender.kind, "options": options}}
    traces: list[CallTrace] = []

    def through(manager: BlockManager) -> Any:
        traces.append(CallTrace(manager))
        return traces[0]

    run = Simulation(load(merge(base, tables)), requests=drawn, record=True, through=through)
    result = run.run()
    return _Run(result, traces[0], run.block_manager)


def _workload(tables: dict[str, Any], requests: int, repeats: int) -> dict[str, Any]:
    drawn = requests_of(load(merge({"workload": {"requests": requests}}, tables)))
    rows: dict[str, Any] = {}
    runs: dict[Contender, _Run] = {}
    for contender in CONTENDERS:
        try:
            runs[contender] = _simulate(tables, contender, requests, drawn)
        except ConfigError as error:
            rows[contender.name] = {"refused": str(error)}
    # The policies take turns, so that a drift of the machine's speed touches all.
    turns = [{contender: run.calls_us() for contender, run in runs.items()} for _ in range(repeats)]
    for contender, run in runs.items():
        calls = [turn[contender] for turn in turns]
        rows[contender.name] = _row(contender, run, runs[PAGED], calls, repeats)
    paged = rows[PAGED.name]
    for contender in runs:
        rows[contender.name] |= _ratios(rows[contender.name], paged, by_calls=contender.by_calls)
    ordered = {contender.name: rows[contender.name] for contender in CONTENDERS}
    return ordered | {VLLM: _vllm(runs[PAGED], _few(repeats))}


def _few(repeats: int) -> int:
    """Repetitions of what Python does: it is slow, and its spread small beside its time."""
    return max(3, repeats // 5)


def _vllm(run: _Run, repeats: int) -> dict[str, Any]:
    """vLLM's own pool on the operations of `paged`: us per decode step, or why it is left out."""
    got = replay_vllm(run.log, repeats)
    if "skipped" in got:
        return got
    return got | {"twin_us_per_step": got["total_ns"] / run.steps / 1000}


def _row(contender: Contender, run: _Run, base: _Run, calls: list[float], repeats: int) -> dict[str, Any]:
    got = measure(run.log, contender.kind, repeats=repeats, region_impl=contender.region_impl)
    twin = replay_twin(run.log, _few(repeats)) if contender.has_twin else None
    formula, controller = run.attention_us("m3_gbps"), run.attention_us("controller_gbps")
    return {
        "decode_steps": run.steps,
        "operations": got["operations"],
        "operations_per_step": got["operations"] / run.steps,
        "ids_checked": got["ids_checked"],
        "policy_us_per_step": got["total_ns"] / run.steps / 1000,
        "policy_ns": {name: kind["median_ns"] for name, kind in got["kinds"].items()},
        "calls_us_per_step": statistics.median(calls),
        "calls_us_spread": spread(calls),
        "twin_us_per_step": None if twin is None else twin["total_ns"] / run.steps / 1000,
        "bookkeeping_kib": got["bookkeeping_bytes"] / 1024,
        "attention_us_per_step_and_layer": formula,
        "attention_us_per_step_and_layer_controller": controller,
        "saved_us_per_step_and_layer": base.attention_us("m3_gbps") - formula,
        "saved_us_per_step_and_layer_controller": base.attention_us("controller_gbps") - controller,
        "layers": run.result.config.model.layers,
    }


def _ratios(row: dict[str, Any], paged: dict[str, Any], *, by_calls: bool) -> dict[str, Any]:
    """What the row adds over paged, and benefit / cost, in Rust and in Python; None where nothing is added."""
    key = "calls_us_per_step" if by_calls else "policy_us_per_step"
    added = row[key] - paged[key]
    saved = row["saved_us_per_step_and_layer"] * row["layers"]
    by_controller = row["saved_us_per_step_and_layer_controller"] * row["layers"]
    twin = row["twin_us_per_step"]
    twin_added = None if twin is None else twin - paged["twin_us_per_step"]
    return {
        "added_from": "calls" if by_calls else "policy",
        "added_us_per_step": added,
        "saved_us_per_step": saved,
        "saved_us_per_step_controller": by_controller,
        "benefit_cost": saved / added if added > 0 else None,
        "benefit_cost_controller": by_controller / added if added > 0 else None,
        "twin_benefit_cost": saved / twin_added if twin_added is not None and twin_added > 0 else None,
    }


def _twins(requests: int, repeats: int) -> dict[str, Any]:
    """The same log in Rust and in Python, steady, and vLLM's own pool beside `paged`."""
    rows: dict[str, Any] = {}
    drawn = requests_of(load({"workload": {"requests": requests}}))
    for contender in CONTENDERS:
        if not contender.has_twin:
            continue
        run = _simulate({}, contender, requests, drawn)
        log = run.log
        rust = measure(log, contender.kind, repeats=5 * repeats, region_impl=contender.region_impl)
        twin = replay_twin(log, repeats)
        rows[contender.name] = {
            "operations": rust["operations"],
            "rust_ns": rust["total_ns"] / rust["operations"],
            "rust_with_loop_ns": rust["with_loop_ns"],
            "twin_ns": twin["mean_ns"],
            "twin_with_loop_ns": twin["with_loop_ns"],
            "twin_us_per_step": twin["total_ns"] / run.steps / 1000,
            "times_slower_with_loop": twin["with_loop_ns"] / rust["with_loop_ns"],
        }
        if contender is PAGED:
            rows[VLLM] = replay_vllm(log, repeats)
    return rows


def worst_cases(repeats: int, *, regions: tuple[int, ...] = (396, 1_000_000)) -> list[dict[str, Any]]:
    """A full pool without an empty region: growing, and admitting requests of 24 blocks."""
    rows = []
    make = core().OpLog
    for count in regions:
        blocks = count * 8
        rounds = 200 if count < 10_000 else 60
        for what, log in (
            ("grow", make.growing(blocks, 8, 64, rounds)),
            ("admit", make.admitting(blocks, 8, 24, rounds * 8)),
        ):
            for contender in CONTENDERS:
                slow = contender.region_impl == "heaps" and count > 10_000
                if contender.kind == "contiguous" or contender.by_calls or slow:
                    # Spans cannot grow here; the heaps' scan of a million regions takes a millisecond.
                    continue
                got = measure(log, contender.kind, repeats=repeats, region_impl=contender.region_impl)
                figures = got["kinds"][what]
                rows.append(
                    {
                        "what": what,
                        "regions": count,
                        "blocks": blocks,
                        "policy": contender.name,
                        "bookkeeping_kib": got["bookkeeping_bytes"] / 1024,
                        "loop_ns": got["loop_ns"],
                        "give_median_ns": got["kinds"]["give"]["median_ns"],
                    }
                    | figures
                )
    return rows


def mixes(
    repeats: int, *, blocks: int = 1 << 16, sequences: int = 64, steps: int = 200_000
) -> dict[str, Any]:
    """The stated mix at one pool size: one take by a random sequence, about one give, 80 % full."""
    log = core().OpLog.mix(blocks, 8, sequences, steps)
    return {
        "blocks": blocks,
        "sequences": sequences,
        "policies": {
            c.name: measure(log, c.kind, repeats=repeats, region_impl=c.region_impl)
            for c in CONTENDERS
            if c.kind != "contiguous" and not c.by_calls
        },
    }
