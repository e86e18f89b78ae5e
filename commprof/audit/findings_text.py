"""Findings of an audit as text."""

from __future__ import annotations

import math

from commprof.audit.checks import Audit, Finding, Quote
from commprof.text import wrapped


def render(result: Audit, name: str, width: int) -> str:
    """Renders a one-line summary, then each finding.

    Args:
        result: result of the audit.
        name: name of the audited file, for the summary.
        width: number of columns.
    """
    count = len(result.findings)
    summary = (
        f"{name}: {count or 'no'} {'finding' if count == 1 else 'findings'} in {result.checks} "
        f"comparisons of {result.rows} rows"
    )
    if not result.checks:
        summary += ": no rule links any two of its figures, so nothing could be compared"
    width = max(40, width)
    blocks = [wrapped(summary, width)]
    blocks += [_finding(finding, width) for finding in result.findings]
    return "\n\n".join(blocks) + "\n"


def _finding(finding: Finding, width: int) -> str:
    lines = [
        wrapped(f"{finding.row}: {finding.meaning} [{finding.rule}]", width, "", "  "),
        wrapped(finding.stated.text, width, "  stated:  ", "           "),
        wrapped(f"{finding.implied.text}{_value(finding.implied)}", width, "  against: ", " " * 11),
    ]
    return "\n".join(lines)


def _value(quote: Quote) -> str:
    if quote.unit is None:
        return ""
    value = quote.span.value
    if quote.unit == "s":
        return f" {_seconds(value)}"
    if quote.unit == "%":
        return f" {_number(value * 100)} %"
    if quote.unit == "$":
        return f" ${_number(value)}"
    space = "" if quote.unit in ("", "x") else " "
    return f" {_number(value)}{space}{quote.unit}"


def _seconds(value: float) -> str:
    for size, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if value >= 2 * size:
            return f"{_number(value / size)} {unit}"
    return f"{_number(value)} s" if value >= 1 else f"{_number(value * 1000)} ms"


def _number(value: float) -> str:
    """Formats a number with four significant digits, from 1,000 on as a whole number."""
    if not math.isfinite(value):
        return "any number"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
