"""Comparison of strategies: text for the terminal, one screen, and sections of an HTML page."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from commprof import invocation
from commprof.analysis.scaling import RunResult
from commprof.analysis.strategies import StrategyOperation, StrategyRow
from commprof.analysis.verdict import Verdict
from commprof.report.full_report import ComparedStrategies, FullReport
from commprof.report.one_screen import LINES, WIDTH, command_lines, cut, prose, table_lines
from commprof.report.section import PAGE, Maker, Section
from commprof.report.sections import incidents, memory, own_cost, pictures, waiting
from commprof.report.sections.caveats import TITLE as CAVEATS
from commprof.report.sections.caveats import caveats
from commprof.report.sections.setup import setup_text
from commprof.report.sections.step import parts_grid, parts_legend
from commprof.report.tabulated import Grid, tabulated, three_digits
from commprof.text import counted, fitted, printable, wrapped

LEGEND = """\
against: samples/s divided by those of the first strategy. efficiency: samples/s per rank, divided
by those of the same strategy at its smallest world size. step: median of the slowest rank; +-: the
step's interquartile range divided by its median. Steps that differ by less than +- may be equal.
exposed: time for which the training thread waited for communication. memory: largest use of any
rank in training. On a GPU, this is the peak of GPU memory; on a CPU, it is the growth of resident
memory."""

OPERATIONS_LEGEND = """\
Per step and rank. size: as nccl-tests counts it (for an all-gather or a reduce-scatter, all ranks'
parts together). in flight: issue to completion; overlapped: share of the time in flight in which
the training thread worked."""

_HEADERS = (
    *("ranks", "strategy", "samples\n/s", "against", "effi-\nciency", "step ms\nmedian", "+-"),
    *("exposed\nms", "of step", "memory\nMB", "loss"),
)
_OPERATION_HEADERS = (
    *("ranks", "strategy", "operation", "phase", "calls", "size\nMB", "in flight\nms"),
    *("exposed\nms", "over-\nlapped"),
)


def render(
    results: Mapping[Path, RunResult],
    rows: Sequence[StrategyRow],
    width: int,
    verdicts: Sequence[Verdict | None] = (),
    table_width: int | None = None,
) -> str:
    """Renders each strategy's headline, the comparison, notes, and the commands for full reports.

    Args:
        results: results by run directory, one per strategy.
        rows: rows of all strategies.
        width: number of characters at which prose is wrapped.
        verdicts: verdicts in the order of ``results``.
        table_width: number of characters; wider tables are split. None leaves all tables whole.
    """
    context = next(iter(results.values())).context
    heading = [str(context["description"]), setup_text({**context, "strategy": ""})]
    blocks = ["\n".join(textwrap.fill(printable(line), width) for line in heading)]
    headlines = [
        f"{result.context.get('strategy')}: {one.headline}"
        for result, one in zip(results.values(), verdicts, strict=False)
        if one is not None
    ]
    if headlines:
        blocks.append("\n".join(_bullet(line, width) for line in headlines))
    for table, legend in zip(tables(rows, table_width), (LEGEND, OPERATIONS_LEGEND), strict=False):
        blocks += [table, fitted(legend, width)]
    found = [
        f"{result.context.get('strategy')}: {note}"
        for result in results.values()
        for note in caveats(result)
    ]
    found += [
        f"{result.context.get('strategy')}'s own report: "
        + invocation.command("report", invocation.quoted(place))
        for place, result in results.items()
    ]
    blocks.append("\n".join(_bullet(note, width) for note in found))
    return "\n\n".join(blocks) + "\n"


def tables(rows: Sequence[StrategyRow], width: int | None = None) -> list[str]:
    """Renders the comparison and the operations of each strategy; empty without rows."""
    if not rows:
        return []
    operations = operations_grid(rows)
    grids = [strategies_grid(rows), *([] if operations is None else [operations])]
    return [tabulated(*grid, width=width) for grid in grids]


def strategies_grid(rows: Sequence[StrategyRow]) -> Grid:
    """Makes a table with a row per world size and strategy."""
    return Grid([_cells(row) for row in rows], _HEADERS, [1])


def operations_grid(rows: Sequence[StrategyRow]) -> Grid | None:
    """Makes a table with a row per world size, strategy and operation; None if there are none."""
    operations = [_operation_cells(row, op) for row in rows for op in row.operations]
    return Grid(operations, _OPERATION_HEADERS, [1, 2, 3]) if operations else None


def _cells(row: StrategyRow) -> tuple[str, ...]:
    return (
        str(row.world_size),
        printable(row.strategy),
        three_digits(row.samples_per_s),
        "-" if math.isnan(row.versus_first) else f"{row.versus_first:.2f}x",
        _percent(row.efficiency),
        three_digits(row.step_median_ms),
        _percent(row.step_spread),
        three_digits(row.exposed_ms),
        _percent(row.exposed_share),
        three_digits(row.training_bytes / 1e6),
        "-" if math.isnan(row.average_loss) else f"{row.average_loss:.4f}",
    )


def _operation_cells(row: StrategyRow, operation: StrategyOperation) -> tuple[str, ...]:
    return (
        str(row.world_size),
        printable(row.strategy),
        operation.op,
        operation.phase,
        three_digits(operation.calls),
        three_digits(operation.size_bytes / 1e6),
        three_digits(operation.in_flight_ms),
        three_digits(operation.exposed_ms),
        _percent(operation.overlapped),
    )


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.0%}"


def _bullet(text: str, width: int) -> str:
    return wrapped(text, width, "* ", "  ")


#: Columns that ``render_screen`` shows, by the first line of their headers. If the table is too
#: wide, the last columns are dropped.
_COLUMNS = (
    *("ranks", "strategy", "samples", "against", "effi-", "step ms", "+-", "exposed", "of step"),
    "memory",
)
_MOST_LINES = 3


def render_screen(
    results: Sequence[RunResult],
    rows: Sequence[StrategyRow],
    verdicts: Sequence[Verdict | None],
    all_command: str,
) -> str:
    """Renders at most 24 lines of 80 columns; the largest world sizes first.

    Args:
        results: results, one per strategy.
        rows: rows of all strategies.
        verdicts: verdicts in the order of ``results``.
        all_command: command that prints the full report.
    """
    top = [cut(str(results[0].context["description"]))]
    found = sum(len(caveats(result)) for result in results)
    bottom = [f"! {counted(found, 'caveat')}: see --all"] if found else []
    bottom += ["Next, to see the full report:", *command_lines(all_command)]
    headlines: list[list[str]] = []
    for result, verdict in zip(results, verdicts, strict=True):
        if verdict is not None:
            lines = prose(f"{result.context.get('strategy')}: {verdict.headline}")
            if len(lines) > _MOST_LINES:
                last = lines[_MOST_LINES - 1][: WIDTH - 4]
                lines = [*lines[: _MOST_LINES - 1], f"{last} ..."]
            headlines.append(lines)
    # The table needs three lines of headers, a row per strategy, and a line on rows left out.
    space = LINES - len(top) - len(bottom) - min(len(rows), len(results)) - 4
    shown: list[str] = []
    for lines in headlines:
        if len(shown) + len(lines) <= space:
            shown += lines
    largest = strategies_grid(sorted(rows, key=lambda row: -row.world_size))
    space = LINES - len(top) - len(bottom) - len(shown)
    table = table_lines(largest, _COLUMNS, space, "row") if rows else []
    return "\n".join([*top, *shown, *table, *bottom]) + "\n"


def strategy_sections(compared: ComparedStrategies) -> Iterator[Section]:
    """Yields all sections for which these runs have content."""
    yield _verdict(compared.reports)
    yield from _titled(compared.reports, incidents.sections)
    noted = tuple(
        f"{report.strategy}: {note}"
        for report in compared.reports
        for note in caveats(report.result)
    )
    if noted:
        yield Section("notes", CAVEATS, bullets=noted)
    shown = [report for report in compared.reports if report.result.worlds]
    if not shown:
        return
    yield _side_by_side(compared)
    yield Section(
        "step",
        "Where each step goes",
        grids=tuple((f"{one.strategy}: mean step in ms", parts_grid(one.result)) for one in shown),
        legend=parts_legend([world for one in shown for world in one.result.worlds]),
    )
    yield Section("scaling", "Scaling", stands_alone=False)
    yield from _memory(shown)
    yield from pictures.sections(shown[0], PAGE)
    if grids := tuple(_waiting(shown)):
        yield Section("waiting", waiting.TITLE, grids=grids, legend=waiting.LEGEND)
    yield from _titled(shown, own_cost.sections)


def _titled(reports: Sequence[FullReport], made: Maker) -> Iterator[Section]:
    for number, report in enumerate(reports):
        for section in made(report, PAGE):
            title = f"{section.title}: {report.strategy}"
            yield replace(section, id=f"{section.id}-{number}", title=title)


def _verdict(reports: Sequence[FullReport]) -> Section:
    bullets = tuple(
        f"{one.strategy}: {one.verdict.headline}" for one in reports if one.verdict is not None
    )
    return Section("verdict", "Verdict", bullets=bullets)


def _side_by_side(compared: ComparedStrategies) -> Section:
    grids = [("By world size and strategy", strategies_grid(compared.rows))]
    legend = LEGEND
    operations = operations_grid(compared.rows)
    if operations is not None:
        grids.append(("Operations of each strategy", operations))
        legend += "\n" + OPERATIONS_LEGEND
    return Section("strategies", "Strategies side by side", grids=tuple(grids), legend=legend)


def _memory(reports: Sequence[FullReport]) -> Iterator[Section]:
    grids = [
        (f"{one.strategy}: memory in MB", grid)
        for one in reports
        if (grid := memory.memory_grid(one.result.worlds)) is not None
    ]
    if grids:
        yield Section("memory", "Memory", grids=tuple(grids), legend=memory.LEGEND)


def _waiting(reports: Sequence[FullReport]) -> Iterator[tuple[str, Grid]]:
    for report in reports:
        for detail in report.details:
            grid = waiting.waiting_grid(detail)
            if grid is not None:
                yield f"{report.strategy}, {detail.world_size} ranks", grid
