"""Table of what recording costs.

Only a page has this table. On a terminal, the table of scaling and the caveats have these figures.
"""

from __future__ import annotations

from collections.abc import Iterator

from commprof.analysis.step.overhead import MOST_REACH, OwnCost
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.report.tabulated import Grid
from commprof.text import counted


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section on commprof's own cost, if the cost was measured and a page is made."""
    result = report.result
    measured = [(counted(w.world_size, "rank"), w.profiler_cost.overhead) for w in result.worlds]
    rows = [
        _overhead(name, clock, cost)
        for name, overhead in [*measured, ("all", result.overhead)]
        if overhead is not None
        for clock, cost in (("CPU", overhead.cpu), ("wall", overhead.wall))
        if cost is not None
    ]
    if not rows or not medium.is_page:
        return
    headers = (
        "ranks",
        "clock",
        "recording overhead",
        "control",
        "steps on",
        "steps off",
        "significant",
    )
    yield Section(
        "own-cost",
        "Overhead of commprof",
        grids=(
            (
                "Time of a step with capture on / of an adjacent step with capture off, minus 1 "
                "[95 % interval]",
                Grid(rows, headers),
            ),
        ),
        legend="After the measured steps, capture was switched on and off repeatedly. control: the "
        "same figure for pairs of steps that both have capture off; its true value is 0. CPU: CPU "
        "time of all ranks' training threads; wall: wall time of the slowest rank. not measurable: "
        f"an end of the interval is more than {MOST_REACH:.0%} away from the estimate.",
    )


def _overhead(name: str, clock: str, cost: OwnCost) -> tuple[str, ...]:
    ratios = (cost.on_over_off, cost.control)
    percents = [
        f"{(x.value - 1) * 100:+.1f} % [{(x.low - 1) * 100:+.1f}, {(x.high - 1) * 100:+.1f}]"
        for x in ratios
    ]
    distinguishable = "yes" if cost.told_apart else "no" if cost.measurable else "not measurable"
    return (name, clock, *percents, str(cost.steps_on), str(cost.steps_off), distinguishable)
