"""Options that were given on a command line and change nothing in the run that they were given for.

Only what the command line itself says counts: a config file may well be complete.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pimkv.cli.options import FLAGS
from pimkv.row_groups import owns_row_groups

if TYPE_CHECKING:
    from pimkv.config import Config


def warn_unused(config: Config, given: Iterable[str]) -> None:
    """One warning for each field of `given` that has no effect, in the order of `given`."""
    flags = {field: flag for flag, field, *_ in FLAGS}
    reasons = unused(config)
    for field in given:
        if field in reasons:
            where = f"{field} ({flags[field]})" if field in flags else field
            logging.getLogger("pimkv").warning("%s has no effect: %s", where, reasons[field])


def unused(config: Config) -> dict[str, str]:
    """The fields that change no figure whatever their value, with all others as they are, and why."""
    workload, pool_blocks = config.workload, config.scheduler.pool_blocks
    reasons: dict[str, str] = {}
    if workload.trace is None:
        reasons["workload.step_ms"] = (
            "only the times of a trace are cut into steps, and none is given (--trace)"
        )
    elif workload.arrival_rate is not None:
        reasons["workload.step_ms"] = "arrivals are drawn, not the trace's own (workload.arrival_rate)"
    if workload.kind != "spec":
        why = f'workload.kind = "{workload.kind}" does not speculate'
        reasons |= {f"speculation.{name}": why for name in type(config.speculation).model_fields}
        reasons["allocator.options.scratch"] = why
    if pool_blocks:
        reasons["scheduler.headroom"] = f"scheduler.pool_blocks = {pool_blocks} is the pool"
    if owns_row_groups(config):
        why = f'the pages of allocator.kind = "{config.allocator.kind}" follow neither map nor layout nor windows'
        fields = ("layout.addrmap", "layout.kv_layout", "scoring.coalesce", "scoring.window")
        reasons |= dict.fromkeys(fields, why)
    elif config.allocator.options.spans:
        why = f'allocator.kind = "{config.allocator.kind}" frees the span of a request as a whole'
        reasons["scheduler.free_order"] = why
    if config.scoring.coalesce != "window":
        reasons["scoring.window"] = f'scoring.coalesce = "{config.scoring.coalesce}" has no windows'
    if not config.traffic.writes:
        reasons["dram.pin_gbps"] = "nothing is charged over the pins (traffic.writes)"
    return reasons
