"""Slow, obvious Python twins of everything the Rust core counts; they import nothing from it.

Each class has the name, the arguments and the errors of its Rust counterpart and must return the same
numbers, block id for block id. Nothing here is tuned: the twins are what the fast code is checked against.
"""

from __future__ import annotations

from pimkv.reference.controller import Controller
from pimkv.reference.dram import AddressMap
from pimkv.reference.manager import BlockManager
from pimkv.reference.pool import Pool
from pimkv.reference.row_groups import RowGroupScorer
from pimkv.reference.scoring import Scorer

__all__ = ["AddressMap", "BlockManager", "Controller", "Pool", "RowGroupScorer", "Scorer"]
