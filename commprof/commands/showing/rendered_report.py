"""Report of a run directory: one run, or the runs of several strategies side by side.

A renderer is imported where it is used, so that no other one is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from commprof import invocation
from commprof.analysis.card import Card, card
from commprof.analysis.cost import Cost
from commprof.analysis.run import analyse_in_detail
from commprof.analysis.scaling import RunResult
from commprof.analysis.verdict import Verdict, verdict
from commprof.errors import UsageError
from commprof.trace.run.run_directory import other_jobs, strategy_directories
from commprof.tune.trials.found import analyse_trial

if TYPE_CHECKING:
    from commprof.analysis.strategies import StrategyRow
    from commprof.tune.trials.result import TrialResult


class RenderedReport(Protocol):
    """An analysed run, ready to be shown as a card, as text or as JSON."""

    def card(self, colour: bool = False) -> str:
        """Returns the first screen, in colour if ``colour`` is True; empty if there is no card."""

    def text(self, width: int, tables: int | None = None) -> str:
        """Returns the report as text.

        Prose is wrapped to ``width`` characters. A table wider than ``tables`` characters is split;
        with None no table is split.
        """

    def json(self, cost: Cost | None = None) -> str:
        """Returns the report as one JSON document, with ``cost`` (the cost of training) if given.

        Raises:
            UsageError: ``cost`` is given, and the report compares several strategies.
        """

    @property
    def has_trial(self) -> bool:
        """True if the run holds a trial."""


def read_report(directory: Path) -> RenderedReport:
    """Analyses a run directory; returns its report.

    Raises:
        CommprofError: the directory is not a run directory.
    """
    places = strategy_directories(directory)
    look = invocation.command("report", invocation.quoted(directory), "--all")
    if not places:
        result, details = analyse_in_detail(directory)
        judged = verdict(result, details)
        said = card(result, details, judged, directory)
        return _Run(result, judged, analyse_trial(directory), said, look)
    from commprof.analysis.strategies import strategy_rows

    found = {place: analyse_in_detail(place) for place in places}
    results = {place: result for place, (result, _) in found.items()}
    verdicts = tuple(verdict(*each) for each in found.values())
    cards = tuple(
        card(*each, judged, place)
        for (place, each), judged in zip(found.items(), verdicts, strict=True)
    )
    return _Comparison(results, strategy_rows(list(results.values())), verdicts, cards, look)


def with_tables(report: RenderedReport, card: str, width: int, tables: int | None) -> str:
    """Returns ``card`` (the first screen; may be empty), followed by the text of the report."""
    text = report.text(width, tables)
    return f"{card}\n{text}" if card else text


@dataclass(frozen=True)
class _Run:
    result: RunResult
    verdict: Verdict | None
    trial: TrialResult | None
    said: Card | None
    #: Command that shows the whole report.
    all_command: str

    def card(self, colour: bool = False) -> str:
        if self.trial is not None:
            from commprof.report import table
            from commprof.report.trial import render_screen

            about, found = self.result.context["description"], len(table.notes(self.result))
            return render_screen(self.trial, about, self.all_command, found)
        if self.said is None:
            return ""
        from commprof.report import card

        return card.render(self.said, colour)

    def text(self, width: int, tables: int | None = None) -> str:
        from commprof.report import table

        if self.trial is None:
            return table.render(self.result, width, self.verdict, tables)
        from commprof.report import trial as trial_table

        # Means over the steps of all candidates would describe none of them.
        about, found = self.result.context["description"], table.notes(self.result)
        text = trial_table.render(self.trial, about, width, found, tables)
        return "\n\n".join([text.rstrip("\n"), *table.incidents_block(self.result, width)]) + "\n"

    def json(self, cost: Cost | None = None) -> str:
        from commprof.report.export import as_json

        return as_json.render(self.result, cost, self.trial, self.verdict, self.said)

    @property
    def has_trial(self) -> bool:
        return self.trial is not None


@dataclass(frozen=True)
class _Comparison:
    results: dict[Path, RunResult]
    rows: tuple[StrategyRow, ...]
    verdicts: tuple[Verdict | None, ...]
    cards: tuple[Card | None, ...]
    #: Command that shows the whole report.
    all_command: str

    def card(self, colour: bool = False) -> str:
        from commprof.report.strategies import render_screen

        return render_screen([*self.results.values()], self.rows, self.verdicts, self.all_command)

    def text(self, width: int, tables: int | None = None) -> str:
        from commprof.report import strategies as strategies_table

        return strategies_table.render(self.results, self.rows, width, self.verdicts, tables)

    def json(self, cost: Cost | None = None) -> str:
        if cost is not None:
            raise UsageError(
                "--price-per-hour is for a single strategy; give the subdirectory of one strategy "
                "instead of the run directory"
            )
        from commprof.report.export import as_json

        return as_json.render_strategies(
            list(self.results.values()), self.rows, self.verdicts, self.cards
        )

    @property
    def has_trial(self) -> bool:
        return False


def other_job_lines(directory: Path) -> str:
    """Returns a line for each further job that recorded into a run's directory, with its report."""
    return "".join(
        f"Another job in this directory: {invocation.command('report', invocation.quoted(job))}\n"
        for job in other_jobs(directory)
    )
