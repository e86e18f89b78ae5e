"""Contents of a page about a run, or about several strategies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commprof.analysis.card import Card
    from commprof.analysis.cost import Cost
    from commprof.analysis.detail import WorldDetail
    from commprof.analysis.predicted import Predictions
    from commprof.analysis.scaling import RunResult
    from commprof.analysis.strategies import StrategyRow
    from commprof.analysis.verdict import Verdict


@dataclass(frozen=True)
class FullReport:
    """Contents of a report on one run."""

    result: RunResult
    #: One entry for each of ``result.worlds``; empty for text on a terminal.
    details: tuple[WorldDetail, ...]
    #: None if the run has no figures.
    verdict: Verdict | None
    #: None if no price was given.
    cost: Cost | None
    #: None if no predictions were given.
    predictions: Predictions | None = None
    #: None if the run has no figures or holds a trial, and for text on a terminal.
    card: Card | None = None

    @property
    def strategy(self) -> str:
        """Name of the strategy, as on the command line; empty for a script."""
        return str(self.result.context.get("strategy", ""))


@dataclass(frozen=True)
class ComparedStrategies:
    """Runs of one workload, each with a different strategy."""

    reports: tuple[FullReport, ...]
    #: Sorted by world size, then in the order of ``reports``.
    rows: tuple[StrategyRow, ...]
