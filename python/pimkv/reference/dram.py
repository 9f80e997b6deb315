"""The bit-field DRAM address map: burst number to (channel, bank, row, column) and back, one bit at a time.

Unlike a real controller the map knows nothing of ranks, refresh or repair: it is a permutation of burst
numbers.
"""

from __future__ import annotations

import re

import numpy as np

from pimkv.errors import InvalidArgument
from pimkv.reference.arguments import Ints, integers, power_of_two

FIELDS = ("row", "col", "bg", "ba", "ch")
HASHED_FIELDS = ("ba", "bg", "ch")
MAX_ADDRESS_BITS = 62  # burst numbers must stay inside int64


class AddressMap:
    """An exactly invertible map between burst numbers and places in the DRAM.

    `spec` lists fields MSB first, such as `row:14 col:4 bg:2 ba:2 ch:5 col:1`; a field may occur in several
    segments, the rightmost of which holds its lowest bits. After an optional `;` come hash terms such as
    `ba^row:2`: the field is XORed with (row >> 2), masked to the field's width. Only ba, bg and ch may be
    hashed, and only with the row, so the map stays invertible.

    Sizes are counts (`channels`, `bank_groups`, `banks_per_group`, `rows` per bank) or bytes (`row_bytes` of
    one row of one bank, `burst_bytes`), all powers of two. A field's widths must add up to log2 of its size;
    col counts the bursts of a row. Raises InvalidArgument otherwise.
    """

    def __init__(
        self,
        spec: str,
        *,
        channels: int,
        bank_groups: int,
        banks_per_group: int,
        rows: int,
        row_bytes: int,
        burst_bytes: int,
    ) -> None:
        self.spec = spec
        self.channels = power_of_two("channels", channels)
        self.bank_groups = power_of_two("bank_groups", bank_groups)
        self.banks_per_group = power_of_two("banks_per_group", banks_per_group)
        self.rows = power_of_two("rows", rows)
        self.row_bytes = power_of_two("row_bytes", row_bytes)
        self.burst_bytes = power_of_two("burst_bytes", burst_bytes)
        if self.row_bytes < self.burst_bytes:
            raise InvalidArgument(f"row_bytes = {row_bytes}: must be at least burst_bytes ({burst_bytes})")
        self.banks = self.bank_groups * self.banks_per_group
        self.columns = self.row_bytes // self.burst_bytes
        self.sizes = {
            "row": self.rows,
            "col": self.columns,
            "bg": self.bank_groups,
            "ba": self.banks_per_group,
            "ch": self.channels,
        }
        self.bursts = self.channels * self.banks * self.rows * self.columns
        if self.bursts > 2**MAX_ADDRESS_BITS:
            raise InvalidArgument(
                f"the sizes give {self.bursts} bursts: must be 2**{MAX_ADDRESS_BITS} at most"
            )

        segments, _, terms = spec.partition(";")
        # positions[field][k] is the place in the burst number of bit k of the field; place 0 is the lowest
        self.positions = _parse_segments(spec, segments, self.sizes)
        # hashes lists (field, shift): the field is XORed with (row >> shift)
        self.hashes = _parse_hash_terms(spec, terms, self.sizes)

    def decode(self, bursts: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Where each burst lies: (channel, bank, row, column), int64 arrays of the shape of `bursts`.

        `bursts` holds burst numbers (byte address / burst_bytes); `bank` is flat, bank group *
        banks_per_group + bank. Raises InvalidArgument for a number outside 0..bursts of the whole DRAM - 1.
        """
        address = integers("bursts", bursts, 0, self.bursts - 1)
        raw = {}
        for field in FIELDS:
            raw[field] = np.zeros_like(address)
            for bit, position in enumerate(self.positions[field]):
                raw[field] |= ((address >> position) & 1) << bit
        place = self._xor_with_row(raw)
        bank = place["bg"] * self.banks_per_group + place["ba"]
        return place["ch"], bank, place["row"], place["col"]

    def encode(self, channel: Ints, bank: Ints, row: Ints, column: Ints) -> Ints:
        """The burst number at each place: the inverse of `decode`; arrays of one shape, int64 result.

        Raises InvalidArgument for a coordinate outside the DRAM or for arrays of different shapes.
        """
        flat_bank = integers("bank", bank, 0, self.banks - 1)
        field = {
            "ch": integers("channel", channel, 0, self.channels - 1),
            "bg": flat_bank // self.banks_per_group,
            "ba": flat_bank % self.banks_per_group,
            "row": integers("row", row, 0, self.rows - 1),
            "col": integers("column", column, 0, self.columns - 1),
        }
        shapes = {values.shape for values in field.values()}
        if len(shapes) > 1:
            raise InvalidArgument(
                f"channel, bank, row and column have shapes {sorted(shapes)}: must be one shape"
            )
        # the row itself is never hashed, so the same XOR undoes itself
        raw = self._xor_with_row(field)
        address = np.zeros_like(field["row"])
        for name in FIELDS:
            for bit, position in enumerate(self.positions[name]):
                address |= ((raw[name] >> bit) & 1) << position
        return address

    def _xor_with_row(self, field: dict[str, Ints]) -> dict[str, Ints]:
        hashed = dict(field)
        for name, shift in self.hashes:
            hashed[name] = hashed[name] ^ ((field["row"] >> shift) & (self.sizes[name] - 1))
        return hashed


def _parse_segments(spec: str, segments: str, sizes: dict[str, int]) -> dict[str, list[int]]:
    """The positions of every field's bits, lowest bit first."""
    positions: dict[str, list[int]] = {field: [] for field in FIELDS}
    place = 0
    for segment in reversed(segments.split()):
        match = re.fullmatch(r"([a-z]+):(\d+)", segment, re.ASCII)
        if match is None or match[1] not in FIELDS:
            raise InvalidArgument(
                f"spec = {spec!r}: segment {segment!r} must be field:width"
                f" with a field of {', '.join(FIELDS)}"
            )
        width = int(match[2])
        if width > MAX_ADDRESS_BITS:
            raise InvalidArgument(f"spec = {spec!r}: width of {segment!r} must be in 0..{MAX_ADDRESS_BITS}")
        positions[match[1]].extend(range(place, place + width))
        place += width
    for field, size in sizes.items():
        wanted = size.bit_length() - 1
        if len(positions[field]) != wanted:
            raise InvalidArgument(
                f"spec = {spec!r}: {field} has {len(positions[field])} bits in all,"
                f" must have {wanted} (its size is {size})"
            )
    return positions


def _parse_hash_terms(spec: str, terms: str, sizes: dict[str, int]) -> list[tuple[str, int]]:
    """The (field, shift) of every hash term."""
    hashes = []
    row_bits = sizes["row"].bit_length() - 1
    for term in terms.split():
        match = re.fullmatch(r"([a-z]+)\^row:(\d+)", term, re.ASCII)
        if match is None or match[1] not in HASHED_FIELDS:
            raise InvalidArgument(
                f"spec = {spec!r}: hash term {term!r} must be field^row:shift"
                f" with a field of {', '.join(HASHED_FIELDS)}"
            )
        if int(match[2]) >= row_bits:
            raise InvalidArgument(f"spec = {spec!r}: shift of {term!r} must be in 0..{row_bits - 1}")
        hashes.append((match[1], int(match[2])))
    return hashes
