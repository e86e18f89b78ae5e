"""Two sweeps compared, as text."""

from __future__ import annotations

from commprof.analysis.sweeps.sweep_comparison import (
    SIGNIFICANCE,
    RowComparison,
    SweepComparison,
)
from commprof.report.plain_text import printable
from commprof.report.tabulated import tabulated, three_digits

_HEADERS = (
    "operation",
    "ranks",
    "placement",
    "type",
    "size\nB",
    "A\nus",
    "B\nus",
    "B/A",
    "p",
    "corrected\np",
    "verdict",
)
_LEFT = (0, 2, 3, 10)

_LEGEND = """\
A, B: median times. p: Mann-Whitney rank test between the rounds' medians, which resemble those of
the next round (correlation {correlation:.2f}); corrected by Holm's rule for {rows}, so that two
equal results show any difference at all with a chance of {alpha:.0%}."""


def render(comparison: SweepComparison, tables: int | None = None) -> str:
    """Rows, what differs besides, and the sum of it."""
    rows = comparison.rows
    blocks = [tabulated([_cells(row) for row in rows], _HEADERS, _LEFT, tables)]
    number = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    blocks.append(
        _LEGEND.format(rows=number, alpha=SIGNIFICANCE, correlation=comparison.correlation)
    )
    if comparison.differences:
        lines = [
            f"  {name}: {printable(a)} against {printable(b)}"
            for name, a, b in comparison.differences
        ]
        blocks.append("\n".join(["What else differs, A against B:", *lines]))
    for count, which in ((comparison.only_first, "A"), (comparison.only_second, "B")):
        if count:
            blocks.append(f"Only in {which}: {count} {'row' if count == 1 else 'rows'}.")
    blocks += [f"* {remark}." for remark in comparison.remarks]
    counts = {name: sum(row.verdict == name for row in rows) for name in _VERDICTS}
    blocks.append("B against A: " + ", ".join(f"{counts[name]} {name}" for name in _VERDICTS) + ".")
    return "\n\n".join(blocks) + "\n"


_VERDICTS = ("slower", "faster", "same")


def _cells(row: RowComparison) -> tuple[str, ...]:
    key = row.key
    return (
        printable(key.op),
        str(key.world_size),
        key.placement.replace("_", "-"),
        printable(" ".join(filter(None, (key.dtype, key.redop)))),
        str(key.size_bytes),
        three_digits(row.first_us),
        three_digits(row.second_us),
        f"{row.ratio:.3f}",
        _p(row.p_value),
        _p(row.corrected_p),
        row.verdict,
    )


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"
