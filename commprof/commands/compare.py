"""``commprof compare``: show if two results differ by more than noise."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from commprof import invocation
from commprof.analysis.compare import RunComparison, compare_runs
from commprof.analysis.detail import WorldDetail
from commprof.analysis.inspector.communicators import split_job
from commprof.analysis.inspector.result import result_of
from commprof.analysis.inspector.transfers import sweep_of
from commprof.analysis.run import analyse_in_detail
from commprof.analysis.scaling import RunResult
from commprof.analysis.sweeps.sweep import SweepResult
from commprof.analysis.sweeps.sweep_comparison import compare_sweeps
from commprof.analysis.sweeps.sweep_file import read_sweep
from commprof.commands.options.reading_progress import reading_progress
from commprof.commands.options.terminal import prose_width, table_width
from commprof.errors import UsageError
from commprof.memory import return_free_memory
from commprof.recordings.inspector import is_inspector, read_logs
from commprof.recordings.recognise import is_recording_file
from commprof.report.comparison import sweep_table
from commprof.report.comparison import table as comparison_table
from commprof.report.inspector import compared_waiting
from commprof.text import counted, printable, wrapped
from commprof.trace.reader import salvage_dead
from commprof.trace.run.run_directory import read_context, strategy_directories

_DESCRIPTION = """\
Compares the steps of two recorded runs (step time, its parts, collectives, settings), or the rows
of two results of the microbenchmark. Shows ratios, and whether a difference is more than noise (by
a Mann-Whitney test). With --fail-above, the exit code gives a verdict for scripts.

  commprof compare BEFORE AFTER                          run directories, or torch.profiler's traces
  commprof compare BEFORE.json AFTER.json --fail-above 5%    from commprof microbench --json
  commprof compare BEFORE.log AFTER.log                  outputs of nccl-tests
  commprof compare BEFORE AFTER                          logs of NCCL Inspector: transfers, waiting

With --fail-above 5% the exit code is 1 if AFTER is slower by more than 5% and beyond noise. If
AFTER is a result of the microbenchmark, the exit code is also 1 if AFTER lacks rows of BEFORE, was
cut short or has wrong data. The exit code is 2 if too few steps or rounds were measured; an output
of nccl-tests without -N has too few rounds. A step that is longer only because cores were lacking
does not count as slower. Without --fail-above the exit code is 0, whatever the figures are.
"""
_GIVE = (
    "give two run directories, two recordings of torch.profiler, two JSON files of commprof "
    "microbench, two outputs of nccl-tests, or logs of NCCL Inspector of two jobs"
)


class CompareCommand:
    """The command ``commprof compare``."""

    description = _DESCRIPTION

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.add_argument("first", type=Path, metavar="A", help="result before the change")
        parser.add_argument("second", type=Path, metavar="B", help="result after the change")
        parser.add_argument(
            "--fail-above",
            metavar="5%",
            help="exit with 1 if B is slower than A by more than this and the difference is beyond "
            "noise",
        )
        parser.add_argument(
            "--format", choices=("table", "json"), default="table", help="default: table"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Compares the two results and prints the comparison."""
        limit = None if args.fail_above is None else parse_share(args.fail_above)
        paths = (args.first, args.second)
        if any(path.exists() and is_inspector(path) for path in paths):
            return _compare_logs(args.first, args.second, limit, args.format)
        runs = [path.is_dir() or is_recording_file(path) for path in paths]
        are_runs = any(runs)
        if not all(runs) and are_runs:
            other = paths[runs.index(False)]
            said = "holds no recording" if other.exists() else "does not exist"
            raise UsageError(f"{invocation.quoted(other)} {said}; {_GIVE}")
        if missing := [path for path in paths if not path.exists()]:
            raise UsageError(f"{invocation.quoted(missing[0])} does not exist; {_GIVE}")
        compare = _compare_runs if are_runs else _compare_microbenchmarks
        return compare(args.first, args.second, limit, args.format)


def parse_share(text: str) -> float:
    """Reads a share such as ``5%`` or ``0.05``. Raises UsageError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    if match is None:
        raise UsageError(f"--fail-above {text!r} is not a share such as 5% or 0.05")
    return float(match[1]) / (100 if match[2] else 1)


#: Exit code of a comparison whose second result is slower than ``--fail-above`` allows.
SLOWER = 1


def _compare_runs(a: Path, b: Path, fail_above: float | None, shown_as: str) -> int:
    """Compares two runs, prints what changed, and returns the exit code.

    ``fail_above`` is a share, such as 0.05 for 5 %.

    Raises:
        CommprofError: a run cannot be compared, or the runs are too short for ``fail_above``.
    """
    for run in (a, b):
        salvage_dead(run)
        _check_one_run(run)
    analysed = [_analysed(run) for run in (a, b)]
    for run, (found, _) in zip((a, b), analysed, strict=True):
        if found.in_turns:
            raise _trial_refused(run)
    result = compare_runs((str(a), str(b)), *analysed)
    if fail_above is not None:
        _must_be_able_to_fail(result)
    slower = () if fail_above is None else result.slower_by_more_than(fail_above)
    if shown_as == "json":
        print(comparison_table.render_json(result, fail_above), end="")
    else:
        text = comparison_table.render(result, fail_above, prose_width(), table_width())
        print(text, end="")
    return SLOWER if slower else 0


def _analysed(run: Path) -> tuple[RunResult, tuple[WorldDetail, ...]]:
    """Analyses a run, and frees its records before another run is read."""
    result, details = analyse_in_detail(run, steps_only=True)
    for detail in details:
        if not result.in_turns:
            # The comparison needs these times, and they can be computed only from the records.
            detail.drawn.in_flight()
        detail.drawn.drop_records()
    return_free_memory()
    return result, details


def _check_one_run(run: Path) -> None:
    if places := strategy_directories(run):
        raise UsageError(
            f"{invocation.quoted(run)} holds the runs of several strategies; compare one of them: "
            f"{' or '.join(map(invocation.quoted, places))}"
        )
    if "trial" in read_context(run):
        raise _trial_refused(run)


def _trial_refused(run: Path) -> UsageError:
    return UsageError(
        f"{invocation.quoted(run)} holds a trial, which compare cannot compare with another run: "
        f"{invocation.command('report', invocation.quoted(run))} compares the trial's candidates "
        "with each other"
    )


def _must_be_able_to_fail(result: RunComparison) -> None:
    if not any(not world.too_short for world in result.worlds):
        reason = (
            "--fail-above cannot judge these runs: no world size has enough measured steps in both "
            "(about 15 in each run are usually enough, more if neighbouring steps are correlated); "
            "record more steps, at the same world sizes"
        )
        raise UsageError(". ".join([reason, *comparison_table.only_summarised(result)]))


def _compare_logs(a: Path, b: Path, fail_above: float | None, shown_as: str) -> int:
    """Compares the transfers and the waiting of two jobs that NCCL Inspector logged.

    Raises:
        CommprofError: a path holds no such logs, the jobs have no row in common, or there are too
            few samples for ``fail_above``.
    """
    if shown_as != "table":
        raise UsageError(
            f"--format {shown_as} is for run directories; commprof report LOGS --format json "
            "gives the figures of one job's logs"
        )
    for path in (a, b):
        if not path.exists() or not is_inspector(path):
            said = "holds no logs of NCCL Inspector" if path.exists() else "does not exist"
            raise UsageError(
                f"{invocation.quoted(path)} {said}; logs of Inspector can be compared only with "
                "logs of Inspector"
            )
    results, sweeps = [], []
    for path in (a, b):
        with reading_progress() as progress:
            logs = read_logs(path, progress)
        job = split_job(logs)
        results.append(result_of(logs, job))
        sweeps.append(sweep_of(job, path))
    comparison = compare_sweeps(*sweeps)
    if fail_above is not None and not comparison.can_tell:
        raise UsageError(f"--fail-above cannot judge these logs. {'. '.join(comparison.remarks)}")
    print(sweep_table.render_compared(comparison, table_width()), end="")
    for line in compared_waiting(*results):
        print(wrapped(line, prose_width()))
    if fail_above is None:
        return 0
    failed = comparison.slower_than(fail_above)
    rows = f"{counted(len(failed), 'row')} {'is' if len(failed) == 1 else 'are'}"
    print(f"Beyond noise, {rows} slower by more than {100 * fail_above:.3g}%.")
    return SLOWER if failed else 0


def _compare_microbenchmarks(a: Path, b: Path, fail_above: float | None, shown_as: str) -> int:
    """Compares two microbenchmark results row by row, like ``_compare_runs``.

    Raises:
        CommprofError: a file is not a result, the results have no row in common, or there are too
            few samples for ``fail_above``.
    """
    if shown_as != "table":
        raise UsageError(
            f"--format {shown_as} is for run directories; results of microbench are JSON already"
        )
    second = read_sweep(b)
    comparison = compare_sweeps(read_sweep(a), second)
    unusable = list(_unusable(second, comparison.only_first))
    if fail_above is not None and not (comparison.can_tell or unusable):
        raise UsageError(
            f"--fail-above cannot judge these results. {'. '.join(comparison.remarks)}"
        )
    print(sweep_table.render_compared(comparison, table_width()), end="")
    if fail_above is None:
        return 0
    failed = comparison.slower_than(fail_above)
    rows = f"{counted(len(failed), 'row')} {'is' if len(failed) == 1 else 'are'}"
    print(f"Beyond noise, {rows} slower by more than {100 * fail_above:.3g}%.")
    for reason in unusable:
        print(f"B cannot pass: {reason}.")
    return 1 if failed or unusable else 0


def _unusable(second: SweepResult, lacking: int) -> Iterator[str]:
    """Yields the reasons why the second result fails, whatever its times are.

    ``lacking`` is the number of rows that only the first result has.
    """
    if lacking:
        yield f"it lacks {counted(lacking, 'row')} of A"
    for problem in second.problems:
        yield f"its measurement was cut short: {printable(problem)}"
    wrong = sum(row.wrong or 0 for row in second.rows)
    if wrong:
        yield f"{counted(wrong, 'element')} {'was' if wrong == 1 else 'were'} wrong"
