"""Strategies side by side, as text for the terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from commprof import invocation
from commprof.analysis.scaling import RunResult
from commprof.analysis.strategies import OperationRow, StrategyRow
from commprof.analysis.verdict import Verdict
from commprof.report.plain_text import fitted, printable, wrapped
from commprof.report.sections.setup import setup_text
from commprof.report.table import notes
from commprof.report.tabulated import Grid, tabulated, three_digits

LEGEND = """\
against: samples/s over those of the first strategy. efficiency: of each strategy's own scaling.
step: median of the slowest rank; +-: distance of its quartiles over the median, and a difference
within it says nothing. exposed: the training thread waited for communication. memory: what
training took in the rank that took most, on the GPU, or resident beyond what was before."""

OPERATIONS_LEGEND = """\
Per step and rank. size: as nccl-tests counts it, all ranks' parts of an all-gather or a
reduce-scatter. in flight: issue to completion; overlapped: share of it in which the training thread
worked."""

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
    """What binds each strategy, the comparison, what to know, and where each one's own report is.

    Args:
        results: by run directory, one per strategy.
        rows: of all of them.
        width: columns that prose is wrapped to.
        verdicts: as ``results``.
        table_width: columns that tables are split to; None leaves them as wide as they are.
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
        for note in notes(result)
    ]
    found += [
        f"{result.context.get('strategy')}'s own report: "
        + invocation.command("report", invocation.quoted(place))
        for place, result in results.items()
    ]
    blocks.append("\n".join(_bullet(note, width) for note in found))
    return "\n\n".join(blocks) + "\n"


def tables(rows: Sequence[StrategyRow], width: int | None = None) -> list[str]:
    """The comparison, and the operations of each strategy; without rows none."""
    if not rows:
        return []
    operations = operations_grid(rows)
    grids = [strategies_grid(rows), *([] if operations is None else [operations])]
    return [tabulated(*grid, width=width) for grid in grids]


def strategies_grid(rows: Sequence[StrategyRow]) -> Grid:
    """A row per world size and strategy."""
    return Grid([_cells(row) for row in rows], _HEADERS, [1])


def operations_grid(rows: Sequence[StrategyRow]) -> Grid | None:
    """A row per world size, strategy and operation; None where nothing was exchanged."""
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


def _operation_cells(row: StrategyRow, operation: OperationRow) -> tuple[str, ...]:
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
