"""The published figures, every printed digit and counter, from our own code."""

from __future__ import annotations

import pytest

from pimkv.config import load, merge
from pimkv.published import Row, rows, shows
from pimkv.simulation import Simulation

RUNNABLE = [
    row
    for row in rows()
    if row.values["workload"] == "steady"
    and row.values["admission"] == "oracle"
    and row.values["allocator"] in ("paged", "pim-aware")
]


def test_the_table_holds_every_published_row() -> None:
    assert len(rows()) == 47
    assert len({row.name for row in rows()}) == 47
    assert len(RUNNABLE) == 20


@pytest.mark.parametrize("row", RUNNABLE, ids=lambda row: row.name)
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


@pytest.mark.parametrize("allocator", ["paged", "pim-aware"])
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
    ],
    ids=str,
)
def test_both_backends_give_one_summary(allocator: str, varied: dict[str, object]) -> None:
    given = {"workload": {"requests": 12}, "scheduler": {"max_batch": 4}, "allocator": {"kind": allocator}}
    config = load(merge(given, varied))
    rust, reference = (
        Simulation(config, backend=name, check_every_step=True).run() for name in ("rust", "reference")
    )
    assert rust.report() == reference.report()
    assert rust.samples.to_csv() == reference.samples.to_csv()
