"""Two results of ``commprof microbench`` side by side, for ``commprof compare``."""

from __future__ import annotations

from pathlib import Path

from commprof.analysis.sweep_comparison import compare_sweeps
from commprof.analysis.sweep_file import read_sweep
from commprof.commands.terminal import table_width
from commprof.errors import UsageError
from commprof.report import sweep_comparison_table


def compare(a: Path, b: Path, fail_above: float | None, shown_as: str) -> int:
    """Prints row by row what differs, and judges; see ``compare_runs.compare``."""
    if shown_as != "table":
        raise UsageError(
            f"--format {shown_as} is for run directories; results of microbench are JSON already"
        )
    comparison = compare_sweeps(read_sweep(a), read_sweep(b))
    print(sweep_comparison_table.render(comparison, table_width()), end="")
    if fail_above is None:
        return 0
    failed = comparison.slower_than(fail_above)
    rows = "1 row is" if len(failed) == 1 else f"{len(failed)} rows are"
    print(f"Beyond noise, {rows} slower by more than {100 * fail_above:.3g}%.")
    return 1 if failed else 0
