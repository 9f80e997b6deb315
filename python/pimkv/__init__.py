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
]

_HOMES = {
    "AddressMap": "pimkv._pimkv",
    "BlockManager": "pimkv._pimkv",
    "Config": "pimkv.config",
    "Controller": "pimkv.controller",
    "Pool": "pimkv._pimkv",
    "Result": "pimkv.result",
    "Scorer": "pimkv._pimkv",
    "Simulation": "pimkv.simulation",
    "__version__": "pimkv._pimkv",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pimkv' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
