"""Strategies side by side as sections, for pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from commprof.report.document import Section, incidents, own_cost, pictures
from commprof.report.full_report import ComparedStrategies, FullReport
from commprof.report.sections import memory as memory_table
from commprof.report.sections.waiting import LEGEND as WAITING_LEGEND
from commprof.report.sections.waiting import waiting_grid
from commprof.report.strategies import table as strategies_table
from commprof.report.table import PARTS_LEGEND, notes, parts_grid
from commprof.report.tabulated import Grid


def strategy_sections(compared: ComparedStrategies) -> Iterator[Section]:
    """All sections that these runs have something for."""
    yield _verdict(compared.reports)
    yield from _titled(compared.reports, lambda report: incidents(report.result))
    noted = tuple(
        f"{report.strategy}: {note}" for report in compared.reports for note in notes(report.result)
    )
    if noted:
        yield Section("notes", "Caveats", bullets=noted)
    shown = [report for report in compared.reports if report.result.worlds]
    if not shown:
        return
    yield _side_by_side(compared)
    yield Section(
        "step",
        "Where each step goes",
        grids=tuple((f"{one.strategy}: mean step in ms", parts_grid(one.result)) for one in shown),
        legend=PARTS_LEGEND,
    )
    yield Section("scaling", "Scaling", stands_alone=False)
    if memory := _memory(shown):
        yield memory
    yield from pictures()
    if waiting := tuple(_waiting(shown)):
        yield Section("waiting", "Who waits for whom", grids=waiting, legend=WAITING_LEGEND)
    yield from _titled(shown, own_cost)


def _titled(
    reports: Sequence[FullReport], found: Callable[[FullReport], Iterator[Section]]
) -> Iterator[Section]:
    """Sections that are of one strategy each, under its name."""
    for number, report in enumerate(reports):
        for section in found(report):
            title = f"{section.title}: {report.strategy}"
            yield replace(section, id=f"{section.id}-{number}", title=title)


def _verdict(reports: Sequence[FullReport]) -> Section:
    bullets = tuple(
        f"{one.strategy}: {one.verdict.headline}" for one in reports if one.verdict is not None
    )
    return Section("verdict", "Verdict", bullets=bullets)


def _side_by_side(compared: ComparedStrategies) -> Section:
    grids = [("By world size and strategy", strategies_table.strategies_grid(compared.rows))]
    legend = strategies_table.LEGEND
    operations = strategies_table.operations_grid(compared.rows)
    if operations is not None:
        grids.append(("Their operations", operations))
        legend += "\n" + strategies_table.OPERATIONS_LEGEND
    return Section("strategies", "Strategies side by side", grids=tuple(grids), legend=legend)


def _memory(reports: Sequence[FullReport]) -> Section | None:
    grids = [
        (f"{one.strategy}: memory in MB", grid)
        for one in reports
        if (grid := memory_table.memory_grid(one.result.worlds)) is not None
    ]
    if not grids:
        return None
    return Section("memory", "Memory", grids=tuple(grids), legend=memory_table.LEGEND)


def _waiting(reports: Sequence[FullReport]) -> Iterator[tuple[str, Grid]]:
    for report in reports:
        for detail in report.details:
            grid = waiting_grid(detail)
            if grid is not None:
                yield f"{report.strategy}, {detail.world_size} ranks", grid
