"""Workloads: synthetic draws and recorded traces, all of them one request table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from pimkv.workload.chains import Chains
from pimkv.workload.sharegpt import draw_sharegpt
from pimkv.workload.synthetic import DEFAULT_RATE, draw_arrivals, longctx, prefix, steady
from pimkv.workload.table import MAX_STEP, MAX_TOKENS, Requests
from pimkv.workload.traces import read_trace

__all__ = [
    "DEFAULT_RATE",
    "MAX_STEP",
    "MAX_TOKENS",
    "SYNTHETIC",
    "Chains",
    "Requests",
    "draw_arrivals",
    "draw_sharegpt",
    "longctx",
    "prefix",
    "read_trace",
    "steady",
]

SYNTHETIC: Final[Mapping[str, Callable[..., Requests]]] = MappingProxyType(
    {"steady": steady, "spec": steady, "longctx": longctx, "prefix": prefix, "sharegpt": draw_sharegpt}
)
"""The drawn workloads by name, each called as `(n, seed, arrival_rate=its own default)`."""
