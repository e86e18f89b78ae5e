"""Tables of each rank's GPU: readings of its driver, and kernel times in a step."""

from __future__ import annotations

from collections.abc import Sequence

from commprof.analysis.collectives.devices import DeviceTelemetry
from commprof.analysis.world import WorldResult
from commprof.report.tabulated import Grid, three_digits

LEGEND = """\
From NVML, once a second. busy: share of the time in which any kernel ran, the mean of the samples;
an NCCL kernel that waits for another rank counts as running. SM clock and power: means. memory:
largest use by all processes. limited: reasons for which the driver reduced the clock, with their
shares of the samples."""

_HEADERS = (
    "rank",
    "samples",
    "busy %",
    "SM clock\nMHz",
    "\nleast",
    "power W",
    "memory\nMB",
    "limited",
)


def grid(worlds: Sequence[WorldResult]) -> Grid | None:
    """Makes a table with a row per rank of the largest world size; None without GPU readings."""
    ranks = worlds[-1].ranks if worlds else ()
    rows = [_cells(rank.rank, rank.device) for rank in ranks if rank.device is not None]
    return Grid(rows, _HEADERS, left=(len(_HEADERS) - 1,)) if rows else None


def _cells(rank: int, device: DeviceTelemetry) -> tuple[str, ...]:
    values = (
        device.utilisation_percent,
        device.sm_clock_mhz,
        device.least_sm_clock_mhz,
        device.power_w,
        device.memory_used_bytes / 1e6,
    )
    limits = [f"{name} {share:.0%}" for name, share in device.limited.items() if share > 0]
    limited = ", ".join(limits) or ("no" if device.limited else "-")
    return (str(rank), str(device.samples), *map(three_digits, values), limited)


KERNEL_TITLE = "Kernels of each rank"

KERNEL_LEGEND = """\
Mean per step in ms, of the largest world size: exposed + compute + copies + idle = step; each
moment counts once, however many streams. compute: kernels ran other than those of communication;
exposed: communication ran, but no other kernel and no copy within the device; copies: copies or
fills ran, and none of these; idle: nothing ran. communication: its kernels ran, exposed or not;
busy: any kernel ran. The times of the communication kernels are added up in three columns. wait:
from a kernel's begin until the last rank had begun the same kernel; transfer: from then to the
kernel's end; unsplit: time of kernels for which wait and transfer are not known."""

_KERNEL_HEADERS = (
    *("rank", "step", "communi-\ncation", "= wait", "+ trans-\nfer", "+ un-\nsplit"),
    *("exposed", "compute", "copies", "busy", "idle"),
)


def kernel_times_grid(worlds: Sequence[WorldResult]) -> Grid | None:
    """Makes a table with a row per rank of the largest world size; None without kernels."""
    ranks = worlds[-1].ranks if worlds else ()
    rows = [
        (
            rank.rank,
            three_digits(rank.parts.step_ms),
            three_digits(times.communication_ms),
            three_digits(times.wait_ms),
            three_digits(times.wire_ms),
            three_digits(times.unsplit_ms),
            three_digits(rank.parts.exposed_ms),
            three_digits(times.compute_ms),
            three_digits(times.copies_ms),
            three_digits(times.busy_ms),
            three_digits(times.idle_ms),
        )
        for rank in ranks
        if (times := rank.kernels) is not None
    ]
    return Grid(rows, _KERNEL_HEADERS) if rows else None
