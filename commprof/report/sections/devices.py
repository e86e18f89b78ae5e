"""Table of the readings of each GPU's driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commprof.analysis.collectives.devices import DeviceTelemetry
from commprof.analysis.world import WorldResult
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
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


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section on the readings of the GPUs' driver."""
    if (table := grid(report.result.worlds)) is not None:
        grids = (("GPU of each rank, largest world size", table),)
        yield Section("devices", "GPUs", grids=grids, legend=LEGEND)


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
