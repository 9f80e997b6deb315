"""The checks of a config that take more than one field: each reports on one field and names the others.

A check is skipped where it would build on a field already reported, so that one slip is one line. Where only
a preset's name was refused, a mistake that every preset would show is still reported.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from pimkv import presets
from pimkv.addrmap import map_mistakes
from pimkv.derived import (
    MOST_BLOCK_TOKENS,
    MOST_SHARDS,
    block_tokens,
    capacity_bytes,
    line_bits,
    map_bits,
    map_text,
    region_bytes,
    token_bytes,
)
from pimkv.wording import choose_from, did_you_mean, nearest, show

if TYPE_CHECKING:
    from pimkv.config import Config
    from pimkv.errors import Problem
    from pimkv.section import Report, Section

_MODEL = ("model.kv_heads", "model.head_dim", "model.dtype_bytes")
_REGION = ("dram.channels", "dram.bank_groups", "dram.banks_per_group", "dram.row_bytes")
_TOKEN = (*_MODEL, "layout.kv_shards", "layout.kv_layout")
# The fields that decide the bits of each field of an address map.
_MAP_SIZES = {
    "row": ("dram.rows",),
    "col": ("dram.row_bytes", "dram.burst_bytes"),
    "bg": ("dram.bank_groups",),
    "ba": ("dram.banks_per_group",),
    "ch": ("dram.channels",),
}


def check_config(config: Config, report: Report) -> None:
    """Report every mistake of `config` that no single field shows."""
    _check_all(config, report)
    refused = [name for name in ("model", "dram") if not report.sure(f"{name}.preset")]
    if refused:
        _check_with_every_preset(config, refused, report)


def _check_with_every_preset(config: Config, refused: list[str], report: Report) -> None:
    """Report what is wrong whichever presets the `refused` names stand for, worded for the likeliest."""
    names = {name: _likeliest_first(name, report) for name in refused}
    found: list[dict[str, list[Problem]]] = []
    for combination in itertools.product(*names.values()):
        assumed = dict(zip(refused, combination, strict=True))
        trial = report.trial([f"{name}.{field}" for name in refused for field in _fields(config, name)])
        _check_all(config.model_copy(update=_sections(config, assumed, report)), trial)
        by_field: dict[str, list[Problem]] = {}
        for problem in trial.problems:
            by_field.setdefault(problem.field, []).append(problem)
        found.append(by_field)
    likeliest = " and ".join(f"{name}.preset = {show(choices[0])}" for name, choices in names.items())
    for field, problems in found[0].items():
        if report.sure(field) and all(field in by_field for by_field in found):
            for problem in problems:
                message = f"{problem.message}; taken with {likeliest}, but wrong with every preset"
                report.add(field, problem.value, message, problem.hint)


def _likeliest_first(name: str, report: Report) -> list[str]:
    names = list(presets.usable(name))
    given = next((problem.value for problem in report.problems if problem.field == f"{name}.preset"), None)
    likely = nearest(given, names)
    return sorted(names, key=lambda choice: choice != likely)


def _fields(config: Config, name: str) -> list[str]:
    return list(type(getattr(config, name)).model_fields)


def _sections(config: Config, assumed: dict[str, str], report: Report) -> dict[str, Section]:
    """The sections of `config` with the assumed presets, and beside them the values that were given."""
    sections = {}
    for name, preset in assumed.items():
        section: Section = getattr(config, name)
        given = {field: value for field, value in section if report.sure(f"{name}.{field}")}
        sections[name] = type(section)(**{**given, "preset": preset})
    return sections


def _check_all(config: Config, report: Report) -> None:
    _check_model(config, report)
    _check_dram(config, report)
    _check_addrmap(config, report)
    _check_shards(config, report)
    _check_token(config, report)
    _check_block(config, report)
    _check_pool(config, report)


def _check_model(config: Config, report: Report) -> None:
    model = config.model
    if report.sure("model.query_heads", "model.kv_heads") and model.query_heads % model.kv_heads:
        message = f"must be a multiple of model.kv_heads = {model.kv_heads}, whose queries share each KV head"
        up = -(-model.query_heads // model.kv_heads) * model.kv_heads
        report.add("model.query_heads", model.query_heads, message, did_you_mean(up))


def _check_dram(config: Config, report: Report) -> None:
    dram = config.dram
    if report.sure("dram.burst_bytes", "dram.row_bytes") and dram.burst_bytes > dram.row_bytes:
        message = f"a burst is larger than a row; at most dram.row_bytes = {dram.row_bytes}"
        report.add("dram.burst_bytes", dram.burst_bytes, message)
    if report.sure("dram.cache_line_bytes", "dram.burst_bytes", "dram.row_bytes"):
        line = dram.cache_line_bytes
        if not dram.burst_bytes <= line <= dram.row_bytes:
            wrong = "smaller than a burst" if line < dram.burst_bytes else "larger than a row of one bank"
            limits = f"from dram.burst_bytes = {dram.burst_bytes} to dram.row_bytes = {dram.row_bytes}"
            report.add("dram.cache_line_bytes", line, f"a cache line is {wrong}; a power of two {limits}")


def _check_addrmap(config: Config, report: Report) -> None:
    field, addrmap = "layout.addrmap", config.layout.addrmap
    if not report.sure(field):
        return
    if ":" not in addrmap and not presets.known("addrmap", addrmap):
        names = presets.usable("addrmap")
        message = (
            f"no such address map; {choose_from(names)}, or write a map string such as {map_text(names[0])}"
        )
        report.add(field, addrmap, message, did_you_mean(nearest(addrmap, names)))
        return
    sizes = map_bits(config)
    bits = {name: sizes[name] if report.sure(*_MAP_SIZES[name]) else None for name in sizes}
    line = line_bits(config) if report.sure("dram.cache_line_bytes", "dram.burst_bytes") else None
    for mistake in map_mistakes(map_text(addrmap), bits, line):
        report.add(field, addrmap, *mistake)


def _check_shards(config: Config, report: Report) -> None:
    field, shards = "layout.kv_shards", config.layout.kv_shards
    if not report.sure(field):
        return
    sizes = {"dram.channels": config.dram.channels, "model.kv_heads": config.model.kv_heads}
    divided = {name: size for name, size in sizes.items() if report.sure(name)}
    fitting = [
        power
        for power in (1 << exponent for exponent in range(MOST_SHARDS.bit_length()))
        if all(size % power == 0 for size in divided.values())
    ]
    if shards in fitting:
        return
    faults = ["is not a power of two"] if shards & (shards - 1) else []
    faults += [f"does not divide {name} = {size}" for name, size in divided.items() if size % shards]
    best = min(fitting, key=lambda power: abs(math.log2(power / shards)))
    report.add(field, shards, f"{', '.join(faults)}; {choose_from(fitting)}", did_you_mean(best))


def _check_token(config: Config, report: Report) -> None:
    if not report.sure(*_TOKEN, "dram.burst_bytes"):
        return
    token, burst = token_bytes(config), config.dram.burst_bytes
    if token % burst:
        dim = config.model.head_dim
        # Each element of head_dim adds token / dim bytes; enough of them make whole bursts.
        step = burst // math.gcd(burst, token // dim)
        up = -(-dim // step) * step
        wrong = f"{_token_words(config)}, not whole bursts of dram.burst_bytes = {burst}"
        report.add("model.head_dim", dim, f"{wrong}; must be a multiple of {step}", did_you_mean(up))


def _check_block(config: Config, report: Report) -> None:
    field, tokens = "layout.block_tokens", config.layout.block_tokens
    if not report.sure(field, *_TOKEN, *_REGION, "dram.burst_bytes"):
        return
    token, region = token_bytes(config), region_bytes(config)
    if tokens == 0:
        wanted = max(1, region // token)
        if region % token == 0 and wanted <= MOST_BLOCK_TOKENS:
            return
        wrong = f"a region of {region} bytes is not 1 to {MOST_BLOCK_TOKENS} whole tokens of {token} bytes"
    else:
        wanted, block = tokens, tokens * token
        if region % block == 0 or block % region == 0:
            return
        wrong = (
            f"a block of {tokens} tokens of {token} bytes neither divides a region of {region} bytes "
            "nor fills whole ones, and regions that do not divide are not supported yet"
        )
    fitting = _fitting_tokens(wanted, token, region)
    if fitting:
        nearest_fit = f"nearest that fit this model and DRAM: {', '.join(map(str, fitting))}"
        report.add(field, tokens, f"{wrong}; {nearest_fit}", did_you_mean(fitting[0]))
    else:
        report.add(field, tokens, f"{wrong}; no block_tokens fits this model and DRAM")


def _fitting_tokens(wanted: int, token: int, region: int) -> list[int]:
    """Up to six block sizes in tokens that divide a region or fill whole ones, nearest to `wanted` first."""
    whole = region // math.gcd(region, token)  # the fewest tokens that fill whole regions
    fitting = {whole * regions for regions in (1, wanted // whole, wanted // whole + 1)}
    if region % token == 0:
        # A region is a power of two, and so is what divides it.
        fitting.update(1 << exponent for exponent in range((region // token).bit_length()))
    allowed = (tokens for tokens in fitting if 1 <= tokens <= MOST_BLOCK_TOKENS)
    return sorted(allowed, key=lambda tokens: (abs(math.log2(tokens / wanted)), tokens))[:6]


def _check_pool(config: Config, report: Report) -> None:
    field, pool = "scheduler.pool_blocks", config.scheduler.pool_blocks
    sizes = ("layout.block_tokens", *_TOKEN, *_REGION, "dram.rows", "dram.burst_bytes")
    # The automatic pool depends on the requests; the simulation checks it.
    if pool == 0 or not report.sure(field, *sizes):
        return
    block, capacity = block_tokens(config) * token_bytes(config), capacity_bytes(config)
    if pool * block > capacity:
        message = (
            f"{pool} blocks of {block} bytes are more than the DRAM's {capacity} bytes; "
            f"at most {capacity // block}, or 0 for the automatic pool"
        )
        report.add(field, pool, message)


def _token_words(config: Config) -> str:
    """How the bytes of a token come about."""
    model, layout = config.model, config.layout
    words = f"2 x kv_heads {model.kv_heads} x head_dim {model.head_dim} x dtype_bytes {model.dtype_bytes}"
    if layout.kv_shards > 1:
        words += f" / kv_shards {layout.kv_shards}"
    if layout.kv_layout == "published-split":
        words += " / 2 (published-split)"
    return f"one token takes {words} = {token_bytes(config)} bytes"
