"""M1..M4 and placement: integers counted by a scorer -> the figures people read.

Source: the published study. M1 is the row-hit rate of all-bank commands, M2 the share of their
burst slots that carry data, M3 the bandwidth of the published formula (GB/s, GB = 1e9 bytes), M4
the time to read one sequence's cache once at M3 (ns).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pimkv.config import Config, Geometry

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


def device_of(config: Config, shape: Geometry) -> Device:
    """What the published formula needs of the memory of one shard."""
    return Device(
        channels=shape.channels,
        banks=shape.bank_groups * shape.banks_per_group,
        burst_bytes=shape.burst_bytes,
        tccd_ns=config.dram.tccd_ns,
        trc_ns=config.dram.trc_ns,
    )


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


@dataclass(frozen=True)
class Totals:
    """What a scorer counted over all steps and sequences; cycles are the controller's, without refresh.

    `limit_*` are the same sums for contiguous placement, the fewest row visits. Where requests are confined to
    channels, cycles are those of each step's busiest channel, `formula_ps` is the published formula's time of
    it (ps), and the limit has all channels equally busy.
    """

    commands: int
    hits: int
    bursts: int
    cycles: int
    refresh_cycles: int
    visits: int
    limit_commands: int
    limit_hits: int
    limit_cycles: int
    formula_ps: int | None = None


def exact(
    totals: Totals, device: Device, tck_ps: int, ccd_ab: int, repeat: int = 1
) -> dict[str, float | int | None]:
    """The aggregate over all scored steps and sequences: total bytes / total time, not a mean of samples.

    `m3_gbps` is the published formula on the totals, `controller_gbps` the cycle-exact controller with
    refresh charged, `controller_ideal_gbps` full commands to open rows every `ccd_ab` clocks, each issued
    `repeat` times; counts are summed over all channels. None where nothing was scored.
    """
    t = totals
    moved = t.bursts * device.burst_bytes

    def formula(commands: int, hits: int) -> float | None:
        # Channels work in parallel on equal shares, so a command's time counts once per `channels`.
        time_ns = (hits * device.tccd_ns + (commands - hits) * device.trc_ns) / device.channels
        return moved / time_ns if commands else None

    def confined(time_ps: int) -> float | None:
        return moved * 1000 / time_ps if time_ps else None

    def controller(cycles: int) -> float | None:
        return moved * 1000 / (cycles * tck_ps) if cycles else None

    return {
        "m1": t.hits / t.commands if t.commands else None,
        "m2": t.bursts / (device.banks * t.commands) if t.commands else None,
        "m3_gbps": formula(t.commands, t.hits) if t.formula_ps is None else confined(t.formula_ps),
        "m3_limit_gbps": formula(t.limit_commands, t.limit_hits),
        "controller_gbps": controller(t.cycles + t.refresh_cycles),
        "controller_gbps_no_refresh": controller(t.cycles),
        "controller_limit_gbps_no_refresh": controller(t.limit_cycles),
        "controller_ideal_gbps": device.channels
        * device.banks
        * device.burst_bytes
        * 1000
        / (ccd_ab * tck_ps * repeat),
        "controller_cycles": t.cycles + t.refresh_cycles,
        "row_visits": t.visits,
        "commands": t.commands,
        "hits": t.hits,
        "bursts": t.bursts,
        "bytes": moved,
    }


def traffic(
    tokens: int, bursts: int, activations: int, copied: int, read_ns: float, device: Device, pin_gbps: float
) -> dict[str, float | int]:
    """Writes and copies over the pins, one layer: `copied` bytes are read and written once each.

    Shares are of the time of a step that reads by PIM for `read_ns` (controller, refresh charged) and then
    writes and copies over the pins.
    """
    written = bursts * device.burst_bytes
    moved = 2 * copied
    write_ns, copy_ns = written / pin_gbps, moved / pin_gbps
    whole = read_ns + write_ns + copy_ns
    return {
        "write_tokens": tokens,
        "write_bytes": written,
        "write_bursts": bursts,
        "write_activations": activations,
        "write_time_ns": write_ns,
        "write_share": write_ns / whole if whole else 0.0,
        "copy_bytes": moved,
        "copy_time_ns": copy_ns,
        "copy_share": copy_ns / whole if whole else 0.0,
    }


def of_pass(counts: tuple[int, int, int, int, int], device: Device) -> dict[str, float | int | None]:
    """Figures of one pass over the cache (K, then V, or both at once), over all steps and sequences."""
    commands, hits, bursts, cycles, visits = counts
    return {
        "m1": hits / commands if commands else None,
        "m2": bursts / (device.banks * commands) if commands else None,
        "commands": commands,
        "hits": hits,
        "bursts": bursts,
        "cycles_no_refresh": cycles,
        "row_visits": visits,
    }


def placement(counts: Ints, blocks_per_region: int | None) -> dict[str, Floats]:
    """Per sample, from `BlockManager.placement` rows (n, 4); NaN where a figure is not defined.

    adjacent: share of consecutive logical blocks with id + 1; same_region: share in the same region;
    region_spread: distinct regions / fewest possible (undefined below 2 blocks or with one block per
    region); runs: maximal runs of ascending consecutive ids. Without regions (None) the middle two are
    undefined.
    """
    blocks, adjacent, same, regions = counts.astype(np.float64).T
    with np.errstate(invalid="ignore", divide="ignore"):
        pairs = np.where(blocks > 1, blocks - 1, np.nan)
        spread = regions / np.ceil(blocks / (blocks_per_region or 1))
    return {
        "adjacent": adjacent / pairs,
        "same_region": same / pairs if blocks_per_region else np.full(len(blocks), np.nan),
        "region_spread": np.where((blocks > 1) & ((blocks_per_region or 1) > 1), spread, np.nan),
        "runs": blocks - adjacent,
    }


def mean(values: Sequence[float] | Floats) -> float | None:
    """Plain mean without the NaN samples, summed exactly so that it does not depend on the machine."""
    known = [float(v) for v in values if not math.isnan(v)]
    return math.fsum(known) / len(known) if known else None
