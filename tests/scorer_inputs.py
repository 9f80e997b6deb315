"""Address maps and block tables that the tests of the reference scorer share."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from pimkv.reference import AddressMap

# The published DRAM: 32 channels, 16 banks, 1 KiB rows, and the address map of all published rows.
HBM3 = {
    "channels": 32,
    "bank_groups": 4,
    "banks_per_group": 4,
    "rows": 16384,
    "row_bytes": 1024,
    "burst_bytes": 32,
}
HOST_CACHELINE = "row:14 col:4 bg:2 ba:2 ch:5 col:1"

# One channel, four banks, four bursts per row; a block is one burst, so a table spells out a burst stream.
ONE_CHANNEL = AddressMap(
    "row:3 bg:1 ba:1 col:2",
    channels=1,
    bank_groups=2,
    banks_per_group=2,
    rows=8,
    row_bytes=128,
    burst_bytes=32,
)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@st.composite
def address_maps(draw: Any) -> AddressMap:
    """Small maps with their bits in any order and any hash terms."""
    bits = {"ch": draw(st.integers(0, 3)), "bg": draw(st.integers(0, 2)), "ba": draw(st.integers(0, 2))}
    bits |= {"row": draw(st.integers(1, 4)), "col": draw(st.integers(0, 3))}
    segments = draw(st.permutations([f"{field}:1" for field, count in bits.items() for _ in range(count)]))
    term = st.tuples(st.sampled_from(["ba", "bg", "ch"]), st.integers(0, bits["row"] - 1))
    terms = [f"{field}^row:{shift}" for field, shift in draw(st.lists(term, max_size=3))]
    return AddressMap(
        " ".join(segments) + ("; " + " ".join(terms) if terms else ""),
        channels=2 ** bits["ch"],
        bank_groups=2 ** bits["bg"],
        banks_per_group=2 ** bits["ba"],
        rows=2 ** bits["row"],
        row_bytes=32 * 2 ** bits["col"],
        burst_bytes=32,
    )


class Tables:
    """Stands in for a manager: tables written down instead of allocated, one token per block unless said."""

    def __init__(self, *tables: list[int], block_tokens: int = 1, missing: int = 0) -> None:
        self.tables = tables
        self.block_tokens = block_tokens
        self.missing = missing  # tokens that the last block of each table lacks

    def length(self, seq: int) -> int:
        return len(self.tables[seq]) * self.block_tokens - self.missing

    def table(self, seq: int) -> np.ndarray:
        return ints(*self.tables[seq])
