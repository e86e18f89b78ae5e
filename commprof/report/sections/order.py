"""The sections of a report in their order. A page has the caveats earlier than a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from commprof.report.full_report import FullReport
from commprof.report.section import Maker, Medium, Section
from commprof.report.sections import (
    always_on,
    apart,
    attempts,
    caveats,
    collectives,
    compression,
    cost,
    cross_checks,
    devices,
    gains,
    host_links,
    incidents,
    kernels,
    memory,
    named_causes,
    nccl,
    own_cost,
    pictures,
    scaling,
    step,
    verdict,
    waiting,
    waiting_causes,
)
from commprof.satellites import AddedReport

ORDER: tuple[Maker, ...] = (
    apart.sections,
    incidents.sections,
    verdict.sections,
    named_causes.sections,
    caveats.before_figures,
    attempts.sections,
    step.sections,
    scaling.sections,
    gains.sections,
    waiting_causes.sections,
    kernels.sections,
    host_links.sections,
    memory.sections,
    devices.sections,
    pictures.sections,
    waiting.sections,
    collectives.sections,
    compression.sections,
    cross_checks.sections,
    cost.sections,
    collectives.of_stepless,
    nccl.sections,
    own_cost.sections,
    always_on.sections,
    caveats.at_the_end,
)
"""The functions that make the sections of a report, from the first section to the last."""

BESIDE_A_TRIAL: tuple[Maker, ...] = (
    incidents.sections,
    caveats.before_figures,
    pictures.timeline,
)
"""The sections that follow a trial's own report.

A trial's steps alternate between candidates, so means over all steps would describe no candidate.
"""


def sections(
    report: FullReport, medium: Medium, added: AddedReport | None = None
) -> Iterator[Section]:
    """Yields all sections for which a run has content. A trial's section (``added``) is first."""
    if added is not None:
        yield added.section()
    for made in ORDER if added is None else BESIDE_A_TRIAL:
        yield from made(report, medium)
