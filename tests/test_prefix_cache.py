"""The prefix cache: against a plain model, on small pools under every policy that shares, and on real traces."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pimkv.backend import BlockManager, Ints
from pimkv.config import Config, load
from pimkv.errors import ConfigError, InvalidArgument
from pimkv.prefix_cache import PrefixCache
from pimkv.result import Result
from pimkv.simulation import Simulation
from pimkv.traffic import cache_sizes, describe, replay_cache
from pimkv.workload import Chains, Requests, read_trace

BLOCK = 16
KINDS = ("paged", "random", "pim-aware", "pim-gather")


def ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def path_keys(path: Sequence[int]) -> list[int]:
    """A key per beginning of a path through a tree of degree 3."""
    return list(itertools.accumulate(path, lambda key, step: 4 * key + step + 1, initial=0))[1:]


PATHS = st.lists(st.integers(0, 2), max_size=6)


class Plain:
    """The same rules by looking at everything: keys in use, and idle keys with block, time of leaving and depth."""

    def __init__(self, limit: int) -> None:
        self.limit, self.clock = limit, 0
        self.idle: dict[int, tuple[int, int, int]] = {}
        self.running: dict[int, tuple[list[int], set[int]]] = {}

    def used(self) -> set[int]:
        return set().union(*(held for _, held in self.running.values()))

    def find(self, keys: list[int], most: int) -> tuple[int, int]:
        there = self.used() | set(self.idle)
        run = list(itertools.takewhile(there.__contains__, keys[:most]))
        return len(run), sum(key in self.idle for key in run)

    def enter(self, seq: int, keys: list[int], hits: int) -> list[int]:
        there = self.used() | set(self.idle)
        held = {key for place, key in enumerate(keys) if place < hits or key not in there}
        self.running[seq] = keys, held
        return [self.idle.pop(key)[0] for key in keys[:hits] if key in self.idle]

    def leave(self, seq: int, table: list[int]) -> list[int]:
        keys, _ = self.running.pop(seq)
        self.clock += 1
        places = []
        for place, key in enumerate(keys):
            if key in self.used():
                continue
            block = self.idle[key][0] if key in self.idle else table[place]
            places += [place] * (key not in self.idle)
            self.idle[key] = block, self.clock, -place
        return places[::-1]

    def evict(self, blocks: int) -> list[int]:
        order = sorted(self.idle, key=lambda key: self.idle[key][1:])
        return [self.idle.pop(key)[0] for key in order[:blocks]]

    def trim(self) -> list[int]:
        return self.evict(max(0, len(self.idle) - self.limit)) if self.limit else []


class Caches(RuleBasedStateMachine):
    """Many sequences over few beginnings; every block has a number of its own."""

    @initialize(limit=st.integers(0, 12))
    def make(self, limit: int) -> None:
        self.cache, self.plain = PrefixCache(limit), Plain(limit)
        self.tables: dict[int, list[int]] = {}
        self.seqs, self.blocks = itertools.count(), itertools.count()
        # Which key each block was computed for, as long as the cache or a sequence has it.
        self.contents: dict[int, int] = {}

    @rule(path=PATHS, drop=st.booleans())
    def enter(self, path: list[int], drop: bool) -> None:
        seq, keys = next(self.seqs), path_keys(path)
        most = len(keys) - drop if keys else 0
        found = self.cache.find(keys, most)
        assert (found.blocks, found.idle) == self.plain.find(keys, most)
        shared, passed = self.cache.enter(seq, keys, found.blocks, lambda s: ints(self.tables[s]))
        assert passed == self.plain.enter(seq, keys, found.blocks)
        assert [self.contents[block] for block in shared] == keys[: found.blocks]
        table = shared + [next(self.blocks) for _ in keys[found.blocks :]]
        self.contents |= dict(zip(table, keys, strict=True))
        self.tables[seq] = table

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.tables)))
        table = self.tables.pop(seq)
        assert self.cache.leave(seq, table) == self.plain.leave(seq, table)
        assert self.cache.trim() == self.plain.trim()

    @rule(blocks=st.integers(0, 5))
    def evict(self, blocks: int) -> None:
        assert self.cache.evict(blocks) == self.plain.evict(blocks)

    @invariant()
    def complete(self) -> None:
        """Whatever is there is there from its beginning."""
        if not hasattr(self, "cache"):
            return
        assert len(self.cache) == len(self.plain.idle)
        there = self.plain.used() | set(self.plain.idle)
        assert all((key - 1) // 4 in there | {0} for key in there)
        if self.plain.limit:
            assert len(self.cache) <= self.plain.limit


TestCaches = Caches.TestCase


def requests_of(paths: Sequence[Sequence[int]], *, rest: int = 1) -> Requests:
    """One request per path, a hash for each of its steps and one more for a rest of so many tokens."""
    nodes: dict[int, int] = {}
    chains = [path_keys([*path, 2] if rest else path) for path in paths]
    for key in itertools.chain(*chains):
        nodes.setdefault(key, len(nodes))
    n, prompt = len(paths), ints([len(path) * BLOCK + rest for path in paths])
    offsets = ints([0, *itertools.accumulate(map(len, chains))])
    numbers = ints([nodes[key] for key in itertools.chain(*chains)])
    one = np.ones(n, dtype=np.int64)
    return Requests(np.arange(n), prompt, one, prefix=-one, chains=Chains(BLOCK, offsets, numbers))


@given(
    paths=st.lists(PATHS.filter(bool), min_size=1, max_size=25),
    rest=st.sampled_from([0, 1]),
    block_tokens=st.sampled_from([4, 16, 32]),
)
def test_a_larger_cache_finds_at_least_as_much(paths: list[list[int]], rest: int, block_tokens: int) -> None:
    requests = requests_of(paths, rest=rest)
    rows = cache_sizes(requests, block_tokens, range(1, 40))
    hits = [row["hit_blocks"] for row in rows]
    assert hits == sorted(hits)
    # The largest one finds all that has been seen before, but never a last token.
    seen: set[int] = set()
    expected = 0
    for i, prompt in enumerate(requests.prompt.tolist()):
        own = requests.block_keys(i, block_tokens)
        expected += len(list(itertools.takewhile(seen.__contains__, own[: (prompt - 1) // block_tokens])))
        seen |= set(own)
    assert hits[-1] == expected


def test_a_block_that_is_computed_once_more_has_been_used() -> None:
    """The last block of a prompt that is found whole: it stays, and is as young as its prompt's other blocks."""
    requests = requests_of([[0, 0], [1], [0, 0], [2], [0, 0, 1]], rest=0)
    # Three are kept: that of [1] goes for that of [2].
    assert replay_cache(requests, BLOCK, 3).hit_blocks == 1 + 2


def test_a_replay_by_hand() -> None:
    """Blocks of the hash's size; a cache of 2 keeps the shallowest of the last request."""
    requests = requests_of([[0, 0, 0], [0, 0, 1], [1], [0, 0, 0]])
    assert replay_cache(requests, BLOCK).hit_blocks == 0 + 2 + 0 + 3
    small = replay_cache(requests, BLOCK, 2)
    assert (small.hit_blocks, small.looked_up_blocks) == (0 + 2 + 0 + 1, 4 + 4 + 2 + 4)
    assert (small.evicted_blocks, small.peak_blocks) == (1 + 1 + 1 + 2, 2)


def test_the_last_token_of_a_prompt_is_computed() -> None:
    """A prompt of whole blocks that has been seen finds all of them but the last one."""
    one = np.ones(2, dtype=np.int64)
    chains = Chains(BLOCK, ints([0, 2, 4]), ints([0, 1, 0, 1]))
    requests = Requests(np.arange(2), one * 32, one, prefix=-one, chains=chains)
    assert replay_cache(requests, BLOCK).hit_blocks == 1
    assert replay_cache(requests, 8).hit_blocks == 3


def test_what_cannot_be_replayed_is_refused() -> None:
    one = np.ones(1, dtype=np.int64)
    with pytest.raises(InvalidArgument, match="without hash chains"):
        replay_cache(Requests(one, one, one, prefix=-one), BLOCK)
    with pytest.raises(InvalidArgument, match="block_tokens = 0"):
        replay_cache(requests_of([[0]]), 0)
    with pytest.raises(InvalidArgument, match="cache_blocks = 0"):
        cache_sizes(requests_of([[0]]), BLOCK, [0])


# ---- runs


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """90 requests over few beginnings, some longer than others, some of whole blocks."""
    rng = np.random.default_rng(5)
    path = tmp_path_factory.mktemp("traces") / "shared.jsonl"
    lines = []
    for i in range(90):
        steps = rng.integers(0, 2, size=rng.integers(1, 7)).tolist()
        keys = path_keys([*steps, 2 if i % 3 else steps[-1]])
        prompt = (len(keys) - 1) * 32 + (32 if i % 3 == 0 else int(rng.integers(1, 32)))
        row = {"timestamp": 40 * i, "input_length": prompt, "output_length": int(rng.integers(1, 60))}
        lines.append(json.dumps(row | {"hash_ids": keys}))
    path.write_text("\n".join(lines))
    return path


def config(trace: Path, kind: str = "paged", **sections: Any) -> Config:
    tables: dict[str, Any] = {
        "workload": {"trace": str(trace)},
        "allocator": {"kind": kind},
        "scheduler": {"prefix_cache": True, "max_batch": 12, "pool_blocks": 96},
    }
    for name, values in sections.items():
        tables[name] = tables.get(name, {}) | values
    return load(tables)


def run(config: Config, **options: Any) -> Result:
    on_step = options.pop("on_step", None)
    return Simulation(config, check_every_step=True, **options).run(on_step=on_step)


SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"scheduler": {"admission": "vllm"}},
    {"scheduler": {"admission": "vllm", "cache_blocks": 20, "free_order": "shuffled"}},
    {"scheduler": {"admission": "vllm"}, "workload": {"kind": "spec"}, "traffic": {"writes": True}},
    {"workload": {"kind": "spec"}, "speculation": {"adopt": "copyback"}, "scheduler": {"cache_blocks": 7}},
)


def settings(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return {name: base.get(name, {}) | more.get(name, {}) for name in base | more}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", range(len(SETTINGS)))
def test_both_backends_give_the_same_summary(trace: Path, kind: str, index: int) -> None:
    chosen = config(trace, kind, **SETTINGS[index])
    rust, twin = (run(chosen, backend=name) for name in ("rust", "reference"))
    assert rust.summary == twin.summary
    assert rust.samples.to_csv() == twin.samples.to_csv()
    cache = rust.summary["prefix_cache"]
    assert 0 < cache["hit_blocks"] < cache["looked_up_blocks"]
    assert cache["hit_tokens"] == BLOCK * cache["hit_blocks"]
    assert rust.summary["completed"] == 90
    assert 0 < cache["peak_blocks"] <= (chosen.scheduler.cache_blocks or chosen.scheduler.pool_blocks)
    assert cache["evicted_blocks"] > 0


class Contents:
    """Follows what every block holds, and finds a request that starts with something else than its own beginning."""

    def __init__(self, requests: Requests) -> None:
        self.requests = requests
        self.blocks: dict[int, int | None] = {}
        self.running: dict[int, list[int]] = {}
        self.shared = 0

    def __call__(self, step: int, seqs: Ints, manager: Any) -> None:
        tables = {seq: manager.table(seq).tolist() for seq in seqs.tolist()}
        keys = {seq: self.requests.block_keys(seq, BLOCK) for seq in tables}
        old = self.running.keys() & tables.keys()
        # Blocks of running sequences may have been moved since: they hold what their sequences hold.
        for seq in sorted(old):
            self.write(tables[seq], keys[seq])
        for seq in (s for s in seqs.tolist() if s not in old):
            hits = manager.inherited(seq) // BLOCK
            for block, key in zip(tables[seq][:hits], keys[seq], strict=False):
                assert self.blocks[block] == key, f"step {step}, sequence {seq}, block {block}"
            self.shared += hits
            self.write(tables[seq][hits:], keys[seq][hits:])
        self.running = tables

    def write(self, table: list[int], keys: list[int]) -> None:
        self.blocks |= dict(itertools.zip_longest(table, keys))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", range(len(SETTINGS)))
def test_every_request_starts_with_its_own_beginning(trace: Path, kind: str, index: int) -> None:
    chosen = config(trace, kind, **SETTINGS[index])
    simulation = Simulation(chosen, check_every_step=True)
    contents = Contents(simulation.requests)
    cache = simulation.run(on_step=contents).summary["prefix_cache"]
    # A sequence preempted in the step that admitted it is never seen.
    assert 0 < contents.shared <= cache["hit_blocks"] + cache["recovered_blocks"]


@pytest.mark.parametrize("admission", ["oracle", "vllm"])
@pytest.mark.parametrize("kind", ["paged", "pim-aware", "pim-gather"])
def test_without_equal_beginnings_a_cache_changes_no_schedule(
    tmp_path: Path, kind: str, admission: str
) -> None:
    """Idle blocks count as free, and go before anybody is preempted or kept waiting."""
    path = tmp_path / "apart.jsonl"
    rng = np.random.default_rng(2)
    lines = []
    for i in range(60):
        prompt = int(rng.integers(20, 300))
        row = {"timestamp": 60 * i, "input_length": prompt, "output_length": int(rng.integers(20, 120))}
        lines.append(json.dumps(row | {"hash_ids": [1000 * i + j for j in range(-(-prompt // 16))]}))
    path.write_text("\n".join(lines))
    scheduler = {"admission": admission, "pool_blocks": 64}
    on = run(config(path, kind, scheduler=scheduler)).summary
    off = run(config(path, kind, scheduler=scheduler | {"prefix_cache": False})).summary
    for name in ("decode_steps", "completed", "dropped", "preemptions", "peak_live_blocks", "blocks_read"):
        assert on[name] == off[name], name
    assert off["prefix_cache"] is None
    assert on["prefix_cache"]["hit_blocks"] == 0 < on["prefix_cache"]["evicted_blocks"]
    assert (on["prefix_cache"]["recovered_blocks"] > 0) == (on["preemptions"] > 0) == (admission == "vllm")


def test_what_is_found_is_not_written_again(trace: Path) -> None:
    chosen = config(trace, traffic={"writes": True}, scheduler={"pool_blocks": 400})
    simulation = Simulation(chosen)
    summary = simulation.run().summary
    # The token that a finished sequence was about to append last is never stored: lengths end at prompt + output.
    tokens = int((simulation.requests.prompt + simulation.requests.output).sum())
    assert summary["preemptions"] == 0
    assert summary["traffic"]["write_tokens"] == tokens - summary["prefix_cache"]["hit_tokens"]


def test_two_running_requests_share_blocks(tmp_path: Path) -> None:
    """The second one starts while the first one runs: its blocks are held twice and read by both."""
    path = tmp_path / "two.jsonl"
    rows = [
        {"timestamp": 30 * i, "input_length": 40, "output_length": 30, "hash_ids": [0, 1, 2 + i]}
        for i in range(2)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    seen: list[tuple[int, list[int]]] = []

    def on_step(step: int, seqs: Ints, manager: BlockManager) -> None:
        if len(seqs) == 2:
            one, two = (manager.table(seq).tolist() for seq in (0, 1))
            seen.append((sum(a == b for a, b in zip(one, two, strict=False)), one[:2]))

    summary = run(config(path, scheduler={"pool_blocks": 32}), on_step=on_step).summary
    assert len(seen) == 29 and {shared for shared, _ in seen} == {2}
    cache = summary["prefix_cache"]
    assert (cache["hit_blocks"], cache["looked_up_blocks"], cache["hit_share"]) == (2, 6, 2 / 6)
    assert (cache["peak_blocks"], cache["evicted_blocks"], cache["recovered_blocks"]) == (2, 0, 0)
    assert summary["peak_live_blocks"] == 2 * 5 - 2


def test_a_prompt_that_is_found_whole_computes_its_last_block(tmp_path: Path) -> None:
    path = tmp_path / "whole.jsonl"
    row = {"input_length": 32, "output_length": 20, "hash_ids": [0, 1]}
    path.write_text("\n".join(json.dumps(row | {"timestamp": at}) for at in (0, 30, 3000)))
    summary = run(config(path, scheduler={"pool_blocks": 32})).summary
    # One block each: beside the first request, and long after it.
    assert summary["prefix_cache"]["hit_blocks"] == 2
    # The copies of the last block are no second content: two blocks stay.
    assert summary["prefix_cache"]["peak_blocks"] == 2


@pytest.mark.parametrize(
    ("sections", "field", "message"),
    [
        ({"workload": {"trace": None}}, "scheduler.prefix_cache", "needs workload.trace"),
        ({"allocator": {"kind": "contiguous"}}, "scheduler.prefix_cache", "contiguous allocator cannot"),
        (
            {"allocator": {"kind": "pim-aware", "options": {"compact": 0.5}}},
            "scheduler.prefix_cache",
            "allocator.options.compact moves them",
        ),
        (
            {"scheduler": {"prefix_cache": False, "cache_blocks": 5}},
            "scheduler.cache_blocks",
            "cache that is off",
        ),
        ({"workload": {"hash_tokens": 0}}, "workload.hash_tokens", "1"),
    ],
)
def test_what_does_not_go_together_is_named(sections: dict[str, Any], field: str, message: str) -> None:
    tables = {"workload": {"trace": "a"}, "scheduler": {"prefix_cache": True}}
    with pytest.raises(ConfigError, match=message) as caught:
        load(settings(tables, sections))
    assert [problem.field for problem in caught.value.problems] == [field]


def test_requests_without_chains_are_refused(trace: Path) -> None:
    one = np.ones(1, dtype=np.int64)
    with pytest.raises(ConfigError, match="prefix_cache = true: these requests have no hash chains"):
        Simulation(config(trace), requests=Requests(one, one, one, prefix=-one))


# ---- real traces


def real(shared: Path, name: str, **options: Any) -> Requests:
    path = shared / "traces" / name
    if not path.is_file():
        pytest.skip(f"no {name} in the folder of shared reference data")
    defaults: dict[str, Any] = {
        "step_ms": 30,
        "requests": None,
        "arrival_rate": None,
        "seed": 0,
        "chains": None,
    }
    return read_trace(path, **(defaults | options))


def test_the_mooncake_conversation_trace_finds_36_6_percent(shared: Path) -> None:
    requests = real(shared, "mooncake_conversation.jsonl.gz")
    rows = cache_sizes(requests, 512)
    shares = [row["hit_share"] for row in rows]
    assert rows[-1]["cache_blocks"] is None
    assert rows[-1]["looked_up_blocks"] == 288_500
    assert shares[-1] == pytest.approx(0.366, abs=0.01)
    assert len(shares) >= 6 and shares == sorted(shares) and shares[0] < shares[-1] / 5


def test_turns_of_an_agent_find_those_before(shared: Path) -> None:
    requests = real(shared, "agent_miniswe.jsonl.gz")
    assert requests.chains is not None and requests.chains.tokens == 16
    rows = cache_sizes(requests, 16)
    shares = [row["hit_share"] for row in rows]
    assert shares == sorted(shares)
    # Nearly all of a turn's prompt is the turn before it.
    assert shares[-1] > 0.9


def test_the_multi_turn_trace_is_lengths_only(shared: Path) -> None:
    requests = real(shared, "sharegpt4_multiturn_8k.csv.gz")
    assert requests.chains is None
    assert describe(requests)["lengths"]["prompt"]["p50"] == 1730


@pytest.mark.parametrize(
    ("name", "count", "cached"),
    [
        ("azure2023_conv.csv", 120, False),
        ("sharegpt_v3_firstturn.csv.gz", 120, False),
        ("sharegpt4_multiturn_8k.csv.gz", 60, False),
        ("arxiv_summarization_4k.csv.gz", 60, False),
        ("mooncake_conversation.jsonl.gz", 40, True),
        ("agent_miniswe.jsonl.gz", 80, True),
    ],
)
def test_every_real_trace_runs_to_the_end(shared: Path, name: str, count: int, cached: bool) -> None:
    path = shared / "traces" / name
    if not path.is_file():
        pytest.skip(f"no {name} in the folder of shared reference data")
    scheduler = {"prefix_cache": cached, "max_batch": 16, "pool_blocks": 0}
    for kind in ("paged", "pim-gather"):
        summary = (
            Simulation(
                config(path, kind, workload={"trace": str(path), "requests": count}, scheduler=scheduler)
            )
            .run()
            .summary
        )
        assert (summary["completed"], summary["dropped"]) == (count, 0)
        assert (summary["prefix_cache"] is not None) == cached
