"""Strategies side by side on one screen: what binds each, their figures, and what to type."""

from __future__ import annotations

from collections.abc import Sequence

from commprof.analysis.scaling import RunResult
from commprof.analysis.strategies import StrategyRow
from commprof.analysis.verdict import Verdict
from commprof.report.one_screen import LINES, WIDTH, command_lines, cut, prose, table_lines
from commprof.report.strategies.table import strategies_grid
from commprof.report.table import notes
from commprof.text import counted

#: Of the table, by the first line of their headers; the last ones as far as they fit.
_COLUMNS = (
    *("ranks", "strategy", "samples", "against", "effi-", "step ms", "+-", "exposed", "of step"),
    "memory",
)
#: Lines of a strategy's headline.
_MOST_LINES = 3


def render(
    results: Sequence[RunResult],
    rows: Sequence[StrategyRow],
    verdicts: Sequence[Verdict | None],
    all_command: str,
) -> str:
    """At most 24 lines of 80 columns; the largest world sizes first.

    Args:
        results: one for each strategy.
        rows: of all of them.
        verdicts: as ``results``.
        all_command: what to type to see everything.
    """
    top = [cut(str(results[0].context["description"]))]
    found = sum(len(notes(result)) for result in results)
    bottom = [f"! {counted(found, 'note')} on how to read it: see --all"] if found else []
    bottom += ["Next, to see all of it:", *command_lines(all_command)]
    headlines: list[list[str]] = []
    for result, verdict in zip(results, verdicts, strict=True):
        if verdict is not None:
            lines = prose(f"{result.context.get('strategy')}: {verdict.headline}")
            if len(lines) > _MOST_LINES:
                last = lines[_MOST_LINES - 1][: WIDTH - 4]
                lines = [*lines[: _MOST_LINES - 1], f"{last} ..."]
            headlines.append(lines)
    # Their table takes three lines of headers and at least a row each, then one that counts.
    space = LINES - len(top) - len(bottom) - min(len(rows), len(results)) - 4
    shown: list[str] = []
    for lines in headlines:
        if len(shown) + len(lines) <= space:
            shown += lines
    largest = strategies_grid(sorted(rows, key=lambda row: -row.world_size))
    space = LINES - len(top) - len(bottom) - len(shown)
    table = table_lines(largest, _COLUMNS, space, "row") if rows else []
    return "\n".join([*top, *shown, *table, *bottom]) + "\n"
