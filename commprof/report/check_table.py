"""Outcomes of health checks as text."""

from __future__ import annotations

from collections.abc import Sequence

from commprof.analysis.checks.outcome import FAIL, STATUSES, WARN, Outcome
from commprof.report.plain_text import printable, wrapped


def render(outcomes: Sequence[Outcome], ranks: int, width: int) -> str:
    """A line per check with its figure, details and what to do below it, and a summary."""
    widest = max((len(outcome.check) for outcome in outcomes), default=0)
    indent = " " * (widest + 8)
    lines, width = [], max(60, width)
    for outcome in outcomes:
        first = f"{outcome.status}  {outcome.check:<{widest}}  "
        lines.append(wrapped(outcome.figure, width, first, indent))
        lines += [indent + printable(line) for line in outcome.details]
        if outcome.status in (WARN, FAIL):
            lines.append(wrapped(f"-> {outcome.advice}", width, indent, indent + "   "))
    counts = [
        f"{count} {status}"
        for status in STATUSES
        if (count := sum(outcome.status == status for outcome in outcomes))
    ]
    lines.append(f"{ranks} {'rank' if ranks == 1 else 'ranks'}: {', '.join(counts)}")
    return "\n".join(lines) + "\n"
