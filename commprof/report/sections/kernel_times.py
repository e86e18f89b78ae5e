"""What each rank's device did in a step, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from commprof.analysis.world import WorldResult
from commprof.report.tabulated import Grid, three_digits

TITLE = "Kernels of each rank"

LEGEND = """\
Mean per step in ms, of the largest world size. communication: kernels of communication ran;
compute: others ran; busy: any did; idle: none did; each moment once, however many streams. exposed:
communication ran and no other kernel nor copy within the device did. wait: sum over the
communication kernels, until the last rank had begun the same one; transfer: from there to their
end; unsplit: of kernels for which that is not known."""

_HEADERS = (
    *("rank", "step", "communi-\ncation", "= wait", "+ trans-\nfer", "+ un-\nsplit"),
    *("exposed", "compute", "busy", "idle"),
)


def kernel_times_grid(worlds: Sequence[WorldResult]) -> Grid | None:
    """A row per rank of the largest world size; None where no recording holds kernels."""
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
            three_digits(times.busy_ms),
            three_digits(times.idle_ms),
        )
        for rank in ranks
        if (times := rank.kernels) is not None
    ]
    return Grid(rows, _HEADERS) if rows else None
