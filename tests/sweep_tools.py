"""What the tests of sweeps share: a small spec, and the command as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from pimkv.cli import main

SMALL = """
seeds = {seeds}
[base]
workload.requests = {requests}
[grid]
"allocator.kind" = ["paged", "pim-aware"]
"""


def pimkv(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def small(folder: Path, *, seeds: int = 4, requests: int = 12) -> Path:
    """A spec of two points per seed, a few milliseconds each."""
    spec = folder / "small.toml"
    spec.write_text(SMALL.format(seeds=seeds, requests=requests))
    return spec


def started(*args: object, **popen: object) -> subprocess.Popen[str]:
    """`pimkv sweep ...` as a process of its own."""
    code = "import sys; from pimkv.cli import main; main(sys.argv[1:], prog_name='pimkv')"
    return subprocess.Popen(
        [sys.executable, "-c", code, "sweep", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "error"},
        **popen,  # type: ignore[call-overload]
    )


def exported(store: Path) -> str:
    """The CSV of a store."""
    result = pimkv("results", "export", "--store", store)
    assert result.exit_code == 0, result.output
    return result.stdout
