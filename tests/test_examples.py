"""The examples run as they stand, with and without matplotlib."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

# Hides a library from the example that it runs.
WITHOUT = "import runpy, sys; sys.modules['matplotlib'] = None; script = sys.argv.pop(1); runpy.run_path(script, run_name='__main__')"


@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples are beside the tests in a checkout only")
@pytest.mark.parametrize("drawing", [True, False])
def test_the_sweep_prints_a_table_and_draws_a_figure_where_it_can(drawing: bool, tmp_path: Path) -> None:
    if drawing and find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")
    script = [str(EXAMPLES / "sweep.py"), str(tmp_path)]
    command = [sys.executable, *([] if drawing else ["-c", WITHOUT]), *script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "12 points over allocator.kind, scheduler.headroom"
    start = lines.index("controller bandwidth, GB/s")
    assert lines[start + 1].split() == ["headroom", "paged", "pim-aware", "pim-gather"]
    rows = [[float(cell.replace(",", "")) for cell in line.split()] for line in lines[start + 2 : start + 6]]
    assert [row[0] for row in rows] == [0.6, 0.8, 1.0, 1.3]
    # Under pressure pim-gather holds what pim-aware loses.
    assert rows[0][3] > rows[0][2] > rows[0][1]
    assert (tmp_path / "headroom.png").exists() == drawing
