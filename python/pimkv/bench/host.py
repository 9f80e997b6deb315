"""What a reader needs to judge a time: facts about the machine, and how far repetitions were apart."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")


def host() -> dict[str, Any]:
    """CPU, cores, load, system and versions."""
    model = ""
    if CPUINFO.exists():
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": model or platform.processor(),
        "cores": os.cpu_count(),
        "load_1min": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "pimkv": version("pimkv"),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Least, median and largest."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}
