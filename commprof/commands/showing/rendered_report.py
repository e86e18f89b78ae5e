"""Renders the report of a run, or of several strategies side by side.

Each renderer is imported only where it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from commprof import invocation
from commprof.analysis.cost import Cost
from commprof.commands.showing.opened_run import OpenedRun
from commprof.errors import UsageError
from commprof.trace.run.run_directory import other_jobs

if TYPE_CHECKING:
    from commprof.analysis.strategies import StrategyRow
    from commprof.analysis.verdict import Verdict


class RenderedReport(Protocol):
    """An analysed run, ready to be shown as a card, as text or as JSON."""

    def card(self, colour: bool = False) -> str:
        """Returns the first screen, in colour if ``colour`` is True; empty if there is none."""

    def text(self, width: int, tables: int | None = None) -> str:
        """Returns the report as text.

        Prose is wrapped to ``width`` characters. A table wider than ``tables`` characters is split.
        If ``tables`` is None, no table is split.
        """

    def json(self, cost: Cost | None = None) -> str:
        """Returns the report as one JSON document, with ``cost`` (the cost of training) if given.

        Raises:
            UsageError: ``cost`` is given, and the report compares several strategies.
        """

    @property
    def has_trial(self) -> bool:
        """True if the run holds a trial."""


def shown(run: OpenedRun) -> RenderedReport:
    """Returns the report of an opened run.

    Raises:
        CommprofError: the run's directory is neither a run directory nor a recording.
    """
    look = invocation.command("report", invocation.quoted(run.directory), "--all")
    return _Comparison(run.strategies, look) if run.strategies else _Run(run, look)


def with_tables(report: RenderedReport, card: str, width: int, tables: int | None) -> str:
    """Returns ``card`` (the first screen; may be empty), followed by the text of the report."""
    text = report.text(width, tables)
    return f"{card}\n{text}" if card else text


@dataclass(frozen=True)
class _Run:
    run: OpenedRun
    #: Command that shows the whole report.
    all_command: str

    def card(self, colour: bool = False) -> str:
        result = self.run.result
        if self.run.added is not None:
            from commprof.report.sections.caveats import caveats

            number = len(caveats(result))
            return self.run.added.screen(result.context["description"], self.all_command, number)
        if self.run.card is None:
            return ""
        from commprof.report import card

        return card.render(self.run.card, colour)

    def text(self, width: int, tables: int | None = None) -> str:
        from commprof.report import table

        if self.run.added is None:
            return table.render(self.run.result, width, self.run.verdict, tables)
        return table.render_added(self.run.result, self.run.added, width, tables)

    def json(self, cost: Cost | None = None) -> str:
        from commprof.report.export import as_json

        run = self.run
        return as_json.render(run.result, cost, run.added, run.verdict, run.card)

    @property
    def has_trial(self) -> bool:
        return self.run.added is not None


@dataclass(frozen=True)
class _Comparison:
    runs: tuple[OpenedRun, ...]
    #: Command that shows the whole report.
    all_command: str

    @cached_property
    def rows(self) -> tuple[StrategyRow, ...]:
        from commprof.analysis.strategies import strategy_rows

        return strategy_rows([run.result for run in self.runs])

    @property
    def verdicts(self) -> tuple[Verdict | None, ...]:
        return tuple(run.verdict for run in self.runs)

    def card(self, colour: bool = False) -> str:
        from commprof.report.strategies import render_screen

        results = [run.result for run in self.runs]
        return render_screen(results, self.rows, self.verdicts, self.all_command)

    def text(self, width: int, tables: int | None = None) -> str:
        from commprof.report import strategies as strategies_table

        results = {run.directory: run.result for run in self.runs}
        return strategies_table.render(results, self.rows, width, self.verdicts, tables)

    def json(self, cost: Cost | None = None) -> str:
        if cost is not None:
            raise UsageError(
                "--price-per-hour is for a single strategy; give the subdirectory of one strategy "
                "instead of the run directory"
            )
        from commprof.report.export import as_json

        results, cards = [run.result for run in self.runs], tuple(run.card for run in self.runs)
        return as_json.render_strategies(results, self.rows, self.verdicts, cards)

    @property
    def has_trial(self) -> bool:
        return False


def other_job_lines(directory: Path) -> str:
    """Returns a line for each other job in the directory, with the command that reports the job."""
    return "".join(
        f"Another job in this directory: {invocation.command('report', invocation.quoted(job))}\n"
        for job in other_jobs(directory)
    )
