"""Sentences on the incidents of a run: hangs, mismatched collectives, changes of speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commprof.analysis.late.incidents import HangReport, Incidents
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.text import counted

TITLE = "Incidents"
LEGEND = """\
Hangs were reported by the watchdog while the job ran. A change counts if the step time, a rank's
own work or a bandwidth stays at least 10 % away from its former level. If the former level returned
later, the change is listed under the caveats instead."""


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the section on incidents, if there are any."""
    if bullets := tuple(sentences(report.result.incidents)):
        yield Section("incidents", TITLE, heading=TITLE, bullets=bullets, legend=LEGEND)


def sentences(found: Sequence[Incidents]) -> list[str]:
    """Returns one sentence per incident, the most serious kind first."""
    return [line for incidents in found for line in _of_world(incidents)]


def ended_changes(found: Sequence[Incidents]) -> list[str]:
    """Returns one sentence per change of speed that has ended."""
    return [
        f"{counted(incidents.world_size, 'rank')}: {anomaly.sentence}; then the former level "
        "returned. The means include these steps."
        for incidents in found
        for _, anomaly in incidents.anomalies
        if anomaly.last_step is not None
    ]


def _of_world(found: Incidents) -> Iterator[str]:
    size = counted(found.world_size, "rank")
    for hang in found.hangs:
        yield f"{size}: hang {hang.number}, {hang.found}: {_hang(hang)}"
    if found.last_wait is not None:
        yield f"{size}: {found.last_wait.sentence}."
    more = found.mismatch_count - len(found.mismatches)
    for mismatch in found.mismatches:
        yield f"{size}: {mismatch.sentence}."
    if more > 0:
        yield f"{size}: {more} more collectives after these differ between ranks."
    for time, anomaly in found.anomalies:
        if anomaly.last_step is None:
            yield f"{size}: {time + ': ' if time else ''}{anomaly.sentence}."
    for event in found.events:
        yield f"{size}: {event.time}: {event.sentence}."


def _hang(hang: HangReport) -> str:
    ended = hang.ended_after_s
    over = f"over {ended:.1f} s later" if ended is not None else "it did not end"
    files = [stack.file for stack in hang.stacks if stack.file]
    problems = sorted({stack.problem for stack in hang.stacks if stack.problem})
    shown = f" Stacks: {', '.join(files)}." if files else ""
    lacking = f" No stacks: {'; '.join(problems)}." if problems and not files else ""
    return f"{hang.sentence}; {over}.{shown}{lacking} All ranks: {hang.file}."
