"""``commprof check``: test if ranks, hosts and network are fit for training."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from commprof.analysis.checks.outcome import FAIL, STATUSES, WARN, Outcome
from commprof.errors import RankFailedError, UsageError
from commprof.interrupts import ends_at_once
from commprof.launch.pinning import omp_threads
from commprof.launch.topology import this_host
from commprof.launch.under_launcher import adopt_rank, is_rank, rank_and_world_size
from commprof.text import counted, printable, wrapped
from commprof.workloads.options import check_ranks


class CheckCommand:
    """The command ``commprof check``."""

    description = """\
Tests in some seconds what distributed training needs: a ring of messages, latency and bandwidth
between pairs of ranks, sums over all ranks, gradients in sync after steps of DDP, the trend of a
loss, clocks, cores, open files, /dev/shm, network interfaces, and other load on the hosts. Each
check prints pass, warn, fail or skip, what it found, and, for warn and fail, what to do.

  commprof check --nproc 4                                    4 ranks on this machine
  torchrun --nproc-per-node 4 -m commprof check               as ranks of a job, on all its hosts
  srun -n 4 commprof check; mpirun -n 4 commprof check        the same

Exit code: 1 if a check fails, else 0. The ranks communicate over gloo. See docs/your_job.md.
"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds ``--nproc``."""
        parser.add_argument(
            "--nproc",
            type=int,
            metavar="N",
            help="number of ranks to start on this machine (default: number of usable cores); not "
            "allowed if a launcher such as torchrun started this process as a rank",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Runs the checks and prints their outcomes; returns 1 if a check fails."""
        adopt_rank(args.nproc is not None)
        if args.nproc is not None and is_rank(os.environ):
            raise UsageError(
                "leave --nproc out: a launcher already started this process as a rank (RANK is set)"
            )
        if (launched := rank_and_world_size(os.environ)) is not None:
            outcomes, ranks = _as_rank(), launched[1]
        else:
            ranks = this_host().usable_cores if args.nproc is None else args.nproc
            if ranks < 1:
                raise UsageError(f"--nproc {ranks} is out of range (allowed: 1 or more)")
            check_ranks(ranks)
            outcomes = _launched(ranks)
        if os.environ.get("RANK", "0") == "0":
            print(render(outcomes, ranks, shutil.get_terminal_size((100, 24)).columns), end="")
        return 1 if any(outcome.status == FAIL for outcome in outcomes) else 0


def _as_rank() -> tuple[Outcome, ...]:
    from commprof.checks.run import run_checks  # takes seconds, because it loads torch

    return run_checks()


def _launched(ranks: int) -> tuple[Outcome, ...]:
    with ends_at_once():
        from commprof.checks.run import read_outcomes, run_rank
        from commprof.launch.elastic import TRAINING_IMPORTS, launch_function, stop_fork_server

    directory = Path(tempfile.mkdtemp(prefix="commprof-check-"))
    result, kept = directory / "outcomes.json", False
    try:
        launch_function(
            run_rank,
            [str(result)],
            ranks,
            directory / "logs",
            threads_per_rank=omp_threads(os.environ.get("OMP_NUM_THREADS")) or 1,
            imports=("commprof.checks.run", *TRAINING_IMPORTS),
        )
        return read_outcomes(result)
    except RankFailedError:
        kept = True  # the directory stays, because the error message names a log in it
        raise
    finally:
        stop_fork_server()
        if not kept:
            shutil.rmtree(directory, ignore_errors=True)


def render(outcomes: Sequence[Outcome], ranks: int, width: int) -> str:
    """Renders each check as a line with details and advice, and ends with a summary."""
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
    lines.append(f"{counted(ranks, 'rank')}: {', '.join(counts)}")
    return "\n".join(lines) + "\n"
