"""The config accepted: presets resolved, sizes derived, objects in Python, merging, files and round trips."""

from __future__ import annotations

import json
import pickle
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimkv.config import (
    EXPERIMENTS,
    Config,
    Dram,
    Layout,
    Model,
    Scheduler,
    command_repeat,
    dumps_toml,
    explicit_map,
    geometry,
    json_schema,
    load,
    merge,
    parse_set,
    passes_of,
    presets,
    read_toml,
    refreshes,
    timing_of,
)
from pimkv.derived import MOST_WASTE, Part, unit_of
from pimkv.errors import ConfigError

fuzz = settings(deadline=None)


# ---- Presets and resolution ------------------------------------------------------------------------------


def test_the_published_defaults() -> None:
    config = load({})
    assert config == Config()
    assert config.dram.capacity_bytes == 8 * 2**30
    assert config.dram.region_bytes == 512 * 2**10
    assert config.dram.ideal_gbps == pytest.approx(3810.2, abs=0.05)
    assert config.model.bytes_per_token == 4096
    assert (config.workload.request_limit, config.workload.rate) == (1000, 0.25)
    traced = load({"workload": {"trace": "a.csv"}}).workload
    assert (traced.request_limit, traced.rate) == (None, None)


def test_explicit_values_win_over_the_preset() -> None:
    dram = load({"dram": {"preset": "gddr6-pim", "channels": 16}}).dram
    assert (dram.channels, dram.row_bytes, dram.preset) == (16, 2048, "gddr6-pim")


@pytest.mark.parametrize("dram", presets("dram"))
@pytest.mark.parametrize("model", presets("model"))
def test_every_preset_resolves_with_every_map(dram: str, model: str) -> None:
    for addrmap in presets("addrmap"):
        config = load({"dram": {"preset": dram}, "model": {"preset": model}, "layout": {"addrmap": addrmap}})
        for section, name in ((config.dram, dram), (config.model, model)):
            entry = presets(section.kind)[name]
            note = entry.pop("note")
            assert note and "\n" not in note
            assert set(entry) <= set(type(section).model_fields)
            # Only a model's latent and window may be left out, and are then 0.
            absent = dict.fromkeys(set(type(section).model_fields) - {"preset", *entry}, 0)
            assert set(absent) <= {"v_dim", "window", "window_layers"}
            assert section.model_dump() == {"preset": name, **entry, **absent}


@pytest.mark.parametrize(
    ("model", "token_bytes"),
    [
        ("llama-gqa-8kv", 4096),
        ("mqa-1kv", 512),
        ("mha-32kv", 16384),
        ("qwen2.5-7b", 2048),
        ("gemma-2-9b", 8192),
        ("phi-4", 5120),
        ("phi-3-mini", 12288),
        ("deepseek-v3", 1152),
    ],
)
def test_model_presets_give_the_bytes_of_a_token(model: str, token_bytes: int) -> None:
    assert Model(preset=model).bytes_per_token == token_bytes


def test_latent_and_sliding_models_say_so() -> None:
    latent = load({"model": {"preset": "deepseek-v3"}})
    assert (latent.model.v_dim, passes_of(latent)) == (512, 2)
    # Read: the whole latent, then 512 elements of it; stored once.
    assert (geometry(latent).token_bytes, geometry(latent).read_bytes) == (1152, 1152 + 1024)
    gemma = Model(preset="gemma-3-12b")
    assert (gemma.window, gemma.window_layers, gemma.layers) == (1024, 40, 48)
    assert (Model().window, Model().window_layers, Model().v_dim) == (0, 0, 0)


@pytest.mark.parametrize(
    ("data", "timing", "refresh", "repeat"),
    [
        ({}, "attacc-hbm3-5.2", True, 1),
        ({"controller": {"refresh": False}}, "attacc-hbm3-5.2", False, 1),
        ({"controller": {"timing": "hbm2-pim"}}, "hbm2-pim", False, 1),
        ({"dram": {"preset": "gddr6-aim"}}, "aim-gddr6", False, 1),
        ({"dram": {"preset": "gddr6-aim", "timing": "attacc-hbm3-6.4"}}, "attacc-hbm3-6.4", True, 1),
        ({"controller": {"queries_per_command": 1}}, "attacc-hbm3-5.2", True, 4),
        ({"controller": {"queries_per_command": 3}}, "attacc-hbm3-5.2", True, 2),
        ({"controller": {"queries_per_command": 4}}, "attacc-hbm3-5.2", True, 1),
    ],
)
def test_what_the_controller_runs(data: Any, timing: str, refresh: bool, repeat: int) -> None:
    config = load(data)
    assert (timing_of(config).name, refreshes(config), command_repeat(config)) == (timing, refresh, repeat)


# ---- Experiments -----------------------------------------------------------------------------------------


def shown(config: Config) -> tuple[str, str, bool, int]:
    """What the realistic experiment changes."""
    return (
        config.layout.kv_layout,
        config.scheduler.admission,
        config.traffic.writes,
        passes_of(config),
    )


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, ("merged-token", "oracle", False, 1)),
        ({"experiment": "published"}, ("merged-token", "oracle", False, 1)),
        ({"experiment": "realistic"}, ("split", "vllm", True, 2)),
        ({"experiment": "realistic", "layout": {"kv_layout": "merged-block"}}, ("merged-block", "vllm", True, 2)),
        ({"experiment": "realistic", "layout": {"kv_layout": "published-split"}}, ("published-split", "vllm", True, 1)),
        (
            {"experiment": "realistic", "layout": {"kv_layout": "merged-token", "passes": 1}},
            ("merged-token", "vllm", True, 1),
        ),
        ({"experiment": "realistic", "scheduler": {"admission": "oracle"}}, ("split", "oracle", True, 2)),
        ({"experiment": "realistic", "traffic": {"writes": False}}, ("split", "vllm", False, 2)),
        ({"experiment": "realistic", "layout": {"block_tokens": 32}, "scheduler": {}}, ("split", "vllm", True, 2)),
        ({"layout": {"kv_layout": "split"}, "traffic": {"writes": True}}, ("split", "oracle", True, 2)),
        ({"layout": {"kv_layout": "merged-block"}}, ("merged-block", "oracle", False, 1)),
        ({"layout": {"kv_layout": "published-split"}}, ("published-split", "oracle", False, 1)),
        ({"layout": {"passes": 2}}, ("merged-token", "oracle", False, 2)),
    ],
)  # fmt: skip
def test_an_experiment_changes_defaults_and_explicit_values_win(data: Any, expected: Any) -> None:
    before = json.dumps(data)
    assert shown(load(data)) == shown(Config(**data)) == expected
    assert json.dumps(data) == before


def test_the_realistic_experiment_changes_nothing_else() -> None:
    realistic = load({"experiment": "realistic"})
    changed = merge(load({}).model_dump(), {"experiment": "realistic", **EXPERIMENTS["realistic"]})
    assert realistic.model_dump() == changed
    assert list(EXPERIMENTS) == ["published", "realistic"]
    assert EXPERIMENTS["published"] == {}


def test_a_section_built_in_python_keeps_its_own_values() -> None:
    config = Config(experiment="realistic", scheduler=Scheduler(max_batch=8))
    assert shown(config) == ("split", "oracle", True, 2)
    assert shown(load(tomllib.loads(dumps_toml(config)))) == shown(config)


def test_presets_are_copies_and_their_kinds_known() -> None:
    presets("dram")["hbm3-pim"]["channels"] = 7
    assert presets("dram")["hbm3-pim"]["channels"] == 32
    with pytest.raises(
        ConfigError, match=r'presets = "drm": no such kind of preset; .* did you mean "dram"\?'
    ):
        presets("drm")


# ---- Explicit address maps --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, "row:14 col:4 bg:2 ba:2 ch:5 col:1"),
        ({"layout": {"addrmap": "host-centric"}}, "row:14 bg:2 ba:2 ch:5 col:5"),
        ({"layout": {"addrmap": "pim-friendly"}}, "ch:5 row:14 col:5 bg:2 ba:2"),
        ({"layout": {"kv_shards": 4}}, "row:14 col:4 bg:2 ba:2 ch:3 col:1"),
        ({"layout": {"addrmap": "pim-friendly", "kv_shards": 8}}, "ch:2 row:14 col:5 bg:2 ba:2"),
        ({"dram": {"preset": "gddr6-pim"}}, "row:14 col:5 bg:2 ba:2 ch:3 col:1"),
        ({"dram": {"cache_line_bytes": 32}}, "row:14 col:5 bg:2 ba:2 ch:5"),
        ({"dram": {"cache_line_bytes": 1024}}, "row:14 bg:2 ba:2 ch:5 col:5"),
        ({"dram": {"bank_groups": 1}}, "row:14 col:4 ba:2 ch:5 col:1"),
        # Shards come off the top channel segment, then off the next.
        (
            {
                "layout": {
                    "addrmap": "ch:1 row:* ch:* col:* bg:* ba:* ch:2;ch^row:0   ba^row:3",
                    "kv_shards": 4,
                }
            },
            "row:14 ch:1 col:5 bg:2 ba:2 ch:2; ch^row:0 ba^row:3",
        ),
        # A channel field of no bits cannot be hashed.
        (
            {
                "layout": {"addrmap": "row:* col:* bg:* ba:* ch:*; ch^row:0", "kv_shards": 2},
                "dram": {"channels": 2},
            },
            "row:14 col:5 bg:2 ba:2",
        ),
    ],
)
def test_explicit_maps(data: Any, expected: str) -> None:
    config = load(data)
    assert explicit_map(config) == expected
    assert config.layout.addrmap == data.get("layout", {}).get("addrmap", "host-cacheline")


# ---- Derived sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "token", "block", "region", "per_region", "capacity"),
    [
        ({}, 4096, 65536, 524288, 8, 131072),
        ({"block_tokens": 0}, 4096, 524288, 524288, 1, 16384),
        ({"block_tokens": 384}, 4096, 3 * 524288, 524288, 1, 5461),
        ({"kv_shards": 8}, 512, 8192, 65536, 8, 131072),
        ({"kv_layout": "published-split"}, 2048, 32768, 524288, 16, 262144),
        ({"kv_layout": "published-split", "block_tokens": 0}, 2048, 524288, 524288, 1, 16384),
        ({"kv_layout": "merged-block"}, 4096, 65536, 524288, 8, 131072),
        # K and V in pools of their own: twice the blocks a region, half the regions each.
        ({"kv_layout": "split"}, 4096, 65536, 524288, 16, 131072),
        ({"stacks": 2}, 2048, 32768, 524288, 16, 262144),
        ({"stacks": 2, "kv_shards": 4}, 512, 8192, 131072, 16, 262144),
        # 5 1/3 blocks a region: 5, and 6.25 % of it stays empty.
        ({"block_tokens": 24}, 4096, 98304, 524288, 5, 5 * 16384),
        # 1 1/3 blocks a region: 4 of them in 3.
        ({"block_tokens": 96}, 4096, 393216, 524288, 4, 4 * (16384 // 3)),
    ],
)
def test_geometry(
    layout: dict[str, Any], token: int, block: int, region: int, per_region: int, capacity: int
) -> None:
    config = load({"layout": layout})
    sizes = geometry(config)
    assert sizes.channels == 32 // config.layout.kv_shards
    assert (sizes.bank_groups, sizes.banks_per_group, sizes.rows) == (4, 4, 16384)
    assert (sizes.token_bytes, sizes.block_bytes, sizes.region_bytes) == (token, block, region)
    assert (sizes.blocks_per_region, sizes.capacity_blocks) == (per_region, capacity)
    assert sizes.block_tokens * sizes.token_bytes == sizes.block_bytes


@pytest.mark.parametrize(
    ("block", "region", "kind", "blocks", "regions", "waste"),
    [
        (16, 64, "exact", 4, 1, 0.0),
        (64, 64, "exact", 1, 1, 0.0),
        (192, 64, "exact", 1, 3, 0.0),
        (12, 64, "padded", 5, 1, 4 / 64),  # 6.25 %
        (24, 64, "span", 8, 3, 0.0),  # 25 % would stay empty
        (93, 100, "padded", 1, 1, 0.07),  # the most that may stay empty
        (92, 100, "span", 25, 23, 0.0),
        (65, 64, "span", 64, 65, 0.0),
        (125, 64, "padded", 1, 2, 3 / 128),
        (1000, 64, "padded", 1, 16, 24 / 1024),
    ],
)
def test_blocks_fill_a_region_a_padded_one_or_a_span(
    block: int, region: int, kind: str, blocks: int, regions: int, waste: float
) -> None:
    unit = unit_of(block, region)
    assert (unit.kind, unit.blocks, unit.regions, unit.bytes) == (kind, blocks, regions, regions * region)
    assert unit.waste == pytest.approx(waste) and unit.waste <= MOST_WASTE == 0.07


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ({"model": {"preset": "phi-4"}}, "padded"),
        ({"model": {"preset": "phi-3-mini"}}, "span"),
        ({"model": {"preset": "deepseek-v3"}}, "padded"),
        ({"layout": {"block_tokens": 24}}, "padded"),
        ({"layout": {"block_tokens": 96}}, "span"),
        ({"layout": {"block_tokens": 384}}, "exact"),
    ],
)
def test_no_block_size_is_refused_for_not_dividing_a_region(data: Any, kind: str) -> None:
    for kv_layout in ("merged-token", "merged-block", "split"):
        sizes = geometry(load(merge(data, {"layout": {"kv_layout": kv_layout}})))
        assert sizes.unit == unit_of(sizes.block_bytes // sizes.tensors, sizes.region_bytes)
        if kv_layout != "split":
            assert sizes.unit.kind == kind


def test_where_each_pass_finds_a_token() -> None:
    def passes(**data: Any) -> list[list[Part]]:
        config = load(data)
        return geometry(config).passes(config, 20)

    token, block, region = 4096, 65536, 524288
    half = token // 2
    assert passes() == [[(0, token, token, block, region)]]
    assert passes(layout={"passes": 2}) == [
        [(0, token, half, block, region)],
        [(half, token, half, block, region)],
    ]
    k, v = (0, half, half, block, region), (block // 2, half, half, block, region)
    assert passes(layout={"kv_layout": "merged-block"}) == [[k, v]]
    assert passes(layout={"kv_layout": "merged-block", "passes": 2}) == [[k], [v]]
    # Twenty blocks of K fill two regions of sixteen; V begins behind them.
    k, v = (0, half, half, block // 2, region), (2 * region, half, half, block // 2, region)
    assert passes(layout={"kv_layout": "split"}) == [[k], [v]]
    latent = (1152, 1152 * 16, region)
    assert passes(model={"preset": "deepseek-v3"}) == [
        [(0, latent[0], 1152, *latent[1:])],
        [(0, latent[0], 1024, *latent[1:])],
    ]
    assert passes(layout={"kv_layout": "published-split"}) == [[(0, half, half, block // 2, region)]]


# ---- Built in Python -------------------------------------------------------------------------------------


def test_python_objects_check_the_same_as_tables() -> None:
    built = Config(seed=3, dram=Dram(preset="gddr6-pim", channels=16), layout=Layout(block_tokens=0))
    assert built == load(
        {"seed": 3, "dram": {"preset": "gddr6-pim", "channels": 16}, "layout": {"block_tokens": 0}}
    )
    with pytest.raises(ConfigError, match=r"rows = 1000: is not a power of two") as caught:
        Dram(rows=1000, chanels=3)  # type: ignore[call-arg]
    assert len(caught.value.problems) == 2
    with pytest.raises(ConfigError, match=r"layout\.kv_shards = 16: does not divide model\.kv_heads"):
        Config(layout=Layout(kv_shards=16))
    with pytest.raises(ConfigError, match=r"dram = Model.* is of type Model; must be a table"):
        Config(dram=Model())


def test_a_config_is_frozen_hashable_and_survives_pickling() -> None:
    config = load({"allocator": {"kind": "pim-aware"}})
    with pytest.raises(ValueError, match="frozen"):
        config.dram.rows = 5  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(config)) == config
    assert len({config, load({"allocator": {"kind": "pim-aware"}}), load({})}) == 2


def test_the_input_is_left_alone() -> None:
    data = {"dram": {"preset": "gddr6-pim"}, "allocator": {"options": {}}}
    before = json.dumps(data)
    load(data)
    merge(data, {"dram": {"channels": 4}, "seed": 1})["dram"]["rows"] = 3
    assert json.dumps(data) == before


# ---- Merging and --set -----------------------------------------------------------------------------------


def test_merge_lays_tables_over_tables() -> None:
    assert merge({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 5, "e": {"f": 6}}, "d": 7}) == {
        "a": {"b": 5, "c": 2, "e": {"f": 6}},
        "d": 7,
    }


def test_a_resolved_config_can_change_its_preset() -> None:
    resolved = load({"dram": {"rows": 8192}}).model_dump()
    dram = load(merge(resolved, {"dram": {"preset": "gddr6-aim"}})).dram
    assert dram == Dram(preset="gddr6-aim", rows=8192)


def test_merging_hides_no_mistake() -> None:
    one = {"model": {"preset": "mqa-1kv", "kv_heads": True}}
    for base, override, said in (
        ({"scheduler": 5}, {"scheduler": {"max_batch": 4}}, "^scheduler = 5: "),
        ({"scheduler": {"max_batch": 4}}, {"scheduler": 5}, "^scheduler = 5: "),
        (one, {"model": {"preset": "mha-32kv"}}, r"^model\.kv_heads = true: "),
        ({"dram": {"preset": []}}, {"dram": {"rows": 8192}}, r"^dram\.preset = \[\]: "),
    ):
        with pytest.raises(ConfigError, match=said):
            load(merge(base, override))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed=5", {"seed": 5}),
        ("a.b=c", {"a": {"b": "c"}}),
        ("a . b = 1.5 ", {"a": {"b": 1.5}}),
        ("a.b=true", {"a": {"b": True}}),
        ('a.b="5"', {"a": {"b": "5"}}),
        ("a.b=[1, 2]", {"a": {"b": [1, 2]}}),
        ("a.b={c = 1}", {"a": {"b": {"c": 1}}}),
        ("a.b=", {"a": {"b": ""}}),
        ("a.b=row:* col:5; ba^row:2", {"a": {"b": "row:* col:5; ba^row:2"}}),
        ("a.b=x=y", {"a": {"b": "x=y"}}),
        ("a.b=1 # no comment", {"a": {"b": "1 # no comment"}}),
        ("a.b=1\nc=2", {"a": {"b": "1\nc=2"}}),
        ("a.b=1,", {"a": {"b": "1,"}}),
    ],
)
def test_set_values_are_toml_or_else_strings(text: str, expected: Any) -> None:
    assert parse_set(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scheduler.max_batch", 'has no "="'),
        ("=5", 'has no proper key before "="'),
        ("a..b=5", "has no proper key"),
        ("a b=5", "has no proper key"),
    ],
)
def test_set_without_key_or_equals(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_set(text)
    assert (
        str(caught.value)
        == f'--set "{text}": {said}'
        + ("" if said.endswith('"="') else ' before "="')
        + "; write section.key=value, as in --set scheduler.max_batch=32"
    )


# ---- Files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"seed = 1\nscheduler = = 3\n", "malformed TOML: Invalid value (at line 2, column 13)"),
        (b"seed = 1\nseed = 2\n", "malformed TOML: Cannot overwrite a value (at line 2, column 9)"),
        (b"seed = 1\n[dram", "(at line 2, the end of the file)"),
        (b"seed = 1\n# \xff\n", "is not UTF-8 text (at line 2)"),
        (b"a = " + b"[" * 100_000, "malformed TOML"),
        (b"seed = " + b"9" * 5000, "malformed TOML"),
    ],
)
def test_a_malformed_file_is_refused_with_path_and_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_toml(path)
    assert str(caught.value).startswith(f"{path}: ") and said in str(caught.value)
    assert caught.value.problems[0].field == str(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path, "is a directory, not a TOML file"),
        (tmp_path / "no.toml", "there is no such file"),
        (tmp_path / "no\n.toml", "there is no such file"),
        (tmp_path / "nul\0.toml", "cannot be read"),
    ):
        with pytest.raises(ConfigError) as caught:
            read_toml(path)
        assert said in str(caught.value) and str(caught.value).isprintable()


def test_a_file_gives_its_tables(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('seed = 7\n[dram]\npreset = "gddr6-pim"\n')
    assert read_toml(str(path)) == {"seed": 7, "dram": {"preset": "gddr6-pim"}}


def test_the_resolved_config_shows_every_value() -> None:
    config = load({"workload": {"trace": 'a "b" \\ é \x7f\n.csv'}, "scheduler": {"headroom": 1e-7}})
    text = dumps_toml(config)
    assert text.startswith('seed = 0\nexperiment = "published"\n\n[workload]\nkind = "steady"\n')
    assert '\n[dram]\npreset = "hbm3-pim"\nchannels = 32\n' in text
    shown = tomllib.loads(text)
    # TOML has no null: a field is absent exactly where it has no value, and only where that is its default.
    for name, values in config.model_dump().items():
        if isinstance(values, dict):
            section = getattr(config, name)
            absent = {field for field in values if field not in shown.get(name, {})}
            assert absent == {field for field, value in values.items() if value is None} | (
                {"options"} if name == "allocator" else set()
            )
            for field in absent - {"options"}:
                assert type(section).model_fields[field].default is None
            shown.setdefault(name, {}).update(dict.fromkeys(absent))
    shown["allocator"]["options"] = {}
    assert shown == config.model_dump()
    assert load(tomllib.loads(text)) == config


def test_the_schema_lists_every_option_with_its_range() -> None:
    schema = json_schema()
    assert list(schema["properties"]) == list(Config.model_fields)
    json.dumps(schema)
    for table in (schema, *schema["$defs"].values()):
        assert table["additionalProperties"] is False and "required" not in table
        for field in table["properties"].values():
            assert field["description"]
    assert schema["$defs"]["Model"]["properties"]["preset"]["enum"] == list(presets("model"))
    dram = schema["$defs"]["Dram"]["properties"]
    assert dram["preset"]["enum"] == list(presets("dram"))
    assert dram["rows"] == {
        "description": "rows of a bank, a power of two", "maximum": 2**22, "minimum": 1, "title": "Rows",
        "type": "integer",
    }  # fmt: skip


# ---- Properties ------------------------------------------------------------------------------------------


def powers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high).map(lambda exponent: 1 << exponent)


def some(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=strategies)


good = some(
    seed=st.integers(0, 2**32 - 1),
    experiment=st.sampled_from(["published", "realistic"]),
    workload=some(
        trace=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
        step_ms=st.floats(1e-300, 1e300),
        requests=st.integers(1, 10**6),
        arrival_rate=st.floats(1e-300, 1e300),
    ),
    model=some(preset=st.sampled_from(["llama-gqa-8kv", "mha-32kv", "llama-3-70b", "gpt-oss-20b", "phi-3-mini"])),
    dram=some(
        preset=st.sampled_from(list(presets("dram"))),
        channels=powers(3, 12),
        bank_groups=powers(0, 5),
        rows=powers(14, 22),
        row_bytes=powers(9, 18),
        cache_line_bytes=powers(5, 9),
        tccd_ns=st.floats(0.001, 1e6),
    ),
    layout=some(
        addrmap=st.sampled_from([*presets("addrmap"), "row:2 ch:1 col:* row:* bg:* ba:* ch:*; ba^row:2 ch^row:0"]),
        kv_layout=st.sampled_from(["merged-token", "merged-block", "split", "published-split"]),
        traversal=st.sampled_from(["token", "row", "row-batch"]),
        block_tokens=st.integers(0, 200) | powers(8, 16),
        kv_shards=powers(0, 3),
    ),
    allocator=some(kind=st.sampled_from(["paged", "random", "pim-aware"])),
    speculation=some(accept=st.floats(0, 1), adopt=st.sampled_from(["splice", "copyback"])),
    controller=some(
        timing=st.sampled_from(list(presets("timing"))), refresh=st.none() | st.just(False), queue=st.integers(1, 64)
    ),
    traffic=some(writes=st.booleans()),
    scheduler=some(max_batch=st.integers(1, 65536), headroom=st.floats(1e-300, 1e300)),
    scoring=some(coalesce=st.sampled_from(["window", "inorder"]), window=st.integers(1, 65536)),
)  # fmt: skip


@fuzz
@given(good)
def test_a_resolved_config_loads_to_itself_from_toml_and_json(data: dict[str, Any]) -> None:
    config = load(data)
    assert load(tomllib.loads(dumps_toml(config))) == config
    assert load(json.loads(config.model_dump_json())) == config
    assert load(merge(config.model_dump(), data)) == config
    assert dumps_toml(load(tomllib.loads(dumps_toml(config)))) == dumps_toml(config)


@fuzz
@given(good)
def test_the_explicit_map_covers_one_shard_exactly(data: dict[str, Any]) -> None:
    config = load(data)
    sizes = geometry(config)
    counted = dict.fromkeys(("row", "col", "bg", "ba", "ch"), 0)
    for segment in explicit_map(config).partition(";")[0].split():
        field, width = segment.split(":")
        assert int(width) > 0
        counted[field] += int(width)
    assert {field: 1 << bits for field, bits in counted.items()} == {
        "row": sizes.rows,
        "col": sizes.row_bytes // sizes.burst_bytes,
        "bg": sizes.bank_groups,
        "ba": sizes.banks_per_group,
        "ch": sizes.channels,
    }
    assert sizes.unit.bytes % sizes.region_bytes == 0
    assert sizes.unit.blocks * sizes.block_bytes // sizes.tensors <= sizes.unit.bytes
    assert sizes.token_bytes % sizes.burst_bytes == 0


@fuzz
@given(st.text() | st.builds("{}={}".format, st.sampled_from(["seed", "a.b"]), st.text()))
def test_any_set_gives_a_table_or_a_report(text: str) -> None:
    key, equals, _ = text.partition("=")
    word = r"\s*[A-Za-z0-9_-]+\s*"
    if equals and re.fullmatch(rf"{word}(\.{word})*", key):
        assert len(parse_set(text)) == 1
    else:
        with pytest.raises(ConfigError) as caught:
            parse_set(text)
        assert len(caught.value.problems) == 1 and str(caught.value).isprintable()
