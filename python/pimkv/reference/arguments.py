"""Checks of arguments shared by the twins: each returns plain Python values or raises InvalidArgument."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from pimkv.errors import InvalidArgument

Ints = npt.NDArray[np.int64]

INT64_MAX = 2**63 - 1


def integer(name: str, value: Any, low: int, high: int = INT64_MAX) -> int:
    """`value` as an int in low..high (both included); InvalidArgument otherwise."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name} = {value!r}: must be an integer") from None
    if not low <= number <= high:
        raise InvalidArgument(f"{name} = {number}: must be {_range(low, high)}")
    return number


def integers(name: str, values: Any, low: int, high: int = INT64_MAX) -> Ints:
    """`values`, any array or sequence of integers, as an int64 array of its own shape.

    InvalidArgument where it holds anything else, booleans and whole floats too, or an element outside low..high.
    """
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise InvalidArgument(f"{name} = {error}: must hold integers") from None
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise InvalidArgument(f"{name} has dtype {array.dtype}: must hold integers")
    for bad in (int(array.min()), int(array.max())):
        if not low <= bad <= high:
            raise InvalidArgument(f"{name} contains {bad}: every element must be {_range(low, high)}")
    return array.astype(np.int64)


def vector(name: str, values: Any, low: int, high: int = INT64_MAX, length: int | None = None) -> list[int]:
    """`values`, one-dimensional and of `length` elements if that is given, as a list of ints in low..high."""
    array = integers(name, values, low, high)
    if array.ndim != 1:
        raise InvalidArgument(f"{name} has shape {array.shape}: must be one-dimensional")
    if length is not None and len(array) != length:
        raise InvalidArgument(f"{name} has {len(array)} elements: must have {length}")
    return [int(value) for value in array]


def power_of_two(name: str, value: Any) -> int:
    """`value` as a power of two, 1 included; InvalidArgument otherwise."""
    number = integer(name, value, 1)
    if number & (number - 1):
        raise InvalidArgument(f"{name} = {number}: must be a power of two")
    return number


def _range(low: int, high: int) -> str:
    return f"{low} or more" if high == INT64_MAX else f"in {low}..{high}"
