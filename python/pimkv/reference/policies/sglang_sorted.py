"""`sglang-sorted`: SGLang's page allocator with `need_sort`, the strongest of the stock orders.

Source: SGLang's `PagedTokenToKVPoolAllocator`: `free_pages` in order, `release_pages` apart; an allocation of
more pages than `free_pages` has first concatenates and sorts both. Our minimal model: an admission asks for
all its blocks at once, everything else for one at a time; SGLang asks for the growth of a batch at once.
"""

from __future__ import annotations

from pimkv.reference.policy import Policy


class SglangSorted(Policy):
    """An ordered list of free ids, taken from the front, and the ids freed since it was last sorted."""

    kind = "sglang-sorted"

    def __init__(self, blocks: int, blocks_per_region: int) -> None:
        super().__init__(blocks, blocks_per_region)
        self.free_pages = list(range(blocks))
        self.release_pages: list[int] = []

    def plan(self, owner: int, blocks: int) -> None:
        if blocks > len(self.free_pages):
            self.free_pages = sorted(self.free_pages + self.release_pages)
            self.release_pages = []

    def _pick(self, owner: int) -> int | None:
        self.plan(owner, 1)
        return self.free_pages.pop(0) if self.free_pages else None

    def _put_back(self, block: int) -> None:
        self.release_pages.append(block)

    def check(self) -> None:
        self._check_partition(self.free_pages, self.release_pages)
