"""Two run directories side by side, for ``commprof compare``."""

from __future__ import annotations

from pathlib import Path

from commprof import invocation
from commprof.analysis.compare import RunComparison, compare_runs
from commprof.analysis.run import analyse_in_detail
from commprof.commands.options.terminal import prose_width, table_width
from commprof.errors import UsageError
from commprof.report.comparison import as_json as comparison_json
from commprof.report.comparison import table as comparison_table
from commprof.trace.run.run_directory import read_context, strategy_directories
from commprof.trace.salvage import salvage_dead

#: Exit code where a step became slower than allowed.
SLOWER = 1


def compare(a: Path, b: Path, fail_above: float | None, shown_as: str) -> int:
    """Analyses both, prints what changed, and judges.

    Args:
        a: the run to compare with.
        b: the run that may have changed.
        fail_above: by what share B's step may be longer, 0.05 for 5 %; None judges nothing.
        shown_as: "table" or "json".

    Raises:
        CommprofError: one is no run directory, holds a trial or several strategies, or the runs
            are too short to be judged.
    """
    for run in (a, b):
        salvage_dead(run)
        _check_one_run(run)
    analysed = [analyse_in_detail(run) for run in (a, b)]
    for run, (found, _) in zip((a, b), analysed, strict=True):
        if found.in_turns:
            raise _trial_refused(run)
    result = compare_runs((str(a), str(b)), *analysed)
    if fail_above is not None:
        _must_be_able_to_fail(result)
    slower = () if fail_above is None else result.slower_by_more_than(fail_above)
    if shown_as == "json":
        print(comparison_json.render(result, fail_above), end="")
    else:
        text = comparison_table.render(result, fail_above, prose_width(), table_width())
        print(text, end="")
    return SLOWER if slower else 0


def _check_one_run(run: Path) -> None:
    """Steps of different candidates or strategies are not one run's."""
    if places := strategy_directories(run):
        raise UsageError(
            f"{invocation.quoted(run)} holds the runs of several strategies; compare one of them: "
            f"{' or '.join(map(invocation.quoted, places))}"
        )
    if "trial" in read_context(run):
        raise _trial_refused(run)


def _trial_refused(run: Path) -> UsageError:
    return UsageError(
        f"{invocation.quoted(run)} holds a trial, whose candidates share its steps: "
        f"{invocation.command('report', invocation.quoted(run))} compares them; compare runs that "
        "were made without a trial"
    )


def _must_be_able_to_fail(result: RunComparison) -> None:
    """A gate that cannot close is none."""
    if not any(not world.too_short for world in result.worlds):
        raise UsageError(
            "--fail-above cannot judge these runs: no world size has enough measured steps in both "
            "(needed: steps worth 4 independent ones in each, as 15 are where they are not alike); "
            "record more steps, at the same world sizes"
        )
