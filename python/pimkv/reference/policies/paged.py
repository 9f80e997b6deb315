"""`paged`: a stack of free ids, as vLLM v0.2.7 keeps it; the block freed last is handed out first."""

from __future__ import annotations

from pimkv.reference.policy import Policy


class Paged(Policy):
    """A stack filled with ids 0..blocks - 1, so a fresh pool hands out descending ids, last freed first."""

    kind = "paged"

    def __init__(self, blocks: int, blocks_per_region: int) -> None:
        super().__init__(blocks, blocks_per_region)
        self.stack = list(range(blocks))

    def _pick(self, owner: int) -> int | None:
        return self.stack.pop() if self.stack else None

    def _put_back(self, block: int) -> None:
        self.stack.append(block)

    def check(self) -> None:
        self._check_partition(self.stack)
