"""All that a page about a run shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commprof.analysis.card import Card
    from commprof.analysis.cost import Cost
    from commprof.analysis.predicted import Predictions
    from commprof.analysis.scaling import RunResult
    from commprof.analysis.step.detail import WorldDetail
    from commprof.analysis.strategies import StrategyRow
    from commprof.analysis.verdict import Verdict


@dataclass(frozen=True)
class FullReport:
    """Everything that a report of one run shows."""

    result: RunResult
    #: One for each of ``result.worlds``.
    details: tuple[WorldDetail, ...]
    #: None without figures.
    verdict: Verdict | None
    #: None without a price.
    cost: Cost | None
    #: None unless given.
    predictions: Predictions | None = None
    #: None without figures.
    card: Card | None = None

    @property
    def strategy(self) -> str:
        """How ranks share the model, as on the command line; empty for a script."""
        return str(self.result.context.get("strategy", ""))


@dataclass(frozen=True)
class ComparedStrategies:
    """Runs of one workload, each under another strategy."""

    reports: tuple[FullReport, ...]
    #: By world size, and within one in the order of ``reports``.
    rows: tuple[StrategyRow, ...]
