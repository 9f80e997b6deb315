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
    geometry,
    line_bits,
    map_bits,
    map_text,
    passes_of,
    region_bytes,
    timing_presets,
    token_bytes,
    unit_of,
)
from pimkv.errors import ConfigError
from pimkv.row_groups import check_row_groups
from pimkv.wording import choose_from, did_you_mean, nearest, show

if TYPE_CHECKING:
    from pimkv.config import Config
    from pimkv.errors import Problem
    from pimkv.section import Report, Section

_MODEL = ("model.kv_heads", "model.head_dim", "model.dtype_bytes")
_REGION = ("dram.channels", "dram.bank_groups", "dram.banks_per_group", "dram.row_bytes")
_TOKEN = (*_MODEL, "model.v_dim", "layout.kv_shards", "layout.stacks", "layout.kv_layout")
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
    # What divides a token, or decides its parts, comes before the token.
    _check_shards(config, report)
    _check_stacks(config, report)
    _check_passes(config, report)
    _check_latent(config, report)
    check_row_groups(config, report)
    _check_token(config, report)
    _check_block(config, report)
    _check_window(config, report)
    _check_pool(config, report)
    _check_admission(config, report)
    _check_prefix_cache(config, report)
    _check_trace(config, report)
    _check_controller(config, report)


def _check_admission(config: Config, report: Report) -> None:
    field = "scheduler.admission"
    kind, options = config.allocator.kind, config.allocator.options
    if report.sure(field, "allocator.kind") and options.spans and config.scheduler.admission == "vllm":
        length = "max_tokens" if "max_tokens" in type(options).model_fields else "the final length"
        message = f"is not defined for the {kind} allocator, which reserves {length}; choose oracle"
        report.add(field, "vllm", message)


def _check_prefix_cache(config: Config, report: Report) -> None:
    field, options = "scheduler.prefix_cache", config.allocator.options
    limit = config.scheduler.cache_blocks
    if not report.sure(field):
        return
    if not config.scheduler.prefix_cache:
        if limit and report.sure("scheduler.cache_blocks"):
            message = f"is the limit of a cache that is off; leave it out, or set {field}"
            report.add("scheduler.cache_blocks", limit, message)
        return
    if report.sure("workload.trace") and config.workload.trace is None:
        message = "finds equal beginnings by a trace's hash chains; needs workload.trace, or leave it out"
        report.add(field, True, message)
    if report.sure("allocator.kind") and not options.shares:
        message = f"shares blocks, and the {config.allocator.kind} allocator cannot; leave it out"
        report.add(field, True, message)
    if report.sure("allocator.kind", "allocator.options.compact") and getattr(options, "compact", False):
        message = "knows the blocks that it keeps by number, and allocator.options.compact moves them; leave one out"
        report.add(field, True, message)


def _check_trace(config: Config, report: Report) -> None:
    kind, trace = config.workload.kind, config.workload.trace
    drawn = {"prefix", "longctx", "sharegpt"}
    if trace is not None and report.sure("workload.kind", "workload.trace") and kind in drawn:
        message = f"the requests of workload.trace = {show(trace)} stand in its place; leave one out"
        report.add("workload.kind", kind, message)


def _check_controller(config: Config, report: Report) -> None:
    controller = config.controller
    if report.sure("controller.queries_per_command", "model.query_heads", "model.kv_heads"):
        heads, asked = config.model.query_heads // config.model.kv_heads, controller.queries_per_command
        if asked is not None and asked > heads:
            message = f"a KV head has {heads} query heads; must be an integer from 1 to {heads}"
            report.add("controller.queries_per_command", asked, message, did_you_mean(heads))
    stride = controller.mac_stride
    batchwise = report.sure("layout.traversal") and config.layout.traversal == "row-batch"
    if report.sure("controller.mac_stride") and stride > 1 and batchwise:
        message = 'layout.traversal = "row-batch" is a bound that opens every row once; must be 1'
        report.add("controller.mac_stride", stride, message)
    if not report.sure("controller.presets"):
        return
    try:
        known = timing_presets(config)
    except ConfigError as error:
        for problem in error.problems:
            named = problem.field in {controller.presets, show(controller.presets)}
            inside = "" if named else f" (in {show(controller.presets)})"
            report.add(problem.field, problem.value, problem.message + inside, problem.hint)
        return
    field = "controller.timing" if controller.timing is not None else "dram.timing"
    name = controller.timing or config.dram.timing
    if not report.sure(field):
        return
    if name not in known:
        report.add(field, name, f"unknown; {choose_from(list(known))}", did_you_mean(nearest(name, known)))
    elif controller.refresh and report.sure("controller.refresh") and not known[name].has_refresh:
        message = f"{name} has no public refresh figures (nREFI, nRFC); leave it out or switch it off"
        report.add("controller.refresh", True, message)


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
    apart = _kv_apart(config, report)
    part = token // 2 if apart else token
    if part % burst:
        dim = config.model.head_dim
        # Each element of head_dim adds part / dim bytes; enough of them make whole bursts.
        step = burst // math.gcd(burst, part // dim)
        up = -(-dim // step) * step
        wrong = f"{_token_words(config)}{f', K and V {part} each' if apart else ''}"
        wrong += f", not whole bursts of dram.burst_bytes = {burst}"
        report.add("model.head_dim", dim, f"{wrong}; must be a multiple of {step}", did_you_mean(up))


def _kv_apart(config: Config, report: Report) -> bool:
    """Whether K and V of a token are read apart; a latent stream is one."""
    if config.model.v_dim:
        return False
    two = report.sure("layout.passes", "experiment") and passes_of(config) == 2
    return two or config.layout.kv_layout in {"split", "merged-block"}


def _check_block(config: Config, report: Report) -> None:
    field = "layout.block_tokens"
    value: object = config.layout.block_tokens
    if not report.sure(field, *_TOKEN, *_REGION, "dram.burst_bytes"):
        return
    what = "a region"
    if config.allocator.options.own_unit:
        if not _check_unit(config, report):
            return
        field, value, what = "allocator.kind", config.allocator.kind, "its block"
    wanted = block_tokens(config)
    if wanted > MOST_BLOCK_TOKENS:
        message = f"{what} has {wanted} tokens of {token_bytes(config)} bytes; at most {MOST_BLOCK_TOKENS}"
        report.add(field, value, message)
        return
    if not report.sure("dram.rows"):
        return
    shape = geometry(config)
    if shape.capacity_blocks:
        return
    # A block of an odd size may need more rows than there are to come out whole.
    blocks, rows = shape.unit.blocks, shape.unit.regions * shape.tensors
    span = f"{blocks} blocks of {wanted} tokens, the fewest that fill whole rows, need"
    message = span if blocks > 1 else f"a block of {wanted} tokens needs"
    message += f" {rows} rows{' for K and V' if shape.tensors == 2 else ''}; the DRAM has {config.dram.rows}"
    powers = [1 << exponent for exponent in range(MOST_BLOCK_TOKENS.bit_length())]
    fitting = [power for power in powers if _rows_of(power, config, shape.tensors) <= config.dram.rows]
    best = min(fitting, key=lambda power: abs(math.log2(power / wanted)), default=None)
    report.add(field, value, message, did_you_mean(best) if field == "layout.block_tokens" else "")


def _check_unit(config: Config, report: Report) -> bool:
    """Whether an allocator with a unit of its own has one, and nobody asks for another."""
    kind, given = config.allocator.kind, config.layout.block_tokens
    options = config.allocator.options
    if not report.sure(
        "allocator.kind", *(f"allocator.options.{name}" for name in type(options).model_fields)
    ):
        return False
    wanted = options.unit_tokens(config)
    if wanted == 0:
        report.add("allocator.kind", kind, f"its unit does not hold a token of {token_bytes(config)} bytes")
    elif given is not None and given != wanted:
        message = f"{kind} has a unit of its own, here {wanted} tokens; leave it out"
        report.add("layout.block_tokens", given, message)
    else:
        return True
    return False


def _rows_of(tokens: int, config: Config, tensors: int) -> int:
    """Rows that a unit of blocks of so many tokens takes, all tensors."""
    return unit_of(tokens * token_bytes(config) // tensors, region_bytes(config)).regions * tensors


def _check_passes(config: Config, report: Report) -> None:
    field, passes = "layout.passes", config.layout.passes
    if passes is None or not report.sure(field, "layout.kv_layout", "model.v_dim"):
        return
    if passes == 1 and config.layout.kv_layout == "split":
        report.add(field, 1, "K and V in pools of their own are two streams; leave it out, or 2")
    elif passes == 1 and config.model.v_dim:
        report.add(field, 1, "softmax stands between the two reads of a latent stream; leave it out, or 2")
    elif passes == 2 and config.layout.kv_layout == "published-split":
        report.add(field, 2, "the study's proxy halves a token and reads it once; leave it out, or 1")


def _check_latent(config: Config, report: Report) -> None:
    model, field = config.model, "model.v_dim"
    if not model.v_dim or not report.sure(*_MODEL, field, "layout.kv_shards", "layout.stacks"):
        return
    if config.layout.kv_layout == "published-split" and report.sure("layout.kv_layout"):
        message = "a latent stream has no half to leave out; choose merged-token, merged-block or split"
        report.add("layout.kv_layout", "published-split", message)
    latent = model.head_dim * model.kv_heads // config.layout.kv_shards // config.layout.stacks
    if model.v_dim > latent:
        report.add(field, model.v_dim, f"the V pass reads part of the latent; at most {latent}")
    elif report.sure("dram.burst_bytes") and model.v_dim * model.dtype_bytes % config.dram.burst_bytes:
        burst = config.dram.burst_bytes
        message = (
            f"{model.v_dim * model.dtype_bytes} bytes are not whole bursts of dram.burst_bytes = {burst}"
        )
        report.add(field, model.v_dim, message)


def _check_window(config: Config, report: Report) -> None:
    model = config.model
    if report.sure("model.window_layers", "model.layers") and model.window_layers > model.layers:
        message = f"more than model.layers = {model.layers}"
        report.add("model.window_layers", model.window_layers, message)
    if report.sure("model.window_layers", "model.window") and (model.window > 0) != (model.window_layers > 0):
        field, value = ("model.window", model.window) if model.window_layers else ("model.window_layers", 0)
        report.add(field, value, "a sliding window needs both model.window and model.window_layers above 0")


def _check_stacks(config: Config, report: Report) -> None:
    field, stacks = "layout.stacks", config.layout.stacks
    if report.sure(field, "layout.kv_shards", "model.kv_heads"):
        heads = config.model.kv_heads // config.layout.kv_shards
        if heads and heads % stacks:
            choices = [n for n in range(1, heads + 1) if heads % n == 0]
            message = f"does not divide the {heads} KV heads of a shard; {choose_from(choices)}"
            report.add(field, stacks, message)


def _check_pool(config: Config, report: Report) -> None:
    field, pool = "scheduler.pool_blocks", config.scheduler.pool_blocks
    sizes = ("layout.block_tokens", "allocator.kind", *_TOKEN, *_REGION, "dram.rows", "dram.burst_bytes")
    # The automatic pool depends on the requests; the simulation checks it.
    if pool == 0 or not report.sure(field, *sizes):
        return
    shape = geometry(config)
    if pool > shape.capacity_blocks:
        message = (
            f"{pool} blocks of {shape.block_bytes} bytes are more than the DRAM's {capacity_bytes(config)} bytes; "
            f"at most {shape.capacity_blocks}, or 0 for the automatic pool"
        )
        report.add(field, pool, message)


def _token_words(config: Config) -> str:
    """How the bytes of a token come about."""
    model, layout = config.model, config.layout
    words = f"kv_heads {model.kv_heads} x head_dim {model.head_dim} x dtype_bytes {model.dtype_bytes}"
    if not model.v_dim:
        words = f"2 x {words}"
    if layout.kv_shards > 1:
        words += f" / kv_shards {layout.kv_shards}"
    if layout.stacks > 1:
        words += f" / stacks {layout.stacks}"
    if layout.kv_layout == "published-split":
        words += " / 2 (published-split)"
    return f"one token takes {words} = {token_bytes(config)} bytes"
