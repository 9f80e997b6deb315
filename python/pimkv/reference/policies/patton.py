"""`patton`: blocks of 16 tokens in groups of 16 that an owner fills one after the other.

Source: PATTON's owned groups of 256 tokens with reference-counted sharing. Our minimal model is `pim-aware`'s
rule over groups in place of regions: own current group, else the lowest empty group, else the group with
the most free ids (lowest number on ties), else none. Staging changes no id and is the scheduler's to count.
"""

from __future__ import annotations

from pimkv.errors import InvalidArgument
from pimkv.reference.policies.pim_aware import PimAware

GROUP = 16  # blocks


class Patton(PimAware):
    """`pim-aware` over groups of 16 blocks, whatever a region is."""

    kind = "patton"

    def __init__(self, blocks: int, blocks_per_region: int) -> None:
        if blocks % GROUP:
            raise InvalidArgument(f"blocks = {blocks}: must be a multiple of {GROUP}, whole groups")
        super().__init__(blocks, GROUP)

    def plan(self, owner: int, blocks: int) -> None:
        """Nothing: best-fit planning is an option of `pim-aware`."""

    def compact(self, most_used: int) -> list[tuple[int, int]]:
        """Refused, as by every policy but `pim-aware`."""
        raise InvalidArgument(f"kind = {self.kind!r}: compact needs 'pim-aware'")
