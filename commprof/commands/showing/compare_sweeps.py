"""Two results of ``commprof microbench`` side by side, for ``commprof compare``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from commprof.analysis.sweeps.sweep import SweepResult
from commprof.analysis.sweeps.sweep_comparison import compare_sweeps
from commprof.analysis.sweeps.sweep_file import read_sweep
from commprof.commands.options.terminal import table_width
from commprof.errors import UsageError
from commprof.report.comparison import sweep_comparison_table
from commprof.report.plain_text import printable
from commprof.text import counted


def compare(a: Path, b: Path, fail_above: float | None, shown_as: str) -> int:
    """Prints row by row what differs, and judges; see ``compare_runs.compare``."""
    if shown_as != "table":
        raise UsageError(
            f"--format {shown_as} is for run directories; results of microbench are JSON already"
        )
    second = read_sweep(b)
    comparison = compare_sweeps(read_sweep(a), second)
    print(sweep_comparison_table.render(comparison, table_width()), end="")
    if fail_above is None:
        return 0
    failed = comparison.slower_than(fail_above)
    rows = f"{counted(len(failed), 'row')} {'is' if len(failed) == 1 else 'are'}"
    print(f"Beyond noise, {rows} slower by more than {100 * fail_above:.3g}%.")
    unusable = list(_unusable(second, comparison.only_first))
    for reason in unusable:
        print(f"B cannot pass: {reason}.")
    return 1 if failed or unusable else 0


def _unusable(second: SweepResult, lacking: int) -> Iterator[str]:
    """Why the second result says less than the first, or nothing, whatever its times are."""
    if lacking:
        yield f"it lacks {counted(lacking, 'row')} of A"
    for problem in second.problems:
        yield f"its measurement was cut short: {printable(problem)}"
    wrong = sum(row.wrong or 0 for row in second.rows)
    if wrong:
        yield f"{counted(wrong, 'element')} {'was' if wrong == 1 else 'were'} wrong"
