"""Reads the measured controller data in the shared folder; its README explains the columns."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("PIMKV_SHARED", ROOT.parent / "shared"))
FOLDER = SHARED / "reference" / "attacc"

needs_data = pytest.mark.skipif(
    not FOLDER.is_dir(), reason=f"no measured data at {FOLDER} (set PIMKV_SHARED)"
)

Trace = list[tuple[int, int]]


def table(name: str) -> list[dict[str, str]]:
    """The rows of a CSV file of the folder; empty where it is absent, so that collection still works."""
    path = FOLDER / name
    if not path.is_file():
        return []
    limit = csv.field_size_limit(1 << 30)  # a stream of rows is one field
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    finally:
        csv.field_size_limit(limit)


def preset_name(measured: str) -> str:
    """Our name of a preset of the measured simulator: HBM3_5.2Gbps_NPC is attacc-hbm3-5.2-npc."""
    return "attacc-" + measured.lower().replace("_", "-").replace("gbps", "")


def rows_of(encoded: str) -> list[int]:
    """Row ids of a run-length encoded stream; -1 is a barrier."""
    rows: list[int] = []
    for token in encoded.split():
        row, _, times = token.partition("*")
        rows += [-1 if row == "B" else int(row)] * int(times or 1)
    return rows


def trace_of(record: dict[str, str]) -> Trace:
    """The (channel, row) pairs of a multi-channel record, in the order they were issued."""
    channels, order, encoded = int(record["channels"]), record["order"], record["rows"]
    if order == "listed":
        pairs = (token.split(":") for token in encoded.split())
        return [(int(channel), row) for channel, rows in pairs for row in rows_of(rows)]
    if encoded.startswith("ALL "):
        per_channel = [rows_of(encoded.removeprefix("ALL "))] * channels
    else:
        per_channel = [rows_of(rows) for rows in encoded.split(" | ")]
    length = max(map(len, per_channel))
    step = {"ch_minor": 1, "block4": 4, "ch_major": length}[order]
    return [
        (channel, row)
        for start in range(0, length, step)
        for channel, rows in enumerate(per_channel)
        for row in rows[start : start + step]
    ]
