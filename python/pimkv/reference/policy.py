"""What every twin of a free-block policy has; the policies themselves are one file each in `policies`.

A policy knows block ids and owners (sequences, a prefix, the scratch), never block tables or reference
counts. It hands out one block at a time; a block handed out is in use until it is given back.
"""

from __future__ import annotations

from pimkv.errors import BrokenInvariant, InvalidArgument


class Policy:
    """What every policy has: ids 0..blocks - 1, of which `in_use` are handed out.

    A subclass says which block comes next (`_pick`), how one returns (`_put_back`) and what must hold
    (`check`).
    """

    kind = ""
    # Whether owners must reserve before they take.
    reserves = False

    def __init__(self, blocks: int, blocks_per_region: int) -> None:
        self.blocks = blocks
        self.blocks_per_region = blocks_per_region
        self.in_use: set[int] = set()

    def take(self, owner: int) -> int | None:
        """The next block for `owner`, or None when there is none."""
        block = self._pick(owner)
        if block is not None:
            self.in_use.add(block)
        return block

    def give(self, block: int) -> None:
        """Take back a block that is in use."""
        self.in_use.remove(block)
        self._put_back(block)

    def forget(self, owner: int) -> None:
        """Drop what is remembered about `owner`; its blocks stay in use. Nothing by default."""

    def reserve(self, owner: int, blocks: int, scratch: int) -> bool:
        """Set aside `blocks` for `owner` to take and `scratch` that stay out of use; False if they are not free.

        Only for policies that reserve.
        """
        raise InvalidArgument(f"kind = {self.kind!r}: reserves nothing")

    def plan(self, owner: int, blocks: int) -> None:
        """Hear that `owner` is about to take so many blocks at once. Nothing by default."""

    def compact(self, most_used: int) -> list[tuple[int, int]]:
        """Empty a region of at most `most_used` blocks and return the moves; only for regions."""
        raise InvalidArgument(f"kind = {self.kind!r}: compact needs 'pim-aware'")

    def feed(self, indices: list[int]) -> None:
        """Queue the indices drawn for the coming takes; only for policies that draw."""
        raise InvalidArgument(f"kind = {self.kind!r}: feed needs 'random'")

    @property
    def free_blocks(self) -> int:
        """Blocks neither in use nor reserved."""
        return self.blocks - len(self.in_use)

    def check(self) -> None:
        """Raise BrokenInvariant unless the structures agree with each other and with `in_use`."""
        raise NotImplementedError

    def _pick(self, owner: int) -> int | None:
        raise NotImplementedError

    def _put_back(self, block: int) -> None:
        raise NotImplementedError

    def _check_partition(self, *parts: list[int]) -> None:
        """The parts and the blocks in use hold every id of the pool exactly once."""
        everything = sorted([*self.in_use, *(block for part in parts for block in part)])
        if everything != list(range(self.blocks)):
            raise BrokenInvariant(
                f"{self.kind}: in use and free blocks are not ids 0..{self.blocks - 1} once each"
            )
