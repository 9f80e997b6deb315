"""K and V as two streams, regions that do not divide, sliding windows, traversal, and what writing costs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from pimkv import layouts
from pimkv.config import geometry, load, merge, presets
from pimkv.derived import unit_of
from pimkv.simulation import Simulation


def run(given: dict[str, Any], **keywords: Any) -> dict[str, Any]:
    return Simulation(load(given), **keywords).run().summary


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        # layout -> (M1, M2) of each pass of a contiguous sequence on host-cacheline.
        (
            ["llama-gqa-8kv", "mha-32kv"],
            {"merged-token": (0.96875, 0.5), "merged-block": (0.9375, 1.0), "split": (0.96875, 1.0)},
        ),
        (
            ["qwen2.5-7b", "mqa-1kv"],
            {"merged-token": (0.96875, 1.0), "merged-block": (0.96875, 0.5), "split": (0.96875, 1.0)},
        ),
    ],
)
def test_layout_by_model_from_the_address_map_alone(
    models: list[str], expected: dict[str, tuple[float, float]]
) -> None:
    for model in models:
        found = {e["kv_layout"]: e for e in layouts.fits(load({"model": {"preset": model}}))}
        for layout, (m1, m2) in expected.items():
            entry = found[layout]
            assert entry["m2"] == [m2, m2], (model, layout)
            if layout != "merged-block" or model == "llama-gqa-8kv":
                assert entry["m1"] == [m1, m1], (model, layout)
        assert sum(entry["best"] for entry in found.values()) == 1


def test_merged_token_in_two_passes_uses_half_the_banks() -> None:
    summary = run({"workload": {"requests": 50}, "layout": {"passes": 2}, "allocator": {"kind": "pim-aware"}})
    assert [round(p["m2"], 2) for p in summary["passes"]] == [0.5, 0.5]


def test_the_true_split_equals_its_proxy_only_where_it_may() -> None:
    """The proxy reads one of two like tensors; the true run reads both, so it has twice the bytes."""
    given = {"workload": {"requests": 200}, "allocator": {"kind": "pim-aware"}}
    proxy = run(merge(given, {"layout": {"kv_layout": "published-split"}}))
    split = run(merge(given, {"layout": {"kv_layout": "split"}}))
    assert split["exact"]["bytes"] == 2 * proxy["exact"]["bytes"]
    assert split["exact"]["m1"] == pytest.approx(proxy["exact"]["m1"], abs=1e-3)


@pytest.mark.parametrize(
    ("block", "region", "kind", "blocks", "regions"),
    [
        (65536, 524288, "exact", 8, 1),
        (524288, 524288, "exact", 1, 1),
        (3 * 524288, 524288, "exact", 1, 3),
        (81920, 524288, "padded", 6, 1),  # Phi-4: 6.4 blocks, 6.25 % waste
        (196608, 524288, "span", 8, 3),  # Phi-3: 2.67 blocks, a third would stay empty
        (18432, 524288, "padded", 28, 1),  # latent attention: 28.4 blocks
        (819200, 524288, "span", 16, 25),
        (1000000, 524288, "padded", 1, 2),
    ],
)
def test_units(block: int, region: int, kind: str, blocks: int, regions: int) -> None:
    unit = unit_of(block, region)
    assert (unit.kind, unit.blocks, unit.regions) == (kind, blocks, regions)
    assert blocks * block <= unit.bytes == regions * region
    assert unit.waste == (0 if kind != "padded" else 1 - blocks * block / unit.bytes)
    assert unit.waste <= 0.07


@pytest.mark.parametrize("dram", ["hbm3-pim", "gddr6-pim", "gddr6-aim"])
@pytest.mark.parametrize("model", list(presets("model")))
def test_every_model_runs_on_every_dram(model: str, dram: str) -> None:
    for layout in ("merged-token", "merged-block", "split"):
        given = {
            "workload": {"requests": 8},
            "scheduler": {"max_batch": 4},
            "model": {"preset": model},
            "dram": {"preset": dram},
            "layout": {"kv_layout": layout},
            "allocator": {"kind": "pim-aware"},
            "traffic": {"writes": True},
        }
        summary = run(given, check_every_step=True)
        assert summary["completed"] == 8
        shape = geometry(load(given))
        tokens = summary["traffic"]["write_tokens"]
        assert summary["traffic"]["write_bytes"] == tokens * shape.token_bytes
        assert 0 < summary["exact"]["m3_gbps"] <= summary["exact"]["m3_limit_gbps"] * 1.001
        if summary["sliding"]:
            assert summary["sliding"]["bytes"] <= summary["exact"]["bytes"]


def test_a_latent_stream_is_read_twice_the_second_time_in_part() -> None:
    summary = run({"workload": {"requests": 20}, "model": {"preset": "deepseek-v3"}})
    k, v = (p["bursts"] for p in summary["passes"])
    assert k * 512 == v * 576


@pytest.mark.parametrize("allocator", ["paged", "pim-aware", "contiguous"])
def test_traversal_changes_rows_and_nothing_else(allocator: str) -> None:
    given = {"workload": {"requests": 150}, "allocator": {"kind": allocator}}
    token, row = (run(merge(given, {"layout": {"traversal": t}})) for t in ("token", "row"))
    assert row["exact"]["bytes"] == token["exact"]["bytes"]
    assert row["exact"]["commands"] <= token["exact"]["commands"] * 1.01
    same = ("decode_steps", "blocks_allocated", "peak_live_blocks", "completed")
    assert all(token[name] == row[name] for name in same)
    assert row["exact"]["m3_gbps"] >= token["exact"]["m3_gbps"] * 0.999


def test_row_order_gains_paged_a_few_percent() -> None:
    token = run({})["exact"]
    row = run({"layout": {"traversal": "row"}})["exact"]
    assert 1.02 < row["controller_gbps"] / token["controller_gbps"] < 1.04
    assert 1.02 < row["m3_gbps"] / token["m3_gbps"] < 1.06


def test_row_batch_is_a_bound_with_its_price() -> None:
    summary = run({"workload": {"requests": 200}, "layout": {"traversal": "row-batch"}})
    bound = summary["row_batch"]
    assert bound["m3_gbps"] > summary["exact"]["m3_gbps"]
    assert bound["query_bytes"] == 64 * 32 * 128 * 2


@pytest.mark.parametrize("admission", ["oracle", "vllm"])
@pytest.mark.parametrize("kind", ["steady", "prefix"])
def test_writes_are_tokens_times_bytes(admission: str, kind: str) -> None:
    """Every token once, and again for each preemption, whose prompt is computed anew."""
    given: dict[str, Any] = {
        "workload": {"kind": kind, "requests": 200},
        "allocator": {"kind": "pim-aware"},
        "scheduler": {"admission": admission, "headroom": 0.5 if admission == "vllm" else 1.3},
        "traffic": {"writes": True},
    }
    simulation = Simulation(load(given))
    leaving: list[int] = []
    summary = simulation.run(on_step=lambda step, seqs, manager: leaving.append(len(seqs))).summary
    traffic = summary["traffic"]
    assert traffic["write_bytes"] == traffic["write_tokens"] * 4096
    assert traffic["write_bursts"] * 32 == traffic["write_bytes"]
    requests = simulation.requests
    once = int((requests.prompt + requests.output).sum())
    sharers = int((requests.prefix >= 0).sum())
    if sharers:
        once -= (sharers - 1) * (requests.prefix_tokens // 16 * 16)
    if summary["preemptions"]:
        assert traffic["write_tokens"] > once
    elif not summary["dropped"]:
        assert traffic["write_tokens"] == once
    assert (summary["preemptions"] > 0) == (admission == "vllm" and kind == "steady")
    assert 0 < traffic["write_share"] < 0.1


def test_writes_off_are_not_a_number() -> None:
    assert run({"workload": {"requests": 5}})["traffic"] is None


def test_relocated_and_spliced_blocks_are_charged() -> None:
    compacted = {
        "workload": {"requests": 200},
        "allocator": {"kind": "pim-aware", "options": {"compact": 0.5}},
        "scheduler": {"admission": "vllm", "headroom": 0.8},
        "traffic": {"writes": True},
    }
    summary = run(compacted)
    assert summary["traffic"]["copy_bytes"] == 2 * summary["relocated_blocks"] * 65536 > 0
    spec = run({"workload": {"kind": "spec", "requests": 50}, "traffic": {"writes": True}})
    assert spec["traffic"]["copy_bytes"] == 2 * spec["copied_bytes"] > 0


def test_stacks_and_layers_multiply_what_one_shows() -> None:
    given = {"workload": {"requests": 100}, "allocator": {"kind": "pim-aware"}}
    one, two = (run(merge(given, {"layout": {"stacks": n}})) for n in (1, 2))
    assert two["exact"]["bytes"] * 2 == one["exact"]["bytes"]
    assert two["model"]["read_bytes"] == one["model"]["read_bytes"] == 32 * one["exact"]["bytes"]
    assert two["model"]["read_gbps"] > 1.9 * one["model"]["read_gbps"]
    assert two["model"]["read_gbps_per_stack"] == pytest.approx(two["model"]["read_gbps"] / 2)
    few = run(merge(given, {"model": {"layers": 8}}))
    assert few["model"]["read_bytes"] == 8 * few["exact"]["bytes"]


def test_a_sliding_layer_reads_its_window() -> None:
    given = {
        "workload": {"requests": 40},
        "model": {"preset": "gpt-oss-20b"},
        "allocator": {"kind": "pim-aware"},
    }
    seen: list[int] = []

    def look(step: int, seqs: Any, manager: Any) -> None:
        seen.append(sum(min(128, manager.length(seq)) for seq in seqs.tolist()))

    result = Simulation(load(given), check_every_step=True).run(on_step=look)
    assert result.summary["sliding"]["bytes"] == sum(seen) * geometry(load(given)).token_bytes


@pytest.mark.parametrize(
    "given",
    [
        {"layout": {"kv_layout": layout, "passes": passes}, "model": {"preset": model}}
        for layout, passes, model in itertools.product(
            ("merged-token", "merged-block", "split"), (None, 2), ("llama-gqa-8kv", "phi-4", "phi-3-mini")
        )
    ]
    + [
        {"model": {"preset": "deepseek-v3"}},
        {"model": {"preset": "gpt-oss-20b"}, "layout": {"kv_layout": "split"}},
        {"layout": {"traversal": "row"}},
        {"layout": {"traversal": "row-batch", "kv_layout": "split"}},
        {"layout": {"addrmap": "row:* col:* bg:* ba:* ch:* col:1; ch^row:0 ba^row:5", "kv_layout": "split"}},
        {"experiment": "realistic"},
        {"experiment": "realistic", "controller": {"feed": "per-pch", "queries_per_command": 1}},
    ],
    ids=str,
)
def test_both_backends_agree(given: dict[str, Any]) -> None:
    few = {
        "workload": {"requests": 5},
        "scheduler": {"max_batch": 3, "headroom": 0.7, "admission": "vllm"},
        "traffic": {"writes": True},
        "allocator": {"kind": "pim-aware"},
    }
    config = load(merge(given, few))
    rust, reference = (
        Simulation(config, backend=name, check_every_step=True).run() for name in ("rust", "reference")
    )
    assert rust.report() == reference.report()
