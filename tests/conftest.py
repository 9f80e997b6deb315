"""Hypothesis profiles (PIMKV_HYPOTHESIS=fast|ci|soak) and fixtures that several files use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

for name, examples, steps in (("fast", 25, 30), ("ci", 100, 50), ("soak", 3000, 100)):
    settings.register_profile(
        name,
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        # The same examples in every run: a failure that comes and goes helps nobody.
        derandomize=name != "soak",
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(os.environ.get("PIMKV_HYPOTHESIS", "fast"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data and traces that stands beside a checkout and never ships."""
    folder = Path(os.environ.get("PIMKV_SHARED", Path(__file__).parents[2] / "shared"))
    if not folder.is_dir():
        pytest.skip("no folder of shared reference data beside this checkout")
    return folder
