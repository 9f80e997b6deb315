"""A small store and small recordings that the tests of reports draw from."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from pimkv.cli import main
from pimkv.config import load, merge
from pimkv.sweep.execute import run_sweep

OFF = {"own_first": False, "relocate_tail": False, "repair": 0}


def configs() -> list[dict[str, Any]]:
    """Points for every figure, small: two block sizes, headrooms and models, and a few options of pim-gather."""
    base: dict[str, Any] = {"workload": {"requests": 30}, "scheduler": {"max_batch": 16}}
    tight = merge(base, {"scheduler": {"admission": "vllm", "headroom": 0.5}})
    found = []
    for kind, seed in itertools.product(("paged", "pim-aware"), (0, 1)):
        common = {"allocator": {"kind": kind}, "seed": seed}
        found += [merge(base, {**common, "layout": {"block_tokens": n}}) for n in (4, 16, 32)]
        found += [merge(base, {**common, "model": {"preset": m}}) for m in ("mqa-1kv", "phi-4")]
    for kind, headroom in itertools.product(("paged", "pim-aware", "pim-gather"), (0.5, 0.8)):
        found.append(merge(tight, {"allocator": {"kind": kind}, "scheduler": {"headroom": headroom}}))
    for options in (OFF, {**OFF, "repair": 4}, {"repair": 16}):
        found.append(merge(tight, {"allocator": {"kind": "pim-gather", "options": options}}))
    return found


def make_store(path: Path) -> Path:
    """Runs `configs` into a store."""
    result = run_sweep([load(tables) for tables in configs()], store=path, jobs=1)
    assert not result.failures
    return path


def record(path: Path, *arguments: str) -> Path:
    """`pimkv run ... --record-placement path`."""
    done = CliRunner().invoke(main, ["run", "--record-placement", str(path), *arguments])
    assert done.exit_code == 0, done.output
    return path
