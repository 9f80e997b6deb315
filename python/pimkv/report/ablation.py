"""The table of what each lever of `pim-gather` is worth: `pimkv compare --ablation gather`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pimkv.config import geometry
from pimkv.report.tables import Row, aligned, figure, scene
from pimkv.result import SCHEMA_VERSION, Result, dumps

OFF: Mapping[str, object] = {"own_first": False, "relocate_tail": False, "repair": 0, "reserve": 0}

ROWS: Mapping[str, object] = {"layout": {"traversal": "row"}}


def _with(**options: object) -> dict[str, object]:
    return {"allocator": {"options": options}}


GATHER: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "paged": ("paged", {}),
    "pim-aware": ("pim-aware", {}),
    "no lever": ("pim-gather", _with(**OFF)),
    "own region first": ("pim-gather", _with(**{**OFF, "own_first": True})),
    "relocation in growth": ("pim-gather", _with(**{**OFF, "relocate_tail": True})),
    "own + relocation": ("pim-gather", _with(**{**OFF, "own_first": True, "relocate_tail": True})),
    "repair, budget 4": ("pim-gather", _with(**{**OFF, "repair": 4})),
    "repair, budget 32": ("pim-gather", _with(**{**OFF, "repair": 32})),
    "reserve 64": ("pim-gather", _with(**{**OFF, "reserve": 64})),
    "row order": ("pim-gather", {**_with(**OFF), **ROWS}),
    "own + row order": ("pim-gather", {**_with(**{**OFF, "own_first": True}), **ROWS}),
    "pim-gather": ("pim-gather", {}),
    "  budget 4": ("pim-gather", _with(repair=4)),
    "  budget 8": ("pim-gather", _with(repair=8)),
    "  budget 16": ("pim-gather", _with(repair=16)),
    "  budget 64": ("pim-gather", _with(repair=64)),
    "  without own region first": ("pim-gather", _with(own_first=False)),
    "  without relocation": ("pim-gather", _with(relocate_tail=False)),
    "  with reserve 64": ("pim-gather", _with(reserve=64)),
    "  in row order": ("pim-gather", ROWS),
}
"""Label -> allocator and what differs from the defaults, as tables of a config."""


def copy_share(summary: Mapping[str, Any]) -> float | None:
    """Blocks that copies read and write over the blocks that attention reads."""
    read = summary["blocks_read"]
    return 2 * summary["relocated_blocks"] / read if read else None


def net_gbps(result: Result) -> float | None:
    """Controller bandwidth if the pins carry the moves' reads and writes while nothing else goes on.

    Both streams and every layer move alike, so one layer stands for all.
    """
    exact, config = result.summary["exact"], result.config
    moved = 2 * result.summary["relocated_blocks"] * geometry(config).block_bytes
    if not exact["controller_gbps"]:
        return None
    time_ns = exact["bytes"] / exact["controller_gbps"] + moved / config.dram.pin_gbps
    return float(exact["bytes"] / time_ns)


def ablation_table(labels: Sequence[str], results: Sequence[Result]) -> str:
    """One row per setting; gains are over the first row."""
    rows: list[Row] = [
        ("lever", "M3 exact", "gain", "published", "controller", "gain", "net", "gain",
         "copies %", "moved", "splits",
         "preempted", "steps"),
    ]  # fmt: skip
    base, base_net = results[0].summary["exact"], net_gbps(results[0])
    for label, result in zip(labels, results, strict=True):
        s, exact = result.summary, result.summary["exact"]
        share = copy_share(s)
        gains = [
            figure(exact[name] / base[name] if exact[name] and base[name] else None, 2)
            for name in ("m3_gbps", "controller_gbps")
        ]
        net = net_gbps(result)
        rows.append((
            label,
            figure(exact["m3_gbps"], 1), gains[0], figure(s["published"]["m3_gbps"], 1),
            figure(exact["controller_gbps"], 1), gains[1],
            figure(net, 1), figure(net / base_net if net and base_net else None, 2),
            figure(None if share is None else 100 * share, 3),
            f"{s['relocated_blocks']:,}", f"{s['gather']['splits']:,}", f"{s['preemptions']:,}",
            f"{s['decode_steps']:,}",
        ))  # fmt: skip
    note = (
        "  bandwidths in GB/s; net: controller, with what moves read and write charged over the pins\n"
        "  copies: blocks that moves read and write over blocks that attention reads"
    )
    return "\n".join([scene(results[0].config, results[0].summary), "", *aligned(rows), "", note])


def ablation_json(labels: Sequence[str], results: Sequence[Result]) -> str:
    """The same for machines: label, config and summary of each run."""
    runs = [
        {
            "lever": label.strip(),
            "copy_share": copy_share(result.summary),
            "controller_net_gbps": net_gbps(result),
            **result.report(),
        }
        for label, result in zip(labels, results, strict=True)
    ]
    return dumps({"schema_version": SCHEMA_VERSION, "ablation": "gather", "runs": runs})
