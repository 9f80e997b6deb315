"""Where the parts of a token lie: what each pass over a sequence's cache reads, in bursts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pimkv.errors import InvalidArgument
from pimkv.reference.arguments import Ints, integer
from pimkv.reference.dram import AddressMap

PartBytes = tuple[int, int, int, int, int]
"""A part as callers write it, bytes: base, stride, bytes, block, unit."""


class Part(NamedTuple):
    """One part of every token. All numbers are bursts.

    That of token i of block b starts at base + (b // n) * unit + (b % n) * block + i * stride, with n blocks
    per unit, and is `size` long.
    """

    base: int
    stride: int
    size: int
    block: int
    unit: int


def parse_passes(passes: Any, burst_bytes: int) -> list[list[Part]]:
    """The parts of each pass, in bursts.

    Raises InvalidArgument for a pass without parts, a part that is not five numbers, and a number that is
    not a whole number of bursts; only a base may be 0.
    """
    if not isinstance(passes, Sequence) or not passes:
        raise InvalidArgument(f"passes = {passes!r}: must be a list of one pass or more")
    parsed = []
    for k, parts in enumerate(passes):
        if not isinstance(parts, Sequence) or not parts:
            raise InvalidArgument(f"passes[{k}] = {parts!r}: must be a list of one part or more")
        parsed.append([parse_part(f"passes[{k}][{j}]", part, burst_bytes) for j, part in enumerate(parts)])
    return parsed


def parse_part(name: str, part: Any, burst_bytes: int) -> Part:
    """One part in bursts; `name` is what it is called in an error."""
    fields = ("base", "stride", "bytes", "block", "unit")
    if not isinstance(part, Sequence) or len(part) != len(fields):
        raise InvalidArgument(f"{name} = {part!r}: must be ({', '.join(fields)})")
    numbers = []
    for field, value in zip(fields, part, strict=True):
        number = integer(f"{name} {field}", value, 0 if field == "base" else 1)
        if number % burst_bytes:
            raise InvalidArgument(
                f"{name} {field} = {number}: must be a multiple of burst_bytes ({burst_bytes})"
            )
        numbers.append(number // burst_bytes)
    return Part(*numbers)


def alignment(parts: Sequence[Part]) -> int:
    """Bursts: the largest number that divides every start and every length of these parts."""
    return math.gcd(*(number for part in parts for number in part))


def part_bursts(
    address_map: AddressMap, part: Part, blocks_per_unit: int, block: int, first: int, stop: int
) -> Ints:
    """The burst numbers of the part of tokens first..stop - 1 of a block: int64, one row per token.

    Raises InvalidArgument if one lies outside the map.
    """
    unit, place = divmod(block, blocks_per_unit)
    start = part.base + unit * part.unit + place * part.block
    # in Python's own integers: numpy's would wrap
    for burst in (start + first * part.stride, start + (stop - 1) * part.stride + part.size - 1):
        if not 0 <= burst < address_map.bursts:
            raise InvalidArgument(
                f"bursts contains {burst}, of block {block}: every element must be in"
                f" 0..{address_map.bursts - 1}"
            )
    tokens = start + part.stride * np.arange(first, stop, dtype=np.int64)
    bursts: Ints = tokens[:, None] + np.arange(part.size, dtype=np.int64)
    return bursts
