"""Table of throughput and scaling, with predicted throughput beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from commprof.analysis.scaling import RunResult
from commprof.analysis.step.overhead import Overhead
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.report.sections import predicted
from commprof.report.tabulated import Grid, decimals

LEGEND = """\
step: wall time of the slowest rank. samples/s: samples of all ranks divided by the slowest rank's
time. efficiency: speed-up divided by growth in ranks. imbalance: largest / mean - 1 of the ranks'
own work, which is the step less exposed communication. overhead: on / off - 1 [95 % interval], from
the training threads' CPU time in a step with capture on and in an adjacent step with capture off;
"unclear" if an end of the interval is more than 2 % away from the estimate. loss: of the last
epoch. All figures are without warm-up steps."""


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section on throughput, if the run has figures of steps."""
    if not report.result.worlds:
        return
    grids, legend = [("By ranks", scaling_grid(report.result))], LEGEND
    if report.predictions is not None:
        grids.append((predicted.CAPTION, predicted.predicted_grid(report.predictions)))
        legend += "\n" + predicted.legend(report.predictions)
    yield Section("scaling", "Scaling", grids=tuple(grids), legend=legend)


def scaling_grid(result: RunResult) -> Grid:
    """Makes a table with a row per world size: throughput, scaling, and commprof's overhead."""
    rows = [
        (
            world.world_size,
            f"{world.timing.measured_steps}+{world.timing.warmup_steps}",
            decimals(world.training.samples_per_s),
            decimals(world.timing.step_median_ms),
            decimals(world.timing.step_p95_ms),
            _formatted(scale.speedup, ".2f"),
            _formatted(scale.efficiency, ".1%"),
            _formatted(world.imbalance, ".1%"),
            _overhead(world.profiler_cost.overhead),
            _formatted(world.training.average_loss, ".4f"),
        )
        for world, scale in zip(result.worlds, result.scaling, strict=True)
    ]
    return Grid(
        rows,
        (
            "ranks",
            "steps+\nwarm-up",
            "samples\n/s",
            "step ms\nmedian",
            "\np95",
            "speed-\nup",
            "effi-\nciency",
            "imba-\nlance",
            "overhead",
            "loss",
        ),
    )


def _formatted(value: float, spec: str) -> str:
    return "-" if math.isnan(value) else format(value, spec)


def _overhead(overhead: Overhead | None) -> str:
    if overhead is None:
        return "-"
    if not overhead.best.measurable:
        return "unclear"
    ratio = overhead.best.on_over_off
    value, low, high = ((x - 1) * 100 for x in (ratio.value, ratio.low, ratio.high))
    return f"{value:+.1f} % [{low:+.1f}, {high:+.1f}]"
