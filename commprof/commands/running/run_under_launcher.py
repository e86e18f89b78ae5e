"""``commprof run`` under torchrun, srun or mpirun: this process is one rank of a built-in workload.

Rank 0 checks the options, writes the job file, and prints the report. All ranks train the job.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commprof.commands.options.output_file import writable_file
from commprof.commands.options.terminal import prose_width
from commprof.commands.running.run_checks import checked_targets
from commprof.commands.running.run_context import run_context, save_changes, save_config
from commprof.commands.running.run_report import show_run
from commprof.errors import CommprofError, UsageError
from commprof.interrupts import ends_at_once
from commprof.launch.pinning import place_ranks
from commprof.launch.progress import PROGRESS_FILE
from commprof.launch.rendezvous import StartedRendezvous
from commprof.launch.run_files import save_context
from commprof.launch.run_output import chosen_directory, make_directory
from commprof.launch.target import WorkloadTarget
from commprof.launch.under_launcher import LaunchedRank, StoreMessage, await_file
from commprof.monitor.settings import settings_of
from commprof.text import printable
from commprof.trace.run.run_directory import world_directory
from commprof.workloads.strategies import listed_strategies

#: Pause before this process ends: torch's gloo threads may abort a process that ends right after
#: its last collective.
_EXIT_PAUSE_S = 0.02
#: Options that a single rank refuses. The value of such an option is None if it is not given.
_LAUNCHERS = ("nproc", "world_sizes", "nnodes", "node_rank", "watchdog")


def run_rank_of_launcher(args: argparse.Namespace, given: LaunchedRank) -> int:
    """Trains this rank's part of the job; returns the exit code.

    Raises:
        CommprofError: the ranks do not find each other, or do not see the same directory.
    """
    given.export()
    with ends_at_once():
        import torch.distributed  # noqa: F401  takes seconds, in which Ctrl-C ends the process
    word = StoreMessage(given)
    if given.rank == 0:
        return _lead(args, given, word)
    heard = word.hear()
    if "job" not in heard:
        return int(heard["exit_code"])
    _fill_in(args, given)
    checked_targets(args, [given.world_size])
    args.settings.leave_for_ranks()
    await_file(Path(heard["job"]), given)
    code, _ = _train(Path(heard["job"]))
    return code


def _lead(args: argparse.Namespace, given: LaunchedRank, word: StoreMessage) -> int:
    """Prepares the job as rank 0, trains, and reports; returns the exit code.

    ``word`` sends the other ranks the path of the job file. If the preparation fails, ``word``
    sends an exit code instead.
    """
    try:
        run = _prepared(args, given)
    except CommprofError as error:
        # Print first: when the other ranks end, the launcher ends this process too.
        print(f"commprof run: {printable(str(error))}", file=sys.stderr, flush=True)
        word.say(exit_code=error.exit_code)
        return error.exit_code
    message = f"{given.world_size} ranks of {given.launcher} record into {run.directory}"
    print(f"commprof: {message}", file=sys.stderr, flush=True)
    word.say(job=str(run.job))
    code, problem = _train(run.job)
    with suppress(OSError):
        (run.job.parent / PROGRESS_FILE).unlink()
    if problem:
        run.context["errors"][str(given.world_size)] = problem
        save_context(run.directory, run.context)
    show_run(run.directory, run.json_file, args, prose_width(), bool(code))
    return code


@dataclass(frozen=True)
class _Prepared:
    directory: Path
    job: Path
    context: dict[str, Any]
    json_file: Path | None


def _prepared(args: argparse.Namespace, given: LaunchedRank) -> _Prepared:
    _refuse(args, given)
    _fill_in(args, given)
    sizes = [given.world_size]
    checked_targets(args, sizes)
    args.settings.leave_for_ranks()
    target = _RankTarget(args, args.strategy or "ddp")
    rendezvous = StartedRendezvous(given.endpoint, given.hosts)
    description = target.check(sizes, rendezvous)
    directory = chosen_directory(args, target.name, rendezvous)
    # This check comes last, because it creates the file.
    json_file = writable_file(args.json)
    make_directory(directory, rendezvous)
    context = {
        **run_context(args, sizes),
        **target.settings(),
        "description": description,
        "launcher": given.launcher,
    }
    save_config(directory, args, sizes)
    save_changes(directory, args, context)
    save_context(directory, context)
    world = world_directory(directory.absolute(), given.world_size)
    return _Prepared(directory, target.save_job(given.world_size, world), context, json_file)


class _RankTarget(WorkloadTarget):
    """A workload whose ranks another launcher has started."""

    def save_job(self, world_size: int, directory: Path) -> Path:
        """Writes the job file, which each rank reads; raises CommprofError on failure."""
        path = directory / "job.json"
        self._job(world_size, directory).save(path)
        return path


def _refuse(args: argparse.Namespace, given: LaunchedRank) -> None:
    """Raises UsageError for a script, and for options that a single rank cannot carry out."""
    who = f"{given.launcher} has started {given.world_size} ranks"
    if args.script:
        raise UsageError(
            f"{args.script}: {who}, but commprof run starts a script's ranks itself. Record the "
            f"script with `{given.launcher} ... -m commprof.wrap {args.script}`, or start commprof "
            "run once on each machine, without the launcher"
        )
    found = {name: value for name in _LAUNCHERS if (value := getattr(args, name)) is not None}
    found |= {"max_restarts": args.max_restarts} if args.max_restarts else {}
    if args.rdzv_endpoint is not None and given.launcher == "torchrun":
        found["rdzv_endpoint"] = args.rdzv_endpoint
    found |= {"pin": args.pin} if args.pin in ("cores", "numa") else {}
    found |= {"threads_per_rank": "auto"} if args.threads_per_rank == "auto" else {}
    found |= {name: None for name in ("dry_run", "samples") if getattr(args, name)}
    found |= {"metrics": None} if settings_of(args).wanted else {}
    if found:
        given_text = ", ".join(
            f"--{name.replace('_', '-')}{'' if value is None else f' {value}'}"
            for name, value in found.items()
        )
        raise UsageError(
            f"{given_text} cannot be used: {who}, so commprof run does not start them; leave "
            f"{given_text} out, or start commprof run once on each machine, without the launcher"
        )
    if len(listed_strategies(args.strategy or "ddp")) > 1:
        raise UsageError(
            f"--strategy {args.strategy}: {who}, which train one strategy only; start the ranks "
            "once for each strategy, or start commprof run once on each machine, without the "
            "launcher"
        )


def _fill_in(args: argparse.Namespace, given: LaunchedRank) -> None:
    args.nnodes, args.node_rank = given.hosts, 0
    args.rdzv_endpoint = given.endpoint if given.hosts > 1 else None
    args.placement = place_ranks("none", args.threads_per_rank, [given.world_size], given.hosts)


def _train(job: Path) -> tuple[int, str]:
    """Trains this rank; returns its exit code, and its error as one line ("" if none).

    The error has already been printed.
    """
    from torch.distributed.elastic.multiprocessing.errors import record

    from commprof.launch.worker import run_rank

    try:
        record(run_rank)(str(job))
    except CommprofError as error:
        return error.exit_code, str(error)
    except Exception as error:
        return 1, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    time.sleep(_EXIT_PAUSE_S)
    return 0, ""
