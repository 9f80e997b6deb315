"""`neupims`: whole row groups of one channel per request, promised at admission and claimed in queue order."""

from __future__ import annotations

from collections import deque

from pimkv.errors import BrokenInvariant, InvalidArgument
from pimkv.reference.policy import Policy


class Neupims(Policy):
    """Channel c is the region of ids [c * rows, (c + 1) * rows); its free ids are a queue.

    An owner is promised blocks of the channel that has most free ids promised to nobody, the lowest on ties; it
    takes them from the front of that channel's queue. A block given back goes to the back of its channel's.
    `forget` ends the promise.
    """

    kind = "neupims"
    reserves = True

    def __init__(self, blocks: int, blocks_per_region: int) -> None:
        super().__init__(blocks, blocks_per_region)
        if blocks % blocks_per_region:
            raise InvalidArgument(
                f"blocks = {blocks}: must be a multiple of blocks_per_region ({blocks_per_region}), the blocks"
                " of a channel, for 'neupims'"
            )
        channels = range(blocks // blocks_per_region)
        self.queues = [deque(range(c * blocks_per_region, (c + 1) * blocks_per_region)) for c in channels]
        # owner: (channel, blocks it may still take, blocks only kept for it).
        self.promises: dict[int, tuple[int, int, int]] = {}

    def unpromised(self, channel: int) -> int:
        """Free blocks of a channel that nobody has been promised."""
        promised = sum(left + kept for c, left, kept in self.promises.values() if c == channel)
        return len(self.queues[channel]) - promised

    def reserve(self, owner: int, blocks: int, scratch: int) -> bool:
        if owner in self.promises:
            raise InvalidArgument(f"owner = {owner}: already holds a promise, must hold none to reserve")
        if blocks + scratch == 0:
            raise InvalidArgument("blocks = 0: must reserve 1 or more")
        # max() keeps the first of equals, which is the lowest channel
        channel = max(range(len(self.queues)), key=self.unpromised)
        if self.unpromised(channel) < blocks + scratch:
            return False
        self.promises[owner] = (channel, blocks, scratch)
        return True

    def _pick(self, owner: int) -> int | None:
        channel, left, kept = self.promises.get(owner, (0, 0, 0))
        if left == 0:
            return None
        self.promises[owner] = (channel, left - 1, kept)
        return self.queues[channel].popleft()

    def _put_back(self, block: int) -> None:
        self.queues[block // self.blocks_per_region].append(block)

    def forget(self, owner: int) -> None:
        self.promises.pop(owner, None)

    @property
    def free_blocks(self) -> int:
        return sum(self.unpromised(channel) for channel in range(len(self.queues)))

    def check(self) -> None:
        self._check_partition(*map(list, self.queues))
        for channel, queue in enumerate(self.queues):
            if any(block // self.blocks_per_region != channel for block in queue):
                raise BrokenInvariant(f"neupims: channel {channel} lists a foreign block: {list(queue)}")
            if self.unpromised(channel) < 0:
                raise BrokenInvariant(f"neupims: channel {channel} has promised more than it has")
