"""`paged-fifo`: a queue of free ids, as vLLM V1 keeps it; the block that has been free longest goes first.

Source: vLLM V1's free block queue (0.10 to 0.23, and to this day for blocks hashed for prefix caching):
`popleft`, freed blocks appended, block 0 popped at the start as the null block. Left out: lookups by hash.
"""

from __future__ import annotations

from pimkv.reference.policy import Policy


class PagedFifo(Policy):
    """A queue filled with ids 1..blocks - 1; id 0 is the null block and never handed out."""

    kind = "paged-fifo"

    def __init__(self, blocks: int, blocks_per_region: int) -> None:
        super().__init__(blocks, blocks_per_region)
        self.queue = list(range(1, blocks))

    def _pick(self, owner: int) -> int | None:
        return self.queue.pop(0) if self.queue else None

    def _put_back(self, block: int) -> None:
        self.queue.append(block)

    @property
    def free_blocks(self) -> int:
        return len(self.queue)

    def check(self) -> None:
        self._check_partition([0], self.queue)
