"""The section with the verdict on a run: its headline, the card's facts and the next step."""

from __future__ import annotations

from collections.abc import Iterator

from commprof.report.card import facts
from commprof.report.full_report import FullReport
from commprof.report.section import Medium, Section
from commprof.text import printable


def sections(report: FullReport, medium: Medium) -> Iterator[Section]:
    """Yields the verdict, if the run has figures."""
    verdict, card = report.verdict, report.card
    if verdict is None:
        return
    advice = verdict.next_step.advice
    command = printable(verdict.next_step.command)
    yield Section(
        "verdict",
        "Verdict",
        lead=verdict.headline,
        facts=() if card is None else tuple(facts(card)),
        paragraphs=(*verdict.sentences, *([advice] if advice else [])),
        preformatted=(command if medium.is_page else f"  {command}",) if command else (),
    )
