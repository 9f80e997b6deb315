"""Time stamps of a trace: exact integers all the way from their text to decode steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from fractions import Fraction
from numbers import Real
from typing import Final

import numpy as np
import numpy.typing as npt

from pimkv.errors import InvalidArgument, TraceError
from pimkv.workload.table import MAX_STEP

# The kinds of time stamp, as messages name them. A trace has one kind: two have no common origin.
NO_TIME: Final = "not a time"
NUMBER: Final = "a number"
LOCAL: Final = "a date-time without time zone"
ZONED: Final = "a date-time with time zone"

Stamp = tuple[str, int, int]
"""Kind, value and decimal places: the time is value / 10**places seconds (of an origin per kind)."""

_ABSENT: Final[Stamp] = (NO_TIME, 0, 0)
_MAX_STEP_MS: Final = 10**12

# The lengths are bounded so that no exponent or digit string of a broken file becomes a giant integer.
_NUMBER = re.compile(r"([+-]?[0-9]{1,40})(?:\.([0-9]{0,40}))?(?:[eE]([+-]?[0-9]{1,2}))?")
_DATE_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[T ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,40}))?"
    r" ?(?:(Z)|([+-])([0-9]{2}):?([0-9]{2}))?"
)


def parse(text: str | None, places: int) -> Stamp:
    """Read a time stamp: a number of units of 10**-places seconds, or an ISO 8601 date and time of day.

    None and whatever else is not a time give the kind `NO_TIME`; nothing is raised.
    """
    if text is None:
        return _ABSENT
    if number := _NUMBER.fullmatch(text):
        whole, fraction, exponent = number.groups(default="")
        value, places = int(whole + fraction), places + len(fraction) - int(exponent or 0)
        return (NUMBER, value, places) if places >= 0 else (NUMBER, value * 10**-places, 0)
    date = _DATE_TIME.fullmatch(text)
    if date is None:
        return _ABSENT
    year, month, day, hour, minute, second, fraction, zulu, sign, hours, minutes = date.groups(default="")
    try:
        at = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second))
    except ValueError:  # a thirteenth month, a 61st second
        return _ABSENT
    seconds = ((at.toordinal() * 24 + at.hour) * 60 + at.minute) * 60 + at.second
    if sign:
        if int(hours) > 23 or int(minutes) > 59:
            return _ABSENT
        seconds -= int(sign + "1") * (int(hours) * 3600 + int(minutes) * 60)
    value = seconds * 10 ** len(fraction) + int(fraction or 0)
    return (ZONED if zulu or sign else LOCAL, value, len(fraction))


def common_ticks(values: Sequence[int], places: Sequence[int]) -> tuple[list[int], int]:
    """Put times of various decimal places on one grid: the times as integers, and its ticks in a second."""
    most = max(places, default=0)
    return [v * 10 ** (most - p) for v, p in zip(values, places, strict=True)], 10**most


def exact_step(step_ms: float) -> Fraction:
    """The length of a decode step, ms, at its decimal meaning; `InvalidArgument` unless in (0, 1e12]."""
    is_number = isinstance(step_ms, Real) and not isinstance(step_ms, bool)
    if not is_number or not 0 < step_ms <= _MAX_STEP_MS:
        raise InvalidArgument(f"step_ms = {step_ms!r}: allowed a number above 0 and up to {_MAX_STEP_MS}")
    # `str` gives back the decimal that was written; the float itself is a nearby binary fraction.
    return Fraction(str(step_ms))


def to_steps(ticks: Sequence[int], per_second: int, step_ms: Fraction) -> npt.NDArray[np.int64]:
    """Decode steps of ascending `ticks`, shape (n,): the time since the first in whole steps of `step_ms`.

    Raises `TraceError` where the last lies beyond `MAX_STEP`.
    """
    per_step = step_ms * per_second / 1000
    first, up, down = ticks[0], per_step.denominator, per_step.numerator
    last = (ticks[-1] - first) * up // down
    if last > MAX_STEP:
        raise TraceError(
            f"step_ms = {float(step_ms)}: the last request would arrive in decode step {last}; "
            f"allowed up to {MAX_STEP}"
        )
    return np.array([(t - first) * up // down for t in ticks], dtype=np.int64)
