"""The command line that makes a run again, from its resolved config."""

from __future__ import annotations

import json
import shlex
from functools import cache
from typing import Any

from pimkv.config import load, merge
from pimkv.errors import ConfigError
from pimkv.result import flat, resolved

FLAGS = {
    "experiment": "--experiment",
    "workload.kind": "--workload",
    "workload.trace": "--trace",
    "workload.requests": "--requests",
    "workload.arrival_rate": "--arrival-rate",
    "seed": "--seed",
    "allocator.kind": "--allocator",
    "dram.preset": "--dram",
    "model.preset": "--model",
    "layout.addrmap": "--addrmap",
    "layout.kv_layout": "--kv-layout",
    "layout.passes": "--passes",
    "layout.block_tokens": "--block-tokens",
    "scheduler.max_batch": "--max-batch",
    "scheduler.headroom": "--headroom",
    "scheduler.admission": "--admission",
}
"""Fields with a flag of their own, in the order in which a command names them; others go through --set."""

# What the defaults of other fields hang on.
_CHOICES = ("experiment", "workload.kind", "workload.trace", "allocator.kind", "dram.preset", "model.preset")


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """{"a.b": 1} as {"a": {"b": 1}}."""
    tables: dict[str, Any] = {}
    for name, value in values.items():
        *sections, field = name.split(".")
        inner: dict[str, Any] = {field: value}
        for section in reversed(sections):
            inner = {section: inner}
        tables = merge(tables, inner)
    return tables


def given(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of a resolved config, by dotted name, that differ from what they are when left out."""
    values = flat(config)
    first = {name: values[name] for name in _CHOICES if values.get(name) is not None}
    plain = _defaults("{}")
    defaults = _defaults(json.dumps(nested(first)))
    chosen = {name: value for name, value in first.items() if value != plain.get(name)}
    rest = {
        name: value
        for name, value in values.items()
        if name not in _CHOICES and value is not None and value != defaults.get(name)
    }
    return chosen | rest


def brought(config: dict[str, Any]) -> dict[str, Any]:
    """The fields that have their value from the allocator alone, by dotted name; each with what `paged` has there.

    A unit of the allocator's own is such a field (`layout.block_tokens` of `grow-block`).
    """
    values = flat(config)
    others = {name: values[name] for name in _CHOICES if values.get(name) is not None}
    own = _defaults(json.dumps(nested(others)))
    del others["allocator.kind"]
    plain = _defaults(json.dumps(nested(others)))
    return {
        name: usual
        for name, usual in plain.items()
        if not name.startswith("allocator.") and values[name] == own.get(name) != usual
    }


@cache
def _defaults(tables: str) -> dict[str, Any]:
    """What fields are when only these are given, as JSON; as in a plain run where that alone cannot be run."""
    try:
        return flat(resolved(load(json.loads(tables))))
    except ConfigError:
        return _defaults("{}")


def options(values: dict[str, Any]) -> list[str]:
    """Fields as the words of a command line."""
    words: list[str] = []
    for name in (*FLAGS, *sorted(values.keys() - FLAGS.keys())):
        if name in values and name in FLAGS:
            words += [FLAGS[name], str(values[name])]
        elif name in values:
            words += ["--set", f"{name}={json.dumps(values[name])}"]
    return words


def run_command(config: dict[str, Any]) -> str:
    """`pimkv run ...` for a resolved config."""
    return shlex.join(["pimkv", "run", *options(given(config))])
