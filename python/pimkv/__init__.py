"""A paged KV-cache allocator that knows which DRAM row its blocks land in, and its laboratory.

The public names below are imported on first use, so that `import pimkv` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pimkv._pimkv import AddressMap, BlockManager, Pool, Scorer
    from pimkv.config import Config
    from pimkv.controller import Controller
    from pimkv.oplog import read_oplog
    from pimkv.placement import read_placement
    from pimkv.result import Result
    from pimkv.simulation import Simulation
    from pimkv.sweep.execute import SweepResult, run_sweep
    from pimkv.sweep.spec import Sweep, load_sweep
    from pimkv.sweep.store import Store

__all__ = [
    "AddressMap",
    "BlockManager",
    "Config",
    "Controller",
    "Pool",
    "Result",
    "Scorer",
    "Simulation",
    "Store",
    "Sweep",
    "SweepResult",
    "__version__",
    "load_sweep",
    "read_oplog",
    "read_placement",
    "run_sweep",
]

_HOMES = {
    "Config": "pimkv.config",
    "Controller": "pimkv.controller",
    "Result": "pimkv.result",
    "Simulation": "pimkv.simulation",
    "Store": "pimkv.sweep.store",
    "Sweep": "pimkv.sweep.spec",
    "SweepResult": "pimkv.sweep.execute",
    "load_sweep": "pimkv.sweep.spec",
    "read_oplog": "pimkv.oplog",
    "read_placement": "pimkv.placement",
    "run_sweep": "pimkv.sweep.execute",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pimkv' has no attribute {name!r}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    from pimkv.backend import core

    return getattr(core(), name)


def __dir__() -> list[str]:
    return sorted(__all__)
