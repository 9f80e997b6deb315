"""What the study published, row by row (published.csv), and how a run of ours is held against it."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

COUNTERS = (
    "decode_steps", "samples", "pool_blocks", "peak_live_blocks", "blocks_allocated",
    "admission_failures", "preemptions", "cow_copies", "copied_bytes",
)  # fmt: skip
FIGURES = ("m1", "m2", "m3_gbps", "m4_ns")


@dataclass(frozen=True)
class Row:
    """One published row: what was run, and what was printed. Empty where nothing was printed."""

    values: dict[str, str]

    @property
    def config(self) -> dict[str, Any]:
        """The config that runs this row, for `pimkv.config.load`."""
        v = self.values
        return {
            "seed": int(v["seed"]),
            "workload": {"kind": v["workload"], "requests": int(v["requests"])},
            "model": {"preset": v["model"]},
            "layout": {"kv_layout": v["kv_layout"], "block_tokens": int(v["block_tokens"])},
            "allocator": {"kind": v["allocator"]},
            "scheduler": {
                "admission": v["admission"],
                "max_batch": int(v["max_batch"]),
                "headroom": float(v["headroom"]),
            },
            "scoring": {"sample_every": int(v["sample_every"]), "sample_seqs": int(v["sample_seqs"])},
        }

    @property
    def name(self) -> str:
        """A name that no other row has."""
        v = self.values
        parts = [v[k] for k in ("workload", "allocator", "model", "spec_adopt", "scratch") if v[k]]
        parts += [f"bt{v['block_tokens']}", f"n{v['requests']}", f"h{v['headroom']}", v["admission"]]
        return "/".join(parts + ([v["kv_layout"]] if v["kv_layout"] != "merged-token" else []))

    def differences(self, summary: dict[str, Any]) -> list[str]:
        """Every printed value that the summary of a run does not show; empty if all digits are equal."""
        found = []
        measured = (
            {k: summary[k] for k in COUNTERS}
            | {k: summary["published"][k] for k in FIGURES}
            | {"region_spread": summary["placement"]["region_spread"]}
        )
        for name, value in measured.items():
            printed = self.values[name]
            if printed and not shows(value, printed):
                found.append(f"{name}: published {printed}, measured {value}")
        return found


def shows(value: float | None, printed: str) -> bool:
    """Whether a value prints as the published text: an integer, or `%.8g` (some rows `%.6g`)."""
    if value is None:
        return False
    if isinstance(value, int):
        return str(value) == printed
    return any(float(f"{value:.{digits}g}") == float(printed) for digits in _digits(printed))


def _digits(printed: str) -> tuple[int, ...]:
    # Text of at most six digits may be `%.6g`, or `%.8g` whose last digits are zeros.
    significant = len(printed.replace(".", "").lstrip("0"))
    return (8,) if significant > 6 else (8, 6)


@cache
def rows() -> tuple[Row, ...]:
    """All published rows, in their order."""
    text = files("pimkv").joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(Row(dict(row)) for row in csv.DictReader(text.splitlines()))
