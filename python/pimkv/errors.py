"""The exceptions of pimkv: one small family, raised alike by the Rust core and the Python twins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class PimkvError(Exception):
    """Base of everything pimkv raises on purpose."""


class Problem(NamedTuple):
    """One mistake of a request: where it is, what was given, what is wrong, and what may be meant."""

    field: str  # dotted path ("scheduler.max_batch"), or the file or flag that holds the mistake
    value: object  # as given; None where there is no single value to show
    message: str  # what is wrong, then what is allowed
    hint: str = ""  # the nearest valid name or value, as a question
    flag: str = ""  # where the caller set it ("--max-batch"), if it said so


class ConfigError(PimkvError, ValueError):
    """A request that cannot be run as asked; the message lists every mistake found, one per line.

    `problems` holds the same mistakes in the same order, for callers that show them their own way.
    """

    def __init__(self, message: str = "", problems: Iterable[Problem] = ()) -> None:
        # Only the message goes to `args`, so that the error survives pickling between processes.
        super().__init__(message)
        self.problems = list(problems)


class TraceError(PimkvError, ValueError):
    """A request trace that cannot be read; the message names file, line and value."""


class LogError(PimkvError, ValueError):
    """A recorded file (operation log, placement) that is damaged, foreign or not to be replayed; the message
    names the offset in it."""


class StoreError(PimkvError):
    """The store of a sweep that cannot be read or written, such as on a full disk."""


class MissingExtra(ConfigError, ImportError):
    """A library that only some installations have; the message tells which extra brings it."""


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
