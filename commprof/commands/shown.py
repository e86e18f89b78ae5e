"""What a run directory shows: one run, or the runs of several strategies side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from commprof.analysis.run import analyse_run
from commprof.analysis.scaling import RunResult
from commprof.analysis.strategies import StrategyRow, strategy_rows
from commprof.report import as_json, strategies_table, table
from commprof.trace.run_directory import strategy_directories


class Shown(Protocol):
    """Analysed, and ready to be rendered."""

    def text(self, width: int) -> str:
        """For the terminal; prose is wrapped to ``width`` columns."""

    def json(self) -> str:
        """One JSON document."""


def read_shown(directory: Path) -> Shown:
    """Analyses a run directory.

    Raises:
        CommprofError: it is none.
    """
    places = strategy_directories(directory)
    if not places:
        return _Run(analyse_run(directory))
    results = {place: analyse_run(place) for place in places}
    return _Comparison(results, strategy_rows(list(results.values())))


@dataclass(frozen=True)
class _Run:
    result: RunResult

    def text(self, width: int) -> str:
        return table.render(self.result, width)

    def json(self) -> str:
        return as_json.render(self.result)


@dataclass(frozen=True)
class _Comparison:
    results: dict[Path, RunResult]
    rows: tuple[StrategyRow, ...]

    def text(self, width: int) -> str:
        return strategies_table.render(self.results, self.rows, width)

    def json(self) -> str:
        return as_json.render_strategies(list(self.results.values()), self.rows)
