"""What the text claims, against the text elsewhere and against the tables."""

from __future__ import annotations

from collections.abc import Iterator

from commprof.audit.checks import Check, Quote, cited, quote, words
from commprof.audit.document import Document, Technique
from commprof.audit.figure import Figure, Span

#: Efficiency that measurement noise may cost or give; see ``scaling_rules.NOISE``.
_NOISE = 0.03


def repeated_overhead(document: Document) -> Iterator[Check]:
    """The communication overhead of the whole report is given once, or the same."""
    stated = document.facts.get("overhead", ())
    for later in stated[1:]:
        implied = Quote(f"overhead {cited(stated[0])}", stated[0].span)
        yield Check("the report", quote("overhead", later), implied)


def repeated_scaling(document: Document) -> Iterator[Check]:
    """A sentence gives the speed-up or the efficiency that the table of the report gives."""
    for stated in document.statements:
        for name, figure in stated.figures.items():
            found = _in_tables(document, stated.ranks, name)
            if stated.base_ranks == 1 and len(found) == 1:
                row = f"{stated.ranks} ranks"
                yield Check(row, quote(name, figure), quote(name, found[0]))


def overhead_against_efficiency(document: Document) -> Iterator[Check]:
    """An overhead that holds for all rows is not below what the rows lose."""
    stated = document.facts.get("overhead", ())
    if len(stated) != 1:
        return
    for series in document.series:
        for row in series.rows:
            figure = row.figures.get("efficiency")
            if row.ranks < 2 or figure is None:
                continue
            lost = Span(1.0 - figure.span.high, 1.0 - figure.span.value, 1.0 - figure.span.low)
            bound = Span(max(0.0, lost.low - _NOISE), max(0.0, lost.value), float("inf"))
            text = f"efficiency {cited(figure)} loses"
            yield Check(row.name, quote("overhead", stated[0]), Quote(text, bound, "%"))


def combined_techniques(document: Document) -> Iterator[Check]:
    """All techniques together give no less than one of them alone."""
    for table in document.techniques:
        together = [t for t in table if _is_combination(t)]
        single = [t for t in table if not _is_combination(t)]
        for whole in together:
            best = max(single, key=lambda t: t.speedup.span.value, default=None)
            if best is None:
                continue
            bound = Span(best.speedup.span.low, best.speedup.span.value, float("inf"))
            text = f"{best.name} alone {cited(best.speedup)}, so at least"
            stated = Quote(f"{words('speedup')} {cited(whole.speedup)}", whole.speedup.span)
            yield Check(whole.name, stated, Quote(text, bound, "x"))


def _is_combination(technique: Technique) -> bool:
    return any(word in technique.name.split() for word in ("combined", "together", "all"))


def _in_tables(document: Document, ranks: int, name: str) -> list[Figure]:
    return [
        row.figures[name]
        for series in document.series
        for row in series.rows
        if row.ranks == ranks and name in row.figures
    ]
