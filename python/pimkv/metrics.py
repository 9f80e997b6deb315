"""M1..M4 and placement: integers counted by a scorer -> the figures people read.

Source: the published study. M1 is the row-hit rate of all-bank commands, M2 the share of their
burst slots that carry data, M3 the bandwidth of the published formula (GB/s, GB = 1e9 bytes), M4
the time to read one sequence's cache once at M3 (ns).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Device:
    """What the formula needs of the DRAM a sequence is spread over.

    `channels` are those of one KV shard, `banks` those of one channel; times in ns.
    """

    channels: int
    banks: int
    burst_bytes: int
    tccd_ns: float
    trc_ns: float

    @property
    def ideal_gbps(self) -> float:
        """Every bank of every channel moves a burst each tCCD_ab: bytes per ns, i.e. GB/s."""
        return self.channels * self.banks * self.burst_bytes / self.tccd_ns


def m1(commands: Ints, hits: Ints) -> Floats:
    """Row-hit rate of all-bank commands."""
    return hits / commands


def m2(commands: Ints, bursts: Ints, banks: int) -> Floats:
    """Share of the commands' burst slots, one per bank, that carry data."""
    return bursts / (banks * commands)


def m3_gbps(m1: Floats, m2: Floats, device: Device) -> Floats:
    """Published bandwidth: a hit costs tCCD_ab, a miss tRC. GB/s."""
    time = m1 * device.tccd_ns + (1 - m1) * device.trc_ns
    return device.ideal_gbps * m2 * device.tccd_ns / time


def exact(commands: int, hits: int, bursts: int, device: Device) -> dict[str, float | int | None]:
    """The aggregate over all scored steps and sequences: total bytes / total time, not a mean of samples.

    `m3_gbps` is the published formula on the totals; the counts are summed over all channels.
    """
    moved = bursts * device.burst_bytes
    if commands == 0:
        return dict.fromkeys(("m1", "m2", "m3_gbps")) | {"commands": 0, "hits": 0, "bursts": 0, "bytes": 0}
    # Channels work in parallel on equal shares, so a command's time counts once per `channels`.
    time_ns = (hits * device.tccd_ns + (commands - hits) * device.trc_ns) / device.channels
    return {
        "m1": hits / commands,
        "m2": bursts / (device.banks * commands),
        "m3_gbps": moved / time_ns,
        "commands": commands,
        "hits": hits,
        "bursts": bursts,
        "bytes": moved,
    }


def placement(counts: Ints, blocks_per_region: int) -> dict[str, Floats]:
    """Per sample, from `BlockManager.placement` rows (n, 4); NaN where a figure is not defined.

    adjacent: share of consecutive logical blocks with id + 1; same_region: share in the same region;
    region_spread: distinct regions / fewest possible (undefined below 2 blocks or with one block per
    region); runs: maximal runs of ascending consecutive ids.
    """
    blocks, adjacent, same, regions = counts.astype(np.float64).T
    with np.errstate(invalid="ignore", divide="ignore"):
        pairs = np.where(blocks > 1, blocks - 1, np.nan)
        spread = regions / np.ceil(blocks / blocks_per_region)
    return {
        "adjacent": adjacent / pairs,
        "same_region": same / pairs,
        "region_spread": np.where((blocks > 1) & (blocks_per_region > 1), spread, np.nan),
        "runs": blocks - adjacent,
    }


def mean(values: Sequence[float] | Floats) -> float | None:
    """Plain mean without the NaN samples, summed exactly so that it does not depend on the machine."""
    known = [float(v) for v in values if not math.isnan(v)]
    return math.fsum(known) / len(known) if known else None
