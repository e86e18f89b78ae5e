"""What a rule compares, and what an audit finds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from commprof.audit.document import Row
from commprof.audit.figure import Figure, Span


@dataclass(frozen=True)
class Quote:
    """One of two figures that a rule compares."""

    #: What it is, as the report has it or as it follows from the report.
    text: str
    span: Span
    #: Of the value to print behind ``text``: "s", "%", "x", "$", another or empty; None where
    #: ``text`` says it all.
    unit: str | None = None


@dataclass(frozen=True)
class Check:
    """A figure of the report, and the value that its other figures imply."""

    #: The row of the report, such as "4 ranks".
    row: str
    stated: Quote
    implied: Quote

    @property
    def agrees(self) -> bool:
        """True if one value fits both figures, as far as the printed digits tell."""
        return self.stated.span.meets(self.implied.span)


@dataclass(frozen=True)
class Finding:
    """Two figures of a report that disagree."""

    #: Name of the rule, as in ``docs/reading.md``.
    rule: str
    #: What the disagreement means, in a sentence.
    meaning: str
    row: str
    stated: Quote
    implied: Quote


@dataclass(frozen=True)
class Audit:
    """A report held against its own arithmetic."""

    #: World sizes of the report, in all of its series.
    rows: int
    #: Comparisons that the report allowed.
    checks: int
    findings: tuple[Finding, ...]


def check(row: Row, name: str, text: str, implied: Span, unit: str = "") -> Check:
    """Compares the row's figure of this name with the result of the formula in ``text``."""
    return Check(row.name, quote(name, row.figures[name]), Quote(f"{text} =", implied, unit))


def quote(name: str, figure: Figure) -> Quote:
    """A figure with its name and its place."""
    return Quote(f"{words(name)} {cited(figure)}", figure.span)


def cited(figure: Figure) -> str:
    """A figure with its place."""
    return f"{figure.text} ({figure.where})" if figure.where else figure.text


def words(name: str) -> str:
    """Name of a quantity in plain words."""
    return {
        "epoch_s": "time per epoch",
        "speedup": "speed-up",
        "amdahl_speedup": "speed-up by Amdahl's law",
        "unit_cost": "cost per unit",
        "cost_efficiency": "cost efficiency",
        "rank_batch": "batch per rank",
        "global_batch": "global batch",
        "latency": "time per iteration",
    }.get(name, name)


def best_reading(readings: Iterable[list[Check]]) -> list[Check]:
    """Chooses the meaning of an ambiguous header under which most rows agree.

    Of equal ones the first.
    """
    return max(readings, key=lambda checks: sum(check.agrees for check in checks))
