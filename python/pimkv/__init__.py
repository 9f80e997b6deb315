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

__all__ = [
    "AddressMap",
    "BlockManager",
    "Config",
    "Controller",
    "Pool",
    "Result",
    "Scorer",
    "Simulation",
    "__version__",
    "read_oplog",
    "read_placement",
]

_HOMES = {
    "Config": "pimkv.config",
    "Controller": "pimkv.controller",
    "Result": "pimkv.result",
    "Simulation": "pimkv.simulation",
    "read_oplog": "pimkv.oplog",
    "read_placement": "pimkv.placement",
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
