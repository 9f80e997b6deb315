"""Specs of sweeps: which points they mean, and that every mistake is told before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pimkv.config import Config, load
from pimkv.errors import ConfigError
from pimkv.sweep.execute import plan
from pimkv.sweep.spec import load_sweep, studies


def fields(config: Config) -> tuple[Any, ...]:
    return config.allocator.kind, config.scheduler.headroom, config.layout.block_tokens, config.seed


def mistakes(spec: Any, **given: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_sweep(spec, **given)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.problems)
    return lines


def test_points_are_all_combinations_the_last_axis_fastest() -> None:
    sweep = load_sweep(
        {
            "base": {"workload": {"requests": 20}},
            "grid": {"allocator.kind": ["paged", "pim-aware"], "scheduler": {"headroom": [0.8, 1.3]}},
            "seeds": 2,
        }
    )
    assert [fields(config) for config in sweep.configs] == [
        (kind, headroom, None, seed)
        for kind in ("paged", "pim-aware")
        for headroom in (0.8, 1.3)
        for seed in (0, 1)
    ]
    assert sweep.axes == ("allocator.kind", "scheduler.headroom", "seed")
    assert all(config.workload.requests == 20 for config in sweep.configs)


def test_zip_moves_fields_together_and_list_gives_configs_one_by_one() -> None:
    sweep = load_sweep(
        {
            "zip": [{"scheduler.headroom": [0.8, 1.3], "layout.block_tokens": [4, 8]}],
            "list": [
                {"allocator.kind": "paged"},
                {"allocator": {"kind": "pim-gather", "options": {"repair": 4}}},
            ],
            "seeds": [7],
        }
    )
    assert [fields(config) for config in sweep.configs] == [
        ("paged", 0.8, 4, 7),
        ("pim-gather", 0.8, 4, 7),
        ("paged", 1.3, 8, 7),
        ("pim-gather", 1.3, 8, 7),
    ]
    assert sweep.configs[1].allocator.options.model_dump()["repair"] == 4
    # One table does for one axis.
    once = load_sweep({"zip": {"seed": [1, 2], "scheduler.headroom": [0.8, 1.3]}})
    assert [fields(config)[1::2] for config in once.configs] == [(0.8, 1), (1.3, 2)]


def test_an_axis_may_be_a_whole_table_and_presets_bring_their_values() -> None:
    sweep = load_sweep(
        {"grid": {"allocator": [{"kind": "paged"}, {"kind": "pim-aware", "options": {"plan": "best-fit"}}],
                  "dram.preset": ["hbm3-pim", "gddr6-pim"]}}
    )  # fmt: skip
    assert [config.dram.channels for config in sweep.configs] == [32, 8, 32, 8]
    assert sweep.configs[3].allocator.options.model_dump()["plan"] == "best-fit"


def test_a_spec_without_axes_is_one_point_and_overrides_go_over_its_base() -> None:
    sweep = load_sweep({"base": {"seed": 3, "scheduler.headroom": 0.8}}, overrides={"seed": 5})
    assert [fields(config) for config in sweep.configs] == [("paged", 0.8, None, 5)]


def test_equal_points_are_counted_and_run_once() -> None:
    planned = plan(load_sweep({"grid": {"workload.requests": [1000, 1000], "layout.passes": [1]}}))
    assert (planned.points, len(planned.configs)) == (2, 1)
    assert list(planned.configs.values()) == [load({"workload": {"requests": 1000}, "layout": {"passes": 1}})]
    # What is left out counts as the value that it stands for.
    assert list(planned.configs) == list(plan([load({})]).configs)


def test_every_mistake_is_told_at_once_and_once() -> None:
    told = mistakes(
        {
            "describtion": "x",
            "base": {"scheduler": {"headrom": 1}, "workload": {"trace": "nope.csv"}},
            "grid": {
                "scheduler.headroom": [0.6, -1],
                "scheduler.max_batches": [3],
                "layout.block_tokens": 16,
                "allocator.kind": ["paged", "pim-awar"],
            },
            "zip": [{"model.preset": ["phi-4"], "dram.preset": ["hbm3-pim", "gddr6-pim"]}],
            "list": [{"seed": 3}, {"seed": -4}],
            "seeds": 0,
        },
        overrides={"seed": 3},
    )
    expected = [
        ('describtion = "x"', 'did you mean "description"?'),
        ("grid.scheduler.max_batches", 'did you mean "scheduler.max_batch"?'),
        ("grid.layout.block_tokens = 16", "must be an array"),
        ("zip[0]", "model.preset 1, dram.preset 2"),
        ("seeds = 0", "must be a number of seeds from 1"),
        ("seed = 3", "is an axis of the sweep"),
        ("scheduler.headrom = 1", 'did you mean "scheduler.headroom"?'),
        ("seed = -4", "in 4 of 8 points, such as scheduler.headroom = 0.6"),
        ('allocator.kind = "pim-awar"', 'did you mean "pim-aware"?'),
        ("scheduler.headroom = -1", "in 4 of 8 points"),
        ('workload.trace = "nope.csv"', "No such file"),
    ]
    assert len(told) == len(expected)
    for line, (field, word) in zip(told, expected, strict=True):
        assert line.startswith(field), line
        assert word in line


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"grid": 3}, "grid = 3: is an integer"),
        ({"grid": {"seed": []}}, "grid.seed = []: is empty"),
        ({"grid": {"seed": [1]}, "seeds": 2}, "seed: is set by two axes"),
        ({"grid": {"allocator": [{}], "allocator.kind": ["paged"]}}, "allocator.kind: is set by two axes"),
        ({"list": {"seed": 1}}, "list = "),
        ({"list": [{"sed": 1}]}, 'list[0].sed: the config has no such field; did you mean "seed"?'),
        ({"base": []}, "base = []: is an array"),
        ({"seeds": True}, "seeds = true"),
        ({"description": 1}, "description = 1"),
        ({"grid": {"seed": [0] * 2000}, "zip": {"layout.block_tokens": [16] * 2000}}, "4,000,000 points"),
        ("hedline", 'did you mean "headline"?'),
        ("no/such.toml", "there is no such file"),
    ],
    ids=str,
)
def test_a_mistake_names_its_place(spec: Any, told: str) -> None:
    assert told in "\n".join(mistakes(spec))


def test_a_trace_that_cannot_be_read_is_told_once(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("ContextTokens,GeneratedTokens\n10,many\n")
    told = mistakes({"grid": {"workload.trace": [str(trace)]}, "seeds": 5})
    assert len(told) == 1
    assert "many" in told[0]


def test_a_file_is_read_and_gives_the_sweep_its_name(tmp_path: Path) -> None:
    spec = tmp_path / "mine.toml"
    spec.write_text('description = "d"\nseeds = 3\n[base]\nscheduler.headroom = 0.7\n')
    sweep = load_sweep(spec)
    assert (sweep.name, sweep.description, len(sweep.configs)) == ("mine", "d", 3)


def test_studies_are_listed_with_what_they_show_and_each_loads(shared: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(shared / "traces")
    assert list(studies()) == ["block-size", "headline", "headroom", "models", "queries", "traces", "window"]
    for name, description in studies().items():
        sweep = load_sweep(name)
        assert sweep.description == description
        assert len(plan(sweep).configs) == len(sweep.configs) > 10
