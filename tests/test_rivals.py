"""The allocators of the literature: the unit of each, what each rule shows, and the same run on both backends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from policy_pools import ints

from pimkv import _pimkv, reference
from pimkv.allocators import Allocator, AttaccOptions, options_of, policy_of
from pimkv.bench.ops import measure
from pimkv.bench.twins import replay_twin
from pimkv.cli import main
from pimkv.config import geometry, load, merge
from pimkv.errors import ConfigError
from pimkv.simulation import Simulation

RIVALS = (
    "paged-fifo", "lowest-id", "sglang-sorted", "grow-block", "blockpim", "pimphony", "attacc", "patton",
)  # fmt: skip
KINDS = pytest.mark.parametrize("kind", RIVALS)


def tables(kind: str, *more: dict[str, Any], requests: int = 8, **options: Any) -> dict[str, Any]:
    """A small run of an allocator as tables of a config, and what differs from the defaults."""
    merged: dict[str, Any] = {
        "workload": {"requests": requests},
        "allocator": {"kind": kind, "options": options},
    }
    for table in more:
        merged = merge(merged, table)
    return merged


def summary(kind: str, *more: dict[str, Any], requests: int = 1000, **options: Any) -> dict[str, Any]:
    return Simulation(load(tables(kind, *more, requests=requests, **options))).run().summary


# ---- units ----


@pytest.mark.parametrize(
    ("kind", "more", "tokens"),
    [
        ("grow-block", {}, 128),
        ("grow-block", {"model": {"preset": "mqa-1kv"}}, 1024),
        ("grow-block", {"dram": {"preset": "gddr6-aim"}}, 256),
        ("blockpim", {}, 256),  # AttAcc: 64 banks x 1 KiB / 256 B
        ("blockpim", {"dram": {"preset": "gddr6-aim"}}, 128),  # AiM: 16 banks x 2 KiB / 256 B
        ("blockpim", {"dram": {"ranks_per_command": 1}}, 128),
        ("blockpim", {"model": {"preset": "mqa-1kv"}}, 256),  # a head is a head, however many there are
        ("pimphony", {}, 256),
        ("pimphony", {"allocator": {"options": {"chunk_bytes": 10_000}}}, 2),  # 2.44 tokens
        ("attacc", {}, 16),
        ("patton", {}, 16),
        ("patton", {"layout": {"block_tokens": 32}}, 32),
    ],
)
def test_the_unit_of_an_allocator(kind: str, more: dict[str, Any], tokens: int) -> None:
    config = load(tables(kind, more))
    assert geometry(config).block_tokens == tokens
    run = Simulation(config).run()
    assert run.summary["block_tokens"] == tokens
    resolved = run.report()["config"]
    assert resolved["layout"]["block_tokens"] == tokens
    # What ran can be run again.
    assert geometry(load(resolved)).block_tokens == tokens


def test_another_block_size_than_the_own_unit_is_refused_with_that_unit() -> None:
    for given in (16, 0):
        with pytest.raises(ConfigError) as error:
            load(tables("blockpim", {"layout": {"block_tokens": given}}))
        assert str(error.value) == (
            f"layout.block_tokens = {given}: blockpim has a unit of its own, here 256 tokens; leave it out"
        )


def test_options_of_another_allocator_are_refused() -> None:
    attacc = AttaccOptions(max_tokens=4096)
    assert Allocator(kind="attacc", options=attacc).options is attacc
    for kind in ("paged", "contiguous"):
        with pytest.raises(ConfigError, match=r"options = .*must be a table"):
            Allocator(kind=kind, options=attacc)


def test_a_unit_without_a_token_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        load(tables("pimphony", chunk_bytes=4095))
    assert str(error.value) == 'allocator.kind = "pimphony": its unit does not hold a token of 4096 bytes'
    with pytest.raises(ConfigError) as error:
        load(tables("pimphony", {"dram": {"rows": 2}}, chunk_bytes=2**24))
    assert str(error.value).startswith('allocator.kind = "pimphony": a block of 4096 tokens needs 32 rows')


def test_pools_of_different_units_are_equal_in_bytes() -> None:
    def pool(kind: str) -> int:
        simulation = Simulation(load(tables(kind, requests=1000)))
        return simulation.pool_blocks * geometry(simulation.config).block_tokens

    paged = pool("paged")
    for kind in RIVALS:
        unit = geometry(load(tables(kind))).block_tokens
        grouped = options_of(kind).pool_multiple(1) * unit
        assert paged - unit < pool(kind) < paged + grouped
    with pytest.raises(ConfigError, match="patton needs whole groups of 16 blocks; nearest 96 or 112"):
        Simulation(load(tables("patton", {"scheduler": {"pool_blocks": 100}})))


# ---- each rule by hand ----


@pytest.mark.parametrize("module", [_pimkv, reference], ids=["rust", "reference"])
def test_the_rules_by_hand(module: Any) -> None:
    def after(kind: str, blocks: int, take: int, back: list[int]) -> Any:
        pool = module.Pool(kind, blocks)
        pool.take(0, take)
        pool.give(ints(back))
        return pool

    assert after("paged-fifo", 6, 3, [2, 1]).take(0, 9).tolist() == [4, 5, 2, 1]
    assert after("lowest-id", 6, 4, [2, 0]).take(0, 9).tolist() == [0, 2, 4, 5]
    # The list is used up before what has been freed is merged in, sorted.
    assert after("sglang-sorted", 6, 4, [2, 0]).take(0, 9).tolist() == [4, 5, 0, 2]
    # A group each; without an empty one the roomiest is shared, the lowest number first.
    pool = module.Pool("patton", 32)
    assert pool.take(1, 2).tolist() == [0, 1] and pool.take(2, 3).tolist() == [16, 17, 18]
    assert pool.take(3, 1).tolist() == [2] and pool.take(1, 1).tolist() == [3]
    assert pool.take(2, 13).tolist() == list(range(19, 32)) and pool.take(2, 1).tolist() == [4]


@pytest.mark.parametrize("module", [_pimkv, reference], ids=["rust", "reference"])
def test_an_admission_that_finds_too_short_a_list_sorts_it_first(module: Any) -> None:
    for tokens, table in ((2, [4, 5]), (3, [0, 1, 4])):
        manager = module.BlockManager("sglang-sorted", 6, block_tokens=1)
        manager.admit(0, 2)
        manager.admit(1, 2)
        manager.release(ints([0]))
        assert manager.admit(2, tokens) and manager.table(2).tolist() == table


# ---- what each shows ----


@pytest.mark.parametrize(
    ("kind", "pool", "m1", "m3"),
    [("paged-fifo", 3169, 0.775, 1258), ("lowest-id", 3168, 0.792, 1317)],
)
def test_the_figures_of_the_prototype(kind: str, pool: int, m1: float, m3: float) -> None:
    """A pool of whole regions, 3,168 blocks, as the prototype gave every policy; the null block comes on top."""
    got = summary(kind, {"scheduler": {"pool_blocks": pool}})["published"]
    assert abs(got["m1"] - m1) < 0.001
    assert round(got["m3_gbps"]) == m3


def test_stock_orders_stand_between_paged_and_pim_aware() -> None:
    m3 = [
        summary(k)["exact"]["m3_gbps"]
        for k in ("paged", "paged-fifo", "lowest-id", "sglang-sorted", "pim-aware")
    ]
    assert m3 == sorted(m3)


@pytest.mark.parametrize(
    ("max_tokens", "waste", "of_sums", "batch", "dropped"),
    [(2048, 2.84, 2.943, 21.3, 15), (4096, 6.67, 6.325, 11.5, 1), (8192, 15.27, 13.463, 5.9, 0)],
)
def test_a_static_reservation_wastes_memory_and_cuts_the_batch(
    max_tokens: int, waste: float, of_sums: float, batch: float, dropped: int
) -> None:
    """Reserved but empty / used, mean over decode steps: the prototype's 2.8, 6.7 and 15."""
    steps: list[tuple[int, int]] = []

    def on_step(_: int, seqs: Any, manager: Any) -> None:
        steps.append((len(seqs), sum(manager.length(seq) for seq in seqs.tolist())))

    run = Simulation(load(tables("attacc", requests=1000, max_tokens=max_tokens)))
    counts = run.run(on_step=on_step).summary
    reserved, used = sum(n for n, _ in steps) * max_tokens, sum(tokens for _, tokens in steps)
    assert round((reserved - used) / used, 3) == of_sums
    ratios = [(n * max_tokens - tokens) / tokens for n, tokens in steps]
    assert counts["capacity"]["waste"] == pytest.approx(sum(ratios) / len(ratios), rel=1e-12)
    assert round(counts["capacity"]["waste"], 2) == waste
    assert (
        round(counts["capacity"]["mean_batch"], 1) == batch == round(sum(n for n, _ in steps) / len(steps), 1)
    )
    final = run.requests.prompt + run.requests.output
    assert counts["dropped"] == int((final > max_tokens).sum()) == dropped
    assert counts["completed"] == 1000 - dropped


def test_paged_runs_twice_the_batch_of_a_static_reservation() -> None:
    sizes: list[int] = []
    Simulation(load(tables("paged", requests=1000))).run(on_step=lambda _, seqs, __: sizes.append(len(seqs)))
    assert round(sum(sizes) / len(sizes), 1) == 44.3


def test_a_request_beyond_its_span_blocks_nobody() -> None:
    counts = summary("attacc", requests=40, max_tokens=100)
    assert counts["dropped"] > 5 and counts["completed"] == 40 - counts["dropped"]
    with pytest.raises(ConfigError, match="not defined for the attacc allocator, which reserves max_tokens"):
        load(tables("attacc", {"scheduler": {"admission": "vllm"}}))


def test_the_null_block_is_never_handed_out_and_costs_one() -> None:
    seen: set[int] = set()

    def on_step(_: int, seqs: Any, manager: Any) -> None:
        seen.update(int(block) for seq in seqs.tolist() for block in manager.table(seq))

    tight = {"scheduler": {"pool_blocks": 60, "admission": "vllm"}}
    run = Simulation(load(tables("paged-fifo", tight, requests=60)))
    assert run.block_manager().free_blocks == 59
    assert run.run(on_step=on_step).summary["preemptions"] > 0
    assert seen == set(range(1, 60))


def test_a_table_is_freed_in_the_allocators_own_order() -> None:
    def ran(kind: str, order: str | None) -> dict[str, Any]:
        given = {"scheduler": {} if order is None else {"free_order": order}}
        return Simulation(load(tables(kind, given, requests=100))).run().report()

    for kind, own, other in (("paged", "table", "reversed"), ("paged-fifo", "reversed", "table")):
        left_out = ran(kind, None)
        assert left_out["config"]["scheduler"]["free_order"] == own
        assert left_out == ran(kind, own)
        assert left_out["summary"]["exact"] != ran(kind, other)["summary"]["exact"]


@pytest.mark.parametrize(("kind", "shares"), [("pimphony", False), ("attacc", False), ("blockpim", True)])
def test_a_prefix_is_private_where_nothing_is_shared(kind: str, shares: bool) -> None:
    held_twice = 0

    def on_step(_: int, seqs: Any, manager: Any) -> None:
        nonlocal held_twice
        blocks = [int(block) for seq in seqs.tolist() for block in manager.table(seq)]
        held_twice += len(blocks) - len(set(blocks))

    config = load(tables(kind, {"workload": {"kind": "prefix"}}, requests=60))
    assert Simulation(config).run(on_step=on_step).summary["completed"] > 50
    assert (held_twice > 0) == shares


def test_branches_of_pimphony_are_chunks_of_the_request() -> None:
    def on_step(_: int, seqs: Any, manager: Any) -> None:
        chunks = [int(block) for seq in seqs.tolist() for block in manager.table(seq)]
        assert len(set(chunks)) == len(chunks) == manager.live_blocks

    counts = Simulation(load(tables("pimphony", {"workload": {"kind": "spec"}}, requests=60))).run(
        on_step=on_step
    )
    assert counts.summary["completed"] == 60 and counts.summary["cow_copies"] > 0


def test_patton_moves_v_of_every_block_that_a_sequence_fills() -> None:
    lengths: dict[int, int] = {}
    filled = 0

    def on_step(_: int, seqs: Any, manager: Any) -> None:
        nonlocal filled
        for seq in seqs.tolist():
            # What a request starts with is written in place; it has grown by one token when it is first seen.
            before = lengths.get(seq, manager.length(seq) - 1)
            lengths[seq] = manager.length(seq)
            filled += lengths[seq] // 16 - before // 16

    config = load(tables("patton", {"traffic": {"writes": True}}, requests=60))
    counts = Simulation(config).run(on_step=on_step).summary
    assert counts["staged_blocks"] == filled > 100
    assert counts["staged_bytes"] == filled * 16 * 4096 // 2
    assert counts["traffic"]["copy_bytes"] == 2 * counts["staged_bytes"]
    plain = summary("pim-aware", {"traffic": {"writes": True}}, requests=60)
    assert (plain["staged_blocks"], plain["staged_bytes"], plain["traffic"]["copy_bytes"]) == (0, 0, 0)
    # A latent stream has no V apart.
    assert summary("patton", {"model": {"preset": "deepseek-v3"}}, requests=12)["staged_blocks"] == 0


# ---- the same on both backends, in every workload ----


@KINDS
@pytest.mark.parametrize(
    "varied",
    [
        {},
        {"experiment": "realistic", "scheduler": {"admission": "vllm", "headroom": 0.5}},
        {"scheduler": {"free_order": "shuffled"}},
        {"dram": {"preset": "gddr6-aim"}},
        {"model": {"preset": "gpt-oss-20b", "window": 32}},
        {"workload": {"kind": "prefix"}},
        {"workload": {"kind": "spec"}},
        {
            "workload": {"kind": "spec"},
            "scheduler": {"admission": "vllm", "headroom": 0.5},
            "speculation": {"adopt": "copyback"},
        },
    ],
    ids=str,
)
def test_both_backends_give_one_summary(kind: str, varied: dict[str, Any]) -> None:
    if options_of(kind).spans and "scheduler" in varied:
        varied = {**varied, "scheduler": {"admission": "oracle"}}
    config = load(tables(kind, {"scheduler": {"max_batch": 4}}, varied))
    rust, reference = (
        Simulation(config, backend=name, check_every_step=True).run() for name in ("rust", "reference")
    )
    assert rust.report() == reference.report()
    assert rust.samples.to_csv() == reference.samples.to_csv()


@KINDS
def test_its_log_is_repeated_by_rust_and_by_the_twin(kind: str) -> None:
    log = Simulation(load(tables(kind, requests=20)), record=True).run().oplog
    assert log is not None and log.kind == policy_of(kind)
    figures = measure(log, policy_of(kind), repeats=1)
    assert figures["ids_checked"] and figures["takes"] == figures["takes_with_recorded_id"] > 10
    assert replay_twin(log, 1)["operations"] == figures["operations"]


# ---- on the command line ----


@KINDS
def test_every_command_takes_it(kind: str, tmp_path: Path) -> None:
    def done(*args: str) -> str:
        result = CliRunner().invoke(main, [*args])
        assert result.exit_code == 0, result.stderr
        return result.stdout

    log = tmp_path / "ops"
    run = ["--requests", "8", "--allocator", kind]
    alone = json.loads(done("run", *run, "--json", "--oplog", str(log)))["summary"]
    # An allocator with a unit of its own keeps it when others are given another block size.
    compared = json.loads(
        done("compare", "--requests", "8", "--allocator", f"paged,{kind}", "--block-tokens", "32", "--json")
    )
    tokens = compared["runs"][1]["summary"]["block_tokens"]
    assert tokens == (alone["block_tokens"] if options_of(kind).own_unit else 32)
    done("bench", "ops", "--log", str(log), "--policies", kind, "--repeat", "1")
    done("derive", "--set", f"allocator.kind={kind}")
    done("export", "--requests", "8", "--allocator", kind, "--out", str(tmp_path / "traces"))
