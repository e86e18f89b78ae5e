"""Table of the memory that training used on each rank."""

from __future__ import annotations

import math
from collections.abc import Sequence

from commprof.analysis.world import WorldResult
from commprof.report.tabulated import Grid, tabulated, three_digits

LEGEND = """\
Memory in MB (1e6 bytes) of the rank that uses most and of the rank that uses least. peak RSS:
largest resident memory from the first step on; at start: resident memory before model and data;
GPU: peak of torch's allocator."""

_HEADERS = ("ranks", "peak RSS\nmax", "\nmin", "at start", "GPU\nmax", "\nmin")
_ON_CPU = 4  # columns


def memory_section(worlds: Sequence[WorldResult], tables: int | None = None) -> str:
    """Renders a row per world size; empty if memory was not measured.

    ``tables`` is the largest number of characters in a line: the ``width`` of ``tabulated``.
    """
    grid = memory_grid(worlds)
    return "" if grid is None else tabulated(*grid, width=tables)


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
