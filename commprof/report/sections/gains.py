"""Table of how much each single change would shorten a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commprof.analysis.replay.gains import Gain
from commprof.analysis.world import WorldResult
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.report.tabulated import Grid, three_digits
from commprof.text import percent_digits

TITLE = "Time saved per step by one change"

LEGEND = """\
Recorded steps of the largest world size (all steps, or stretches of a long run), replayed with one
change: a rank that works as fast as the others, in all phases or in one; ranks with equal work;
transfers that take no time. step: mean over ranks and steps. saved: part of the step [95 % interval
over the steps]. The replay keeps the order of each rank's collectives and the duration of each
transfer."""


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section on the time that single changes save, if steps were replayed."""
    if (grid := gains_grid(report.result.worlds)) is not None:
        yield Section("gains", TITLE, grids=(("Mean step with one change", grid),), legend=LEGEND)


def gains_grid(worlds: Sequence[WorldResult]) -> Grid | None:
    """Makes a table with a row per change at the largest world size; None without a replay."""
    replay = worlds[-1].gains if worlds else None
    if replay is None:
        return None
    recorded = "as recorded"
    if replay.steps < replay.measured_steps:
        recorded += f" ({replay.steps} of {replay.measured_steps} steps)"
    rows: list[tuple[str, ...]] = [(recorded, three_digits(replay.step_ms), "")]
    rows += [(changed(gain), three_digits(gain.step_ms), saved(gain)) for gain in replay.gains]
    return Grid(rows, ("if", "step\nms", "saved"), (0, 2))


def changed(gain: Gain) -> str:
    """Names a change, as the end of a sentence that begins with "if"."""
    if gain.change == "rank":
        return f"rank {gain.rank} were as fast as the others"
    if gain.change == "phase":
        return f"rank {gain.rank} were as fast as the others in {gain.phase}"
    if gain.change == "balance":
        return "all ranks had equal work"
    if gain.change == "group":
        return f"transfers of group {gain.group} took no time"
    return "transfers took no time"


def saved(gain: Gain) -> str:
    """Formats the part of the step that is saved, with its interval."""
    value, low, high = (
        percent_digits(share) for share in (gain.saved.value, gain.saved.low, gain.saved.high)
    )
    return f"{value} % [{low}, {high}]"
