"""Table of the times of kernels on each rank's GPU in a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commprof.analysis.world import WorldResult
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.report.tabulated import Grid, three_digits

LEGEND = """\
Mean per step in ms, of the largest world size: exposed + compute + copies + idle = step; each
moment counts once, however many streams are busy. compute: a kernel other than those of
communication ran; exposed: communication ran, but no other kernel and no copy within the device;
copies: copies or fills ran in the remaining time; idle: nothing ran. communication: its kernels
ran, exposed or not; busy: any kernel ran. The times of the communication kernels are added up in
three columns. wait: from a kernel's begin until the last rank had begun the same kernel; transfer:
from then to the kernel's end; unsplit: time of kernels whose wait and transfer are not known."""

_HEADERS = (
    *("rank", "step", "communi-\ncation", "= wait", "+ trans-\nfer", "+ un-\nsplit"),
    *("exposed", "compute", "copies", "busy", "idle"),
)


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section on the kernels of each rank, if they were recorded."""
    if (grid := kernel_times_grid(report.result.worlds)) is not None:
        grids = (("Mean step in ms, by rank", grid),)
        yield Section("kernels", "Kernels of each rank", grids=grids, legend=LEGEND)


def kernel_times_grid(worlds: Sequence[WorldResult]) -> Grid | None:
    """Makes a table with a row per rank of the largest world size; None without kernels."""
    ranks = worlds[-1].ranks if worlds else ()
    rows = [
        (
            rank.rank,
            three_digits(rank.parts.step_ms),
            three_digits(times.communication_ms),
            three_digits(times.wait_ms),
            three_digits(times.transfer_ms),
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
    return Grid(rows, _HEADERS) if rows else None
