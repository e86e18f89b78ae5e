"""Table of the memory that training used on each rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from commprof.analysis.world import WorldResult
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.report.tabulated import Grid, three_digits

LEGEND = """\
Memory in MB (1e6 bytes) of the rank that uses most and of the rank that uses least. peak RSS:
largest resident memory from the first step on; at start: resident memory before model and data;
GPU: peak of torch's allocator."""

_HEADERS = ("ranks", "peak RSS\nmax", "\nmin", "at start", "GPU\nmax", "\nmin")
_ON_CPU = 4  # on a CPU only the first 4 columns are shown


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section on memory, if it was measured."""
    if (grid := memory_grid(report.result.worlds)) is not None:
        grids = (("Memory in MB, by ranks", grid),)
        yield Section("memory", "Memory", grids=grids, legend=LEGEND)


def memory_grid(worlds: Sequence[WorldResult]) -> Grid | None:
    """Makes a table with a row per world size; None if memory was not measured."""
    rows = [_cells(world) for world in worlds if world.known("peak_rss_bytes")]
    on_gpu = any(world.known("device_peak_bytes") for world in worlds)
    width = len(_HEADERS) if on_gpu else _ON_CPU
    return Grid([row[:width] for row in rows], _HEADERS[:width]) if rows else None


def _cells(world: WorldResult) -> tuple[str, ...]:
    peaks, devices = world.known("peak_rss_bytes"), world.known("device_peak_bytes")
    before = world.known("before_rss_bytes")
    values = (*_ends(peaks), max(before, default=math.nan), *_ends(devices))
    return (str(world.world_size), *(three_digits(value / 1e6) for value in values))


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return (max(values), min(values)) if values else (math.nan, math.nan)
