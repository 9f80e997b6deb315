"""The published figures, every printed digit and counter, from our own code."""

from __future__ import annotations

from typing import Any

import pytest

from pimkv.config import load, merge
from pimkv.published import Row, rows, shows
from pimkv.simulation import Simulation


def test_the_table_holds_every_published_row() -> None:
    assert len(rows()) == 47
    assert len({row.name for row in rows()}) == 47


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_row_to_the_digit(row: Row) -> None:
    assert row.differences(Simulation(load(row.config)).run().summary) == []


def test_a_wrong_digit_is_found() -> None:
    row = rows()[2]
    summary = Simulation(load(row.config)).run().summary
    summary["published"]["m1"] += 1e-7
    summary["peak_live_blocks"] += 1
    assert [d.split(":")[0] for d in row.differences(summary)] == ["peak_live_blocks", "m1"]
    assert shows(0.55050401, "0.550504")
    assert not shows(0.550505, "0.550504")
    assert not shows(0.769458690, "0.76945868")


@pytest.mark.parametrize(
    ("addrmap", "m1", "m2", "m3"),
    [
        ("host-centric", 0.970, 0.124, 368),
        ("host-cacheline", 0.759, 0.990, 1173),
        ("pim-friendly", 0.969, 1.000, 2938),
    ],
)
def test_the_kill_test(addrmap: str, m1: float, m2: float, m3: float) -> None:
    """Three address maps, 2,000 requests: published to three digits."""
    config = load({"workload": {"requests": 2000}, "layout": {"addrmap": addrmap}})
    published = Simulation(config).run().summary["published"]
    assert (round(published["m1"], 3), round(published["m2"], 3)) == (m1, m2)
    assert round(published["m3_gbps"]) == m3


@pytest.mark.parametrize("allocator", ["paged", "pim-aware", "contiguous", "random"])
@pytest.mark.parametrize(
    "varied",
    [
        {},
        {"model": {"preset": "mqa-1kv"}},
        {"layout": {"block_tokens": 4}},
        {"layout": {"block_tokens": 0}},
        {"layout": {"kv_shards": 4}},
        {"scoring": {"coalesce": "inorder"}},
        {"scoring": {"window": 7}},
        {"dram": {"preset": "gddr6-pim"}},
        {"scheduler": {"admission": "vllm", "headroom": 0.6}},
        {"scheduler": {"admission": "vllm", "headroom": 0.4, "free_order": "reversed"}},
        {"scheduler": {"admission": "vllm", "headroom": 0.4, "free_order": "shuffled"}},
        {"scheduler": {"admission": "vllm", "headroom": 0.5}, "allocator": {"options": {"plan": "best-fit"}}},
        {"scheduler": {"admission": "vllm", "headroom": 0.8}, "allocator": {"options": {"compact": 0.75}}},
        {"workload": {"kind": "prefix"}},
        {"workload": {"kind": "spec"}},
        {"workload": {"kind": "spec"}, "speculation": {"adopt": "copyback"}},
        {
            "workload": {"kind": "spec"},
            "scheduler": {"admission": "vllm", "headroom": 0.4},
            "speculation": {"adopt": "copyback"},
        },
        {"workload": {"kind": "spec"}, "scheduler": {"headroom": 0.5}, "layout": {"block_tokens": 2}},
    ],
    ids=str,
)
def test_both_backends_give_one_summary(allocator: str, varied: dict[str, object]) -> None:
    given = {"workload": {"requests": 12}, "scheduler": {"max_batch": 4}, "allocator": {"kind": allocator}}
    merged = merge(given, varied)
    if allocator != "pim-aware":
        merged["allocator"].pop("options", None)
    if allocator == "contiguous" and merged["scheduler"].get("admission") == "vllm":
        pytest.skip("not defined for spans")
    config = load(merged)
    rust, reference = (
        Simulation(config, backend=name, check_every_step=True).run() for name in ("rust", "reference")
    )
    assert rust.report() == reference.report()
    assert rust.samples.to_csv() == reference.samples.to_csv()


def at_full_headroom(**options: object) -> dict[str, Any]:
    """The published negative results: 500 requests at 1.0x headroom under vLLM's admission."""
    return Simulation(
        load(
            {
                "workload": {"requests": 500},
                "allocator": {"kind": "pim-aware", "options": options},
                "scheduler": {"admission": "vllm", "headroom": 1.0},
            }
        )
    ).run().summary  # fmt: skip


def test_best_fit_planning_changes_nothing_to_three_decimals() -> None:
    plain, planned = at_full_headroom(), at_full_headroom(plan="best-fit")
    assert round(plain["published"]["m1"], 3) == round(planned["published"]["m1"], 3) == 0.940
    # It does plan: the ids differ.
    assert plain["placement"] != planned["placement"]


def test_compaction_scatters_what_it_packs() -> None:
    compacted = at_full_headroom(compact=0.875)
    assert compacted["relocated_blocks"] > 10_000
    assert round(compacted["published"]["m1"], 2) == 0.86
