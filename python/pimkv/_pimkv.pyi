"""Types of the Rust extension module."""

from typing import final

import numpy as np
from numpy.typing import NDArray

@final
class Controller:
    def __new__(
        cls,
        *,
        rcd: int,
        rp: int,
        ras: int,
        rc: int,
        rtp: int,
        ccd_ab: int,
        refi: int | None,
        rfc: int | None,
        max_postponed: int,
        refresh: bool,
        queue: int,
        per_pch: bool,
    ) -> Controller: ...
    def run(
        self, rows: NDArray[np.int64], channels: NDArray[np.int64] | None, channel_count: int, log: bool
    ) -> tuple[
        tuple[int, int, int, int, int, int],
        tuple[NDArray[np.uint64], NDArray[np.uint16], NDArray[np.uint8], NDArray[np.int64]] | None,
    ]: ...
