"""The exceptions of pimkv: one small family, raised alike by the Rust core and the Python twins."""

from __future__ import annotations


class PimkvError(Exception):
    """Base of everything pimkv raises on purpose."""


class ConfigError(PimkvError, ValueError):
    """A request that cannot be run as asked; the message lists every mistake found, one per line."""


class TraceError(PimkvError, ValueError):
    """A request trace that cannot be read; the message names file, line and value."""


class InvalidArgument(PimkvError, ValueError):
    """An argument outside its range; the message names the argument, its value and the range."""


class DoubleFree(PimkvError, ValueError):
    """A block was given back that is already free, or twice in one call."""


class ForeignBlock(PimkvError, ValueError):
    """A block id that the pool does not have."""


class UnknownSequence(PimkvError, ValueError):
    """A sequence that the block manager does not hold."""


class DuplicateSequence(PimkvError, ValueError):
    """A sequence that the block manager already holds."""


class BrokenInvariant(PimkvError):
    """`check()` found the state inconsistent: a defect of pimkv, never of its caller."""
