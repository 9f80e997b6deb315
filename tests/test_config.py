"""The config refused: every mistake in one report, each line with what is wrong, allowed and meant."""

from __future__ import annotations

import math
import pickle
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimkv import presets as preset_files
from pimkv.allocators import kinds
from pimkv.config import (
    AllocatorOptions,
    Config,
    ContiguousOptions,
    PimAwareOptions,
    RandomOptions,
    explicit_map,
    geometry,
    load,
    merge,
    parse_set,
    timing_of,
)
from pimkv.errors import ConfigError, Problem

SECTIONS = (
    "workload", "model", "dram", "layout", "allocator", "speculation", "scheduler", "scoring", "controller", "traffic",
)  # fmt: skip
fuzz = settings(deadline=None)


def refuse(data: Any, **keywords: Any) -> ConfigError:
    """The error `load` raises; checks what holds for every report."""
    with pytest.raises(ConfigError) as caught:
        load(data, **keywords)
    error = caught.value
    lines = str(error).split("\n")
    assert len(lines) == len(error.problems) >= 1
    for line, problem in zip(lines, error.problems, strict=True):
        assert line.startswith(problem.field)
        assert problem.message in line and problem.hint in line and problem.flag in line
        assert line.isprintable()
    for jargon in ("pydantic", "http", "validation error", "Input should", "input_value", "type="):
        assert jargon not in str(error)
    return error


def fields(data: Any) -> list[str]:
    return [problem.field for problem in refuse(data).problems]


def only(data: Any) -> str:
    """The one line of a report on one mistake."""
    error = refuse(data)
    assert len(error.problems) == 1, str(error)
    return str(error)


# ---- All mistakes in one report --------------------------------------------------------------------------


def test_four_mistakes_give_four_lines_with_their_flags() -> None:
    error = refuse(
        {
            "seed": -1,
            "dram": {"preset": "hbm3-pimm"},
            "layout": {"block_tokens": -24},
            "scheduler": {"headroom": math.nan},
        },
        sources={"dram.preset": "--dram", "layout.block_tokens": "--block-tokens", "seed": "--seed"},
    )
    seed, dram, block, headroom = str(error).split("\n")
    assert seed == "seed = -1 (--seed): is too small; must be an integer from 0 to 4294967295"
    assert dram == (
        'dram.preset = "hbm3-pimm" (--dram): unknown; choose from hbm3-pim, gddr6-pim, gddr6-aim, hbm2-pim, '
        'hbm2-neupims; did you mean "hbm3-pim"?'
    )
    assert block == (
        "layout.block_tokens = -24 (--block-tokens): is too small; must be an integer from 0 to 1048576, "
        "or left out"
    )
    assert headroom == "scheduler.headroom = nan: is not finite; must be a finite number above 0"


def test_problems_carry_the_parts_of_a_line() -> None:
    error = refuse({"scheduler": {"max_batch": True}}, sources={"scheduler.max_batch": "--max-batch"})
    assert error.problems == [
        Problem(
            "scheduler.max_batch", True, "is a boolean; must be an integer from 1 to 65536", "", "--max-batch"
        )
    ]


def test_lines_come_in_the_order_of_the_config_unknown_keys_with_their_table() -> None:
    data = {
        "scoring": {"window": 0},
        "scheduler": {"max_batch": 0, "bacth": 1},
        "layout": {"kv_shards": 3},
        "sed": 1,
        "seed": 1.5,
    }
    assert fields(data) == [
        "sed", "seed", "layout.kv_shards", "scheduler.bacth", "scheduler.max_batch", "scoring.window",
    ]  # fmt: skip


def test_earlier_problems_come_first() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_set("scheduler.max_batch")
    error = refuse({"seed": -1}, problems=caught.value.problems)
    assert [problem.field for problem in error.problems] == ["--set", "seed"]
    refuse({}, problems=caught.value.problems)


def test_errors_survive_pickling() -> None:
    error = refuse({"seed": -1, "scheduler": 5})
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.problems) == (str(error), error.problems)
    assert ConfigError("a message alone").problems == []


# ---- Keys, types, ranges ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "field", "hint"),
    [
        ({"allocatr": {"kind": "pim-aware"}}, "allocatr", 'did you mean "allocator"?'),
        ({"scheduler": {"max_bacth": 8}}, "scheduler.max_bacth", 'did you mean "scheduler.max_batch"?'),
        ({"max_batch": 8}, "max_batch", 'did you mean "scheduler.max_batch"?'),
        ({"layout": {"channels": 8}}, "layout.channels", 'did you mean "dram.channels"?'),
        ({"layout": {"preset": 8}}, "layout.preset", 'did you mean "model.preset" or "dram.preset"?'),
        (
            {"allocator": {"options": {"windw": 1}}},
            "allocator.options.windw",
            'did you mean "model.window" or "scoring.window"?',
        ),
        ({"scoring": {"queue": 8}}, "scoring.queue", 'did you mean "controller.queue"?'),
        ({"layout": {"writes": True}}, "layout.writes", 'did you mean "traffic.writes"?'),
        ({"model": {"widow": 8}}, "model.widow", 'did you mean "model.window"?'),
        ({"scoring": {"zzz": 8}}, "scoring.zzz", ""),
        ({1: 2}, "1", ""),
        ({"a\nb": 2}, '"a\\nb"', ""),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(data: Any, field: str, hint: str) -> None:
    error = refuse(data)
    (problem,) = error.problems
    assert (problem.field, problem.hint) == (field, hint)
    assert problem.message.startswith("unknown key; ")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("paged", AllocatorOptions),
        ("contiguous", ContiguousOptions),
        ("random", RandomOptions),
        ("pim-aware", PimAwareOptions),
    ],
)
def test_allocator_options_are_those_of_the_kind(kind: str, expected: type[AllocatorOptions]) -> None:
    options = load({"allocator": {"kind": kind, "options": {}}}).allocator.options
    assert type(options) is expected
    assert (options.regions, options.spans, options.draws) == (
        kind == "pim-aware",
        kind == "contiguous",
        kind == "random",
    )
    line = only({"allocator": {"kind": kind, "options": {"scratsh": 1}}})
    assert ("this table takes none" in line) == (kind != "pim-aware")
    assert ("choose from scratch, plan, compact" in line) == (kind == "pim-aware")


def test_options_of_an_unknown_allocator_are_not_judged() -> None:
    line = only({"allocator": {"kind": "pim_aware", "options": {"scratch": 1}}})
    assert line == (
        f'allocator.kind = "pim_aware": unknown; choose from {", ".join(kinds())}; did you mean "pim-aware"?'
    )


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("scheduler", "max_batch", True, "= true: is a boolean; must be an integer from 1 to 65536"),
        ("scheduler", "max_batch", "64", '= "64": is a string; must be an integer'),
        ("scheduler", "max_batch", 64.0, "= 64.0: is a float; must be an integer from 1 to 65536; did you mean 64?"),
        ("scheduler", "max_batch", 64.5, "= 64.5: is a float; must be an integer from 1 to 65536"),
        ("scheduler", "max_batch", [64], "= [64]: is an array; must be"),
        ("scheduler", "max_batch", {"a": 1}, "= {a = 1}: is a table; must be"),
        ("scheduler", "max_batch", None, ": is None; must be an integer"),
        ("scheduler", "max_batch", 0, "= 0: is too small"),
        ("scheduler", "max_batch", 65537, "= 65537: is too large"),
        ("scheduler", "pool_blocks", 2**31 + 1, "must be an integer from 0 to 2147483648"),
        ("scheduler", "headroom", math.inf, "= inf: is not finite"),
        ("scheduler", "headroom", 0, "= 0: is too small; must be a finite number above 0"),
        ("scheduler", "headroom", False, "= false: is a boolean"),
        ("scheduler", "headroom", 10**400, "is too large; must be a finite number"),
        ("scheduler", "admission", "vlm", '= "vlm": unknown; choose from oracle, vllm; did you mean "vllm"?'),
        ("scheduler", "admission", 5, "= 5: is an integer; choose from oracle, vllm"),
        ("workload", "requests", 1_000_001, "must be an integer from 1 to 1000000, or left out"),
        ("workload", "trace", "", '= "": is empty'),
        ("workload", "trace", Path("a.csv"), "is of type PosixPath; must be a string"),
        ("workload", "trace", "\udcff", "is not valid Unicode"),
        ("workload", "trace", tomllib.loads("d = 2024-01-02")["d"], "= 2024-01-02: is a date or time"),
        ("workload", "step_ms", -1.0, "= -1.0: is too small"),
        ("workload", "arrival_rate", 0.0, "or left out"),
        ("dram", "rows", 1000, "is not a power of two; must be a power of two from 1 to 4194304; did you mean 1024?"),
        ("dram", "rows", 2**23, "is too large; must be a power of two from 1 to 4194304"),
        ("dram", "channels", 33.0, "is a float; must be a power of two from 1 to 4096; did you mean 32?"),
        ("dram", "tccd_ns", "4", '= "4": is a string; must be a finite number from 0.001 to 1000000'),
        ("dram", "preset", 3, "= 3: is an integer; choose from hbm3-pim"),
        ("model", "preset", "llama-gqa", 'did you mean "llama-gqa-8kv"?'),
        ("model", "preset", "Qwen3_8B", 'did you mean "qwen3-8b"?'),
        ("layout", "block_tokens", 2**21, "is too large; must be an integer from 0 to 1048576, or left out"),
        ("layout", "kv_layout", "splt", '= "splt": unknown; choose from merged-token, merged-block, split, published-split; did you mean "split"?'),
        ("layout", "kv_layout", "merged", 'did you mean "merged-token"?'),
        ("layout", "passes", 3, "is too large; must be an integer from 1 to 2, or left out"),
        ("layout", "passes", True, "= true: is a boolean"),
        ("layout", "traversal", "rows", 'choose from token, row, row-batch; did you mean "row"?'),
        ("layout", "stacks", 0, "is too small; must be an integer from 1 to 1024"),
        ("model", "v_dim", -1, "is too small; must be an integer from 0 to 65536"),
        ("model", "window", 2**31 + 1, "must be an integer from 0 to 2147483648"),
        ("dram", "pin_gbps", 0, "is too small; must be a finite number from 0.001 to 1000000000"),
        ("dram", "pch_per_command", 3, "is too large; must be an integer from 1 to 2"),
        ("dram", "timing", "", '= "": is empty'),
        ("speculation", "accept", 1.5, "is too large; must be a finite number from 0 to 1"),
        ("speculation", "adopt", "copy-back", 'choose from splice, copyback; did you mean "copyback"?'),
        ("speculation", "width", 0, "is too small"),
        ("controller", "queue", 0, "is too small; must be an integer from 1 to 64"),
        ("controller", "queue", 65, "is too large; must be an integer from 1 to 64"),
        ("controller", "feed", "pared", 'choose from paired, per-pch; did you mean "paired"?'),
        ("controller", "refresh", "on", '= "on": is a string; must be true or false, or left out'),
        ("controller", "queries_per_command", 0, "must be an integer from 1 to 65536, or left out"),
        ("traffic", "writes", 1, "= 1: is an integer; must be true or false"),
        ("scoring", "coalesce", "in-order", 'did you mean "inorder"?'),
    ],
)  # fmt: skip
def test_a_bad_value_is_shown_with_what_is_allowed(section: str, key: str, value: Any, said: str) -> None:
    line = only({section: {key: value}})
    assert line.startswith(f"{section}.{key}")
    assert said in line
    assert len(line) < 400


def test_a_value_too_long_to_print_is_shortened() -> None:
    line = only({"scheduler": {"max_batch": 10**5000}})
    assert " ... " in line and len(line) < 200


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("value", [5, [{"a": 1}], "x", None])
def test_a_section_must_be_a_table(section: str, value: Any) -> None:
    line = only({section: value})
    assert line.startswith(section) and "; must be a table with keys " in line


def test_set_of_a_whole_section_is_refused_by_load() -> None:
    assert only(parse_set("scheduler=5")).startswith(
        "scheduler = 5: is an integer; must be a table with keys "
    )


def test_the_config_itself_must_be_a_table() -> None:
    assert only(5).startswith("config = 5: is an integer; must be a table with keys seed, ")


# ---- Checks across fields --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"model": {"preset": "mha-32kv"}, "layout": {"block_tokens": 2**20}},
            "a block of 1048576 tokens needs 32768 rows; the DRAM has 16384; did you mean 524288?",
        ),
        (
            {"model": {"preset": "mha-32kv"}, "layout": {"block_tokens": 24}, "dram": {"rows": 2}},
            "4 blocks of 24 tokens, the fewest that fill whole rows, need 3 rows; the DRAM has 2; did you mean 32?",
        ),
        (
            {"layout": {"kv_layout": "split", "block_tokens": 512}, "dram": {"rows": 2}},
            "a block of 512 tokens needs 4 rows for K and V; the DRAM has 2; did you mean 256?",
        ),
    ],
)
def test_a_block_that_takes_more_rows_than_there_are_is_refused(data: Any, said: str) -> None:
    line = only(data)
    assert line == f"layout.block_tokens = {data['layout']['block_tokens']}: {said}"
    better = int(said.rpartition(" ")[2].rstrip("?"))
    geometry(load(merge(data, {"layout": {"block_tokens": better}})))
    load(merge(data, {"dram": {"rows": 2**15}}))


def test_pools_of_k_and_v_need_a_row_each() -> None:
    data = {"layout": {"kv_layout": "split"}, "dram": {"rows": 1}}
    line = only(data)
    # No other block would do, so none is proposed.
    assert line.endswith("need 2 rows for K and V; the DRAM has 1")
    load(merge(data, {"layout": {"kv_layout": "merged-token"}}))


def test_a_derived_block_beyond_the_largest_is_refused() -> None:
    big = {"row_bytes": 2**18, "channels": 2**12, "bank_groups": 32, "banks_per_group": 32}
    line = only({"dram": big, "layout": {"block_tokens": 0}})
    assert line == "layout.block_tokens = 0: a region has 268435456 tokens of 4096 bytes; at most 1048576"


def test_a_token_must_be_whole_bursts() -> None:
    line = only({"model": {"kv_heads": 1, "head_dim": 3}})
    assert "2 x kv_heads 1 x head_dim 3 x dtype_bytes 2 = 12 bytes, not whole bursts" in line
    assert line.endswith("must be a multiple of 8; did you mean 8?")
    split = {
        "model": {"kv_heads": 2, "head_dim": 8},
        "layout": {"kv_shards": 2, "kv_layout": "published-split"},
    }
    line = only(split)
    assert "/ kv_shards 2 / 2 (published-split) = 16 bytes" in line and line.endswith("did you mean 16?")
    load(merge(split, {"model": {"head_dim": 16}}))
    line = only({"model": {"kv_heads": 2, "head_dim": 1, "dtype_bytes": 8}, "layout": {"stacks": 2}})
    assert "dtype_bytes 8 / stacks 2 = 16 bytes" in line and line.endswith("did you mean 2?")
    line = only({"model": {"preset": "deepseek-v3", "head_dim": 577}})
    assert "one token takes kv_heads 1 x head_dim 577 x dtype_bytes 2 = 1154 bytes" in line
    assert line.endswith("did you mean 592?")


@pytest.mark.parametrize(
    "layout",
    [{"kv_layout": "split"}, {"kv_layout": "merged-block"}, {"passes": 2}, {"kv_layout": "merged-block", "passes": 1}],
)  # fmt: skip
def test_where_k_and_v_lie_apart_each_must_be_whole_bursts(layout: dict[str, Any]) -> None:
    model = {"kv_heads": 1, "head_dim": 8}
    load({"model": model})  # one burst of K and V together
    line = only({"model": model, "layout": layout})
    assert "= 32 bytes, K and V 16 each, not whole bursts of dram.burst_bytes = 32" in line
    assert line.endswith("must be a multiple of 16; did you mean 16?")
    load({"model": {**model, "head_dim": 16}, "layout": layout})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"layout": {"kv_shards": 3}}, "is not a power of two, does not divide dram.channels = 32"),
        ({"layout": {"kv_shards": 16}}, "does not divide model.kv_heads = 8; choose from 1, 2, 4, 8; did you mean 8?"),
        ({"layout": {"kv_shards": 8}, "dram": {"channels": 4}}, "does not divide dram.channels = 4; choose from 1, 2, 4"),
        # Whatever the model turns out to be, three is no number of shards.
        ({"layout": {"kv_shards": 3}, "model": {"kv_heads": 0}}, "is not a power of two, does not divide dram.channels"),
    ],
)  # fmt: skip
def test_shards_must_divide_channels_and_heads(data: Any, said: str) -> None:
    assert said in str(refuse(data))


def test_query_heads_must_share_kv_heads_evenly() -> None:
    line = only({"model": {"kv_heads": 64}})
    assert line.startswith("model.query_heads = 32: must be a multiple of model.kv_heads = 64")
    assert line.endswith("did you mean 64?")


def test_a_pool_must_fit_the_dram() -> None:
    line = only({"scheduler": {"pool_blocks": 131073}})
    assert "131073 blocks of 65536 bytes are more than the DRAM's 8589934592 bytes; at most 131072" in line
    load({"scheduler": {"pool_blocks": 131072}})
    # Shards and the split proxy change the block and the DRAM alike, or the block alone.
    load({"scheduler": {"pool_blocks": 131072}, "layout": {"kv_shards": 8}})
    load({"scheduler": {"pool_blocks": 262144}, "layout": {"kv_layout": "published-split"}})


@pytest.mark.parametrize(
    ("dram", "said"),
    [
        ({"cache_line_bytes": 16}, "dram.cache_line_bytes = 16: a cache line is smaller than a burst"),
        ({"cache_line_bytes": 2048}, "dram.cache_line_bytes = 2048: a cache line is larger than a row of one bank"),
        ({"burst_bytes": 2048}, "dram.burst_bytes = 2048: a burst is larger than a row; at most dram.row_bytes = 1024"),
    ],
)  # fmt: skip
def test_burst_line_and_row_must_nest(dram: dict[str, int], said: str) -> None:
    assert said in only({"dram": dram})


def test_a_model_that_cannot_run_yet_is_refused_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    load({"model": {"preset": "phi-4"}})
    monkeypatch.setitem(preset_files._read("model")["phi-4"], "needs", "its heads are not supported yet")
    line = only({"model": {"preset": "phi-4"}})
    assert line.startswith('model.preset = "phi-4": its heads are not supported yet; choose from llama-gqa')
    assert "phi-4" not in line.partition("choose from")[2] and "phi-3-mini" in line


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"layout": {"passes": 1, "kv_layout": "split"}},
            "layout.passes = 1: K and V in pools of their own are two streams; leave it out, or 2",
        ),
        (
            {"layout": {"passes": 1}, "experiment": "realistic"},
            "layout.passes = 1: K and V in pools of their own are two streams; leave it out, or 2",
        ),
        (
            {"layout": {"passes": 1}, "model": {"preset": "deepseek-v3"}},
            "layout.passes = 1: softmax stands between the two reads of a latent stream; leave it out, or 2",
        ),
        (
            {"layout": {"passes": 2, "kv_layout": "published-split"}},
            "layout.passes = 2: the study's proxy halves a token and reads it once; leave it out, or 1",
        ),
        (
            {"layout": {"kv_layout": "published-split"}, "model": {"preset": "deepseek-v3"}},
            'layout.kv_layout = "published-split": a latent stream has no half to leave out; '
            "choose merged-token, merged-block or split",
        ),
        (
            {"model": {"v_dim": 1040}},
            "model.v_dim = 1040: the V pass reads part of the latent; at most 1024",
        ),
        (
            {"model": {"v_dim": 1024}, "layout": {"stacks": 2, "kv_shards": 2}},
            "model.v_dim = 1024: the V pass reads part of the latent; at most 256",
        ),
        (
            {"model": {"v_dim": 3}},
            "model.v_dim = 3: 6 bytes are not whole bursts of dram.burst_bytes = 32",
        ),
        (
            {"model": {"window": 4096}},
            "model.window_layers = 0: a sliding window needs both model.window and model.window_layers above 0",
        ),
        (
            {"model": {"window_layers": 4}},
            "model.window = 0: a sliding window needs both model.window and model.window_layers above 0",
        ),
        (
            {"model": {"preset": "gemma-2-9b", "layers": 20, "window_layers": 21}},
            "model.window_layers = 21: more than model.layers = 20",
        ),
        (
            {"layout": {"stacks": 3}},
            "layout.stacks = 3: does not divide the 8 KV heads of a shard; choose from 1, 2, 4, 8",
        ),
        (
            {"layout": {"stacks": 4, "kv_shards": 4}},
            "layout.stacks = 4: does not divide the 2 KV heads of a shard; choose from 1, 2",
        ),
        (
            {"controller": {"queries_per_command": 9}},
            "controller.queries_per_command = 9: a KV head has 4 query heads; must be an integer from 1 to 4; "
            "did you mean 4?",
        ),
        (
            {"controller": {"refresh": True}, "dram": {"preset": "gddr6-aim"}},
            "controller.refresh = true: aim-gddr6 has no public refresh figures (nREFI, nRFC); "
            "leave it out or switch it off",
        ),
        (
            {"controller": {"refresh": True, "timing": "hbm2-pim"}},
            "controller.refresh = true: hbm2-pim has no public refresh figures (nREFI, nRFC); "
            "leave it out or switch it off",
        ),
        (
            {"scheduler": {"admission": "vllm"}, "allocator": {"kind": "contiguous"}},
            'scheduler.admission = "vllm": is not defined for the contiguous allocator, which reserves the final '
            "length; choose oracle",
        ),
        (
            {"experiment": "realistic", "allocator": {"kind": "contiguous"}},
            'scheduler.admission = "vllm": is not defined for the contiguous allocator, which reserves the final '
            "length; choose oracle",
        ),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_together_are_refused_in_one_line(data: Any, said: str) -> None:
    assert only(data) == said


@pytest.mark.parametrize(
    "data",
    [
        {"layout": {"passes": 1, "kv_layout": "merged-block"}},
        {"layout": {"passes": 2, "kv_layout": "split"}},
        {"layout": {"passes": 1, "kv_layout": "published-split"}},
        {"layout": {"passes": 1, "kv_layout": "merged-token"}, "experiment": "realistic"},
        {"layout": {"kv_layout": "published-split"}, "experiment": "realistic"},
        {"layout": {"stacks": 2, "kv_shards": 4}},
        {"model": {"v_dim": 1024}},
        {"model": {"window": 4096, "window_layers": 32}},
        {"controller": {"queries_per_command": 4}},
        {"controller": {"refresh": True, "timing": "attacc-hbm3-4.8"}, "dram": {"preset": "gddr6-aim"}},
        {"controller": {"refresh": False}, "dram": {"preset": "gddr6-aim"}},
        {"scheduler": {"admission": "oracle"}, "allocator": {"kind": "contiguous"}, "experiment": "realistic"},
        {"scheduler": {"admission": "vllm"}, "allocator": {"kind": "random"}},
    ],
)  # fmt: skip
def test_what_is_just_allowed_loads(data: Any) -> None:
    load(data)


@pytest.mark.parametrize("field", ["controller.timing", "dram.timing"])
def test_an_unknown_timing_is_refused_with_the_nearest_one(field: str) -> None:
    line = only(parse_set(f"{field}=attacc-hbm3-4.9"))
    assert line.startswith(f'{field} = "attacc-hbm3-4.9": unknown; choose from attacc-hbm3-4.8, ')
    assert line.endswith('hbm2-pim; did you mean "attacc-hbm3-4.8"?')


def timing_file(folder: Path, **values: int) -> str:
    """A file with one timing preset, `mine`."""
    path = folder / "timings.toml"
    path.write_text('[mine]\nbase = "attacc-hbm3-5.2"\n' + "".join(f"{k} = {v}\n" for k, v in values.items()))
    return str(path)


def test_timing_presets_of_a_file_can_be_named(tmp_path: Path) -> None:
    data = {"controller": {"presets": timing_file(tmp_path, nRCD=30), "timing": "mine"}}
    assert timing_of(load(data)).nRCD == 30
    # Named alone it brings its own refresh figures; the built-in ones stay known.
    load(merge(data, {"controller": {"refresh": True}, "dram": {"preset": "gddr6-aim"}}))
    load(merge(data, {"controller": {"timing": "attacc-hbm3-5.2"}}))
    line = only(merge(data, {"controller": {"timing": "mime"}}))
    assert "hbm2-pim, mine; did you mean" in line and line.endswith('"mine"?')
    assert only({"controller": {"timing": "mine"}}).startswith('controller.timing = "mine": unknown')


def test_mistakes_of_a_timing_file_come_in_the_same_report(tmp_path: Path) -> None:
    path = timing_file(tmp_path, nRCD=0, nRPP=3)
    data = {
        "seed": -1,
        "layout": {"stacks": 3},
        "controller": {"presets": path, "timing": "mine", "queue": 0},
    }
    assert str(refuse(data)).split("\n") == [
        f'timing.mine.nRCD = 0: is too small; must be an integer from 1 to 1073741824 (in "{path}")',
        f'timing.mine.nRPP = 3: unknown key (in "{path}"); did you mean "nRP"?',
        "seed = -1: is too small; must be an integer from 0 to 4294967295",
        "layout.stacks = 3: does not divide the 8 KV heads of a shard; choose from 1, 2, 4, 8",
        "controller.queue = 0: is too small; must be an integer from 1 to 64",
    ]
    missing = str(tmp_path / "no.toml")
    assert fields({"controller": {"presets": missing, "queue": 0}}) == [missing, "controller.queue"]
    assert only({"controller": {"presets": missing}}) == f"{missing}: there is no such file"


def test_everything_that_does_not_fit_together_comes_in_one_report() -> None:
    data = {
        "experiment": "realistic",
        "model": {"window": 16},
        "layout": {"passes": 1, "stacks": 3},
        "allocator": {"kind": "contiguous"},
        "controller": {"timing": "aim-gddr6", "refresh": True, "queries_per_command": 5},
    }
    assert fields(data) == [
        "model.window_layers",
        "layout.passes",
        "layout.stacks",
        "scheduler.admission",
        "controller.refresh",
        "controller.queries_per_command",
    ]
    assert fields(merge(data, {"controller": {"timing": "aim"}})) == [
        "model.window_layers",
        "layout.passes",
        "layout.stacks",
        "scheduler.admission",
        "controller.timing",
        "controller.queries_per_command",
    ]


def test_nothing_is_built_on_a_field_that_is_reported() -> None:
    # Each alone would upset the block, the pool or the map as well.
    rows = {"rows": 1}
    large = {"block_tokens": 2**20}
    assert fields({"dram": rows, "layout": large}) == ["layout.block_tokens"]
    assert fields({"model": {"kv_heads": 0}, "dram": rows, "layout": large}) == ["model.kv_heads"]
    # Neither half of a burst, nor part of a latent, nor a third of eight heads.
    assert fields({"layout": {"stacks": 3}, "model": {"v_dim": 512}}) == ["layout.stacks"]
    assert fields(
        {"layout": {"kv_layout": "published-split"}, "model": {"kv_heads": 1, "head_dim": 16, "v_dim": 16}}
    ) == ["layout.kv_layout"]
    assert fields(
        {
            "layout": {"kv_layout": "published-split"},
            "model": {"kv_heads": 1, "head_dim": 1, "dtype_bytes": 1, "v_dim": 1},
        }
    ) == [
        "model.v_dim",
        "layout.kv_layout",
    ]
    assert fields({"model": {"query_heads": 0}, "controller": {"queries_per_command": 9}}) == [
        "model.query_heads"
    ]
    assert fields({"allocator": {"kind": "contigous"}, "scheduler": {"admission": "vllm"}}) == [
        "allocator.kind"
    ]
    assert fields({"dram": {"channels": 33}, "layout": {"addrmap": "row:14 col:5 bg:2 ba:2 ch:9"}}) == [
        "dram.channels"
    ]
    assert fields({"dram": {"row_bytes": 0}, "scheduler": {"pool_blocks": 2**31}}) == ["dram.row_bytes"]


def test_with_an_unknown_preset_only_what_no_preset_would_mend_is_reported() -> None:
    fits_hbm3 = {"addrmap": "row:14 col:5 bg:2 ba:2 ch:5"}
    fits_gddr6 = {"addrmap": "row:14 col:6 bg:2 ba:2 ch:3"}
    for layout in (fits_hbm3, fits_gddr6):
        assert fields({"dram": {"preset": "x"}, "layout": layout}) == ["dram.preset"]
    assert fields({"dram": {"preset": "x"}, "layout": {"addrmap": "row:14 col:9 bg:2 ba:2 ch:5"}}) == [
        "dram.preset",
        "layout.addrmap",
    ]
    # Given beside the unknown name, a value is as sure as ever.
    assert fields({"dram": {"preset": "x", "channels": 2}, "layout": {"kv_shards": 4}}) == [
        "dram.preset",
        "layout.kv_shards",
    ]
    assert fields({"model": {"preset": "x"}, "dram": 5, "layout": {"kv_shards": 64}}) == [
        "model.preset",
        "dram",
        "layout.kv_shards",
    ]
    assert fields({"dram": {"preset": "x", "timing": "y"}, "controller": {"refresh": True}}) == [
        "dram.preset",
        "dram.timing",
    ]
    assert fields({"dram": {"preset": "x"}, "controller": {"refresh": True}}) == ["dram.preset"]
    assert fields({"dram": {"preset": "x"}, "controller": {"refresh": True, "timing": "aim-gddr6"}}) == [
        "dram.preset",
        "controller.refresh",
    ]
    # 4 GiB of one block: too much for some DRAMs, or for all if they have few rows.
    data = {"dram": {"preset": "gdr6-aim"}, "layout": {"block_tokens": 2**20}}
    assert fields(data) == ["dram.preset"]
    line = str(refuse(merge(data, {"dram": {"rows": 2}}))).split("\n")[1]
    assert line == (
        "layout.block_tokens = 1048576: a block of 1048576 tokens needs 4096 rows; the DRAM has 2; "
        'taken with dram.preset = "gddr6-aim", but wrong with every preset; did you mean 512?'
    )


# ---- Address maps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("addrmap", "said"),
    [
        ("row:* col:* bg:* ba:*", "field ch is missing; it needs 5 bits (dram.channels = 32); write ch:5 or ch:*"),
        ("row:14 row:14 col:5 bg:2 ba:2 ch:5", "field row has 28 bits, 14 too many; it needs 14 bits (dram.rows = 16384)"),
        ("row:14 col:5 bg:2 ba:2 ch:4", "field ch has 4 bits, 1 missing"),
        ("row:* col:* bg:* ba:* ch:5 ch:*", None),  # a rest of no bits is a rest
        ("row:* row:* col:* bg:* ba:* ch:*", 'row:* occurs twice; "*" is the rest of a field'),
        ("row:* col:* bg:* bank:* ch:*", 'no field "bank"; fields are row, col, bg, ba, ch; did you mean "ba"?'),
        ("row:* column:* bg:* ba:* ch:*", 'did you mean "col"?'),
        ("row:* col:* bg:* ba:* ch:* x:1", 'segment "x:1" has no field "x"; fields are row, col, bg, ba, ch'),
        ("row:* col:0 bg:* ba:* ch:*", 'segment "col:0" has width "0"; a width is 1 bit or more, or "*"'),
        ("row:* col:-5 bg:* ba:* ch:*", 'segment "col:-5" has width "-5"'),
        ("row:* col:٥ bg:* ba:* ch:*", 'has width "٥"'),
        ("row:* col bg:* ba:* ch:*", 'segment "col" has no width'),
        ("row:L col:* bg:* ba:* ch:*", "L is the width of a cache line's bursts, for col only"),
        ("row:* col:L bg:* ba:* ch:*", "field col has 1 bit, 4 missing; it needs 5 bits"),
        ("row:* col:* bg:* ba:* ch:*;", 'nothing follows ";"'),
        ("row:* col:* bg:* ba:* ch:*; ba^row:1; bg^row:1", 'more than one ";"'),
        ("row:* col:* bg:* ba:* ch:*; col^row:2", 'hash "col^row:2" changes "col"; only ba, bg, ch can be hashed'),
        ("row:* col:* bg:* ba:* ch:*; bank^row:2", 'only ba, bg, ch can be hashed; did you mean "ba"?'),
        ("row:* col:* bg:* ba:* ch:*; ba^col:2", 'hash "ba^col:2" takes bits of "col"; only row bits are hashed in'),
        ("row:* col:* bg:* ba:* ch:*; ba^row", 'hash "ba^row" is not of the form field^row:shift'),
        ("row:* col:* bg:* ba:* ch:*; ba^row:14", "shifts all 14 row bits out; shift by 0 to 13"),
        ("row:* col:* bg:* ba:* ch:*; ba^row:2 ba^row:2", "occurs twice and undoes itself"),
        ("host-centrik", 'choose from host-cacheline, host-centric, pim-friendly, or write a map string such as row:*'),
        ("", "no such address map"),
    ],
)  # fmt: skip
def test_a_bad_map_string_names_the_segment_and_the_bits(addrmap: str, said: str | None) -> None:
    if said is None:
        load({"layout": {"addrmap": addrmap}})
    else:
        line = only({"layout": {"addrmap": addrmap}})
        assert line.startswith("layout.addrmap = ") and said in line


def test_every_mistake_of_a_map_string_is_reported() -> None:
    error = refuse({"layout": {"addrmap": "rwo:14 col:6 ba:0 ba:* ch:*; col^row:1"}})
    expected = ('"rwo"', '"ba:0"', "col^row:1", "col has 6 bits", "bg is missing")
    assert len(error.problems) == len(expected)
    for problem, words in zip(error.problems, expected, strict=True):
        assert words in problem.message


# ---- Properties ------------------------------------------------------------------------------------------


def some(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=strategies)


junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.sampled_from(["hbm3-pim", "row:*"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=3,
)  # fmt: skip
bad = some(
    seed=junk,
    experiment=junk | st.sampled_from(["published", "realistic"]),
    nonsense=junk,
    **{
        name: st.one_of(
            junk,
            some(**dict.fromkeys((*Config.model_fields[name].annotation.model_fields, "nonsense"), junk)),  # type: ignore[union-attr]
        )
        for name in SECTIONS
    },
)


@fuzz
@given(bad)
def test_any_junk_gives_a_config_or_a_report(data: dict[str, Any]) -> None:
    try:
        load(data)
    except ConfigError:
        refuse(data)


@fuzz
@given(st.text(st.sampled_from("row:*col:L bgbach5;^=1")))
def test_any_map_string_gives_a_map_or_a_report(addrmap: str) -> None:
    try:
        config = load({"layout": {"addrmap": addrmap}})
    except ConfigError:
        refuse({"layout": {"addrmap": addrmap}})
    else:
        # What is accepted means the same once it is explicit.
        explicit = explicit_map(config)
        assert explicit_map(load({"layout": {"addrmap": explicit}})) == explicit


# Small numbers of everything that a token, its parts and a block are made of.
shapes = some(
    experiment=st.sampled_from(["published", "realistic"]),
    model=some(
        kv_heads=st.integers(1, 12), query_heads=st.just(2520 * 11), head_dim=st.integers(1, 40),
        dtype_bytes=st.integers(1, 8), v_dim=st.integers(0, 80),
    ),
    dram=some(rows=st.sampled_from([1, 2, 8, 16384]), burst_bytes=st.sampled_from([1, 16, 32]), channels=st.sampled_from([1, 4, 32])),
    layout=some(
        kv_layout=st.sampled_from(["merged-token", "merged-block", "split", "published-split"]),
        passes=st.sampled_from([None, 1, 2]), stacks=st.integers(1, 6), kv_shards=st.sampled_from([1, 2, 4]),
        block_tokens=st.integers(0, 3000),
    ),
)  # fmt: skip


@settings(deadline=None, max_examples=max(300, settings().max_examples))
@given(shapes)
def test_any_shape_gives_whole_bursts_in_whole_regions_or_a_report(data: dict[str, Any]) -> None:
    try:
        config = load(data)
    except ConfigError:
        refuse(data)
        return
    sizes = geometry(config)
    unit, tensor = sizes.unit, sizes.block_bytes // sizes.tensors
    assert unit.bytes == unit.regions * sizes.region_bytes
    empty = unit.bytes - unit.blocks * tensor
    assert empty >= 0 and empty == pytest.approx(unit.waste * unit.bytes) and unit.waste <= 0.07
    assert (empty > 0) == (unit.kind == "padded")
    units = sizes.capacity_blocks // unit.blocks
    assert units >= 1 and units * sizes.tensors * unit.regions <= sizes.rows
    for reads in sizes.passes(config, sizes.capacity_blocks):
        for base, stride, part, block, of_unit in reads:
            assert 0 < part <= stride and block == tensor and of_unit == unit.bytes
            assert base % sizes.burst_bytes == stride % sizes.burst_bytes == part % sizes.burst_bytes == 0


def test_a_number_of_layers_keeps_the_share_of_sliding_ones() -> None:
    models = [load({"model": {"preset": "gemma-3-12b", "layers": layers}}).model for layers in (48, 24, 1)]
    assert [(m.layers, m.window_layers) for m in models] == [(48, 40), (24, 20), (1, 1)]


def test_another_experiment_takes_its_defaults_along() -> None:
    resolved = load({"seed": 4}).model_dump()
    other = load(merge(resolved, {"experiment": "realistic"}))
    assert (other.layout.kv_layout, other.scheduler.admission, other.traffic.writes) == (
        "split",
        "vllm",
        True,
    )
    assert other.seed == 4
    # What differs from the old defaults was somebody's choice, and stays.
    chosen = load({"layout": {"kv_layout": "merged-block"}}).model_dump()
    assert load(merge(chosen, {"experiment": "realistic"})).layout.kv_layout == "merged-block"
    back = load(merge(other.model_dump(), {"experiment": "published"}))
    assert (back.layout.kv_layout, back.scheduler.admission, back.traffic.writes) == (
        "merged-token",
        "oracle",
        False,
    )


def test_a_trace_stands_in_for_a_workload() -> None:
    line = only({"workload": {"kind": "prefix", "trace": "t.csv"}})
    assert line.startswith('workload.kind = "prefix": the requests of workload.trace')
    assert load({"workload": {"kind": "spec", "trace": "t.csv"}}).workload.kind == "spec"
