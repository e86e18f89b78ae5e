"""A run whose traces are read and analysed only once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from commprof import satellites
from commprof.analysis.card import Card, card
from commprof.analysis.detail import WorldDetail
from commprof.analysis.run import analyse_in_detail
from commprof.analysis.scaling import RunResult
from commprof.analysis.step.measured import in_turns
from commprof.analysis.verdict import Verdict, verdict
from commprof.errors import UsageError
from commprof.invocation import quoted
from commprof.report.full_report import FullReport
from commprof.trace.run.run_directory import WorldRun, read_world, strategy_directories

if TYPE_CHECKING:
    from commprof.analysis.cost import Cost, Price
    from commprof.analysis.predicted import Predictions
    from commprof.satellites import AddedReport


class OpenedRun:
    """A run directory or a recording.

    Each trace is read once; each result is made once, when it is first needed.
    """

    def __init__(
        self,
        directory: Path,
        all_calls: bool = False,
        strategies: Sequence[Path] | None = None,
    ) -> None:
        """Reads nothing yet.

        Args:
            directory: the run or recording.
            all_calls: True to keep the calls of all steps in memory, even of a long run.
            strategies: result of ``strategy_directories``; None if it was not called.
        """
        self.directory = directory
        self._strategies = strategies
        self._all_calls = all_calls
        #: Traces of the trial's world size. None without a trial, and before the traces are read.
        self._in_turns: WorldRun | None = None

    @cached_property
    def strategies(self) -> tuple[OpenedRun, ...]:
        """The runs of several strategies that the directory holds; empty for a single run."""
        directories = self._strategies
        if directories is None:
            directories = strategy_directories(self.directory)
        return tuple(OpenedRun(run, self._all_calls) for run in directories)

    @cached_property
    def _analysed(self) -> tuple[RunResult, tuple[WorldDetail, ...]]:
        return analyse_in_detail(self.directory, self._read_world, self._all_calls)

    def _read_world(self, directory: Path, world_size: int) -> WorldRun:
        world = read_world(directory, world_size)
        if self._in_turns is None and in_turns(world):
            self._in_turns = world
        return world

    @property
    def result(self) -> RunResult:
        """Every figure of the run, by world size.

        Raises:
            CommprofError: the directory is neither a run directory nor a recording.
        """
        return self._analysed[0]

    @property
    def details(self) -> tuple[WorldDetail, ...]:
        """Figures of single steps, for each of ``result.worlds``."""
        return self._analysed[1]

    @cached_property
    def verdict(self) -> Verdict | None:
        """The verdict, which says what bounds the step; None if the run has no figures."""
        return verdict(self.result, self.details)

    @cached_property
    def card(self) -> Card | None:
        """The first screen; None if the run has no figures, or holds a trial."""
        return card(self.result, self.details, self.verdict, self.directory)

    @cached_property
    def added(self) -> AddedReport | None:
        """Report of the run's trial; None if the run holds no trial.

        Raises:
            UsageError: the run holds a trial, and the package that reads trials is not installed.
        """
        if not self.result.in_turns or self._in_turns is None:
            return None
        return satellites.tune().recorded_trial(self._in_turns, self.result.context)

    def cost(self, price: Price, epoch_samples: float = math.nan) -> Cost:
        """Returns what training costs at each world size.

        Args:
            price: price of a node or rank per hour.
            epoch_samples: samples of all ranks in an epoch; NaN: the number that the built-in
                training loop counted.

        Raises:
            UsageError: the run holds a trial.
        """
        from commprof.analysis.cost import cost

        if self.added is not None:
            raise UsageError(
                f"{quoted(self.directory)} holds a trial: its candidates share the steps, so none "
                "has a cost of its own; leave --price-per-hour out"
            )
        return cost(self.result.worlds, self.details, price, epoch_samples)

    def report(
        self, cost: Cost | None = None, predictions: Predictions | None = None
    ) -> FullReport:
        """Returns the contents of the report, with the cost and predictions that are given."""
        return FullReport(self.result, self.details, self.verdict, cost, predictions, self.card)
