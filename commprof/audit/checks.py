"""Comparisons of figures in a report, and findings: figures that disagree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from commprof.audit.document import Row
from commprof.audit.figure import Span, StatedFigure


@dataclass(frozen=True)
class Quote:
    """One of two figures that a rule compares."""

    #: Name and printed value of the figure, or the formula that gives the figure.
    text: str
    span: Span
    #: Unit of the value that is printed after ``text``, for example "s", "%" or "$". Empty for a
    #: value without a unit, and None if no value is printed.
    unit: str | None = None


@dataclass(frozen=True)
class AuditCheck:
    """Comparison of a figure with the value that other figures of the report imply."""

    #: Name of the row, such as "4 ranks".
    row: str
    stated: Quote
    implied: Quote

    @property
    def agrees(self) -> bool:
        """True if the two figures can be equal within their printed digits."""
        return self.stated.span.meets(self.implied.span)


@dataclass(frozen=True)
class Finding:
    """Two figures of a report that disagree."""

    #: Name of the rule, as in ``docs/reading.md``.
    rule: str
    #: Meaning of the disagreement, as a sentence.
    meaning: str
    row: str
    stated: Quote
    implied: Quote


@dataclass(frozen=True)
class Audit:
    """Result of checking a report's figures against each other."""

    #: Number of rows with a world size, over all series of the report.
    rows: int
    #: Number of comparisons made.
    checks: int
    findings: tuple[Finding, ...]


def check(row: Row, name: str, text: str, implied: Span, unit: str = "") -> AuditCheck:
    """Compares the row's figure ``name`` with ``implied``, the value of the formula ``text``."""
    return AuditCheck(row.name, quote(name, row.figures[name]), Quote(f"{text} =", implied, unit))


def quote(name: str, figure: StatedFigure) -> Quote:
    """Quotes a figure with its name and its place in the report."""
    return Quote(f"{words(name)} {cited(figure)}", figure.span)


def cited(figure: StatedFigure) -> str:
    """Returns a figure's text with its place in the report."""
    return f"{figure.text} ({figure.where})" if figure.where else figure.text


def words(name: str) -> str:
    """Returns the name of a quantity in plain words."""
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


def best_reading(readings: Iterable[list[AuditCheck]]) -> list[AuditCheck]:
    """Returns the interpretation of a header with which most rows agree; the first one on a tie."""
    return max(readings, key=lambda checks: sum(check.agrees for check in checks))
