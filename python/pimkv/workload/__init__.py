"""Workloads: synthetic draws and recorded traces, all of them one request table."""

from __future__ import annotations

from pimkv.workload.synthetic import DEFAULT_RATE, SYNTHETIC, draw_arrivals, longctx, prefix, steady
from pimkv.workload.table import MAX_STEP, MAX_TOKENS, Requests
from pimkv.workload.traces import read_trace

__all__ = [
    "DEFAULT_RATE",
    "MAX_STEP",
    "MAX_TOKENS",
    "SYNTHETIC",
    "Requests",
    "draw_arrivals",
    "longctx",
    "prefix",
    "read_trace",
    "steady",
]
