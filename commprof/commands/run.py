"""``commprof run``: train a workload or script at several world sizes and report each."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from commprof import invocation, variables
from commprof.commands.options.output_file import writable_file
from commprof.commands.options.parser import Parser
from commprof.commands.options.terminal import prose_width
from commprof.commands.running.dry_run import dry_run_text
from commprof.commands.running.run_arguments import (
    COMMON,
    SHORT_DESCRIPTION,
    add_arguments,
    description,
)
from commprof.commands.running.run_checks import (
    check_samples,
    checked_targets,
    watch_threshold_of,
    world_sizes_of,
)
from commprof.commands.running.run_context import run_context, save_changes, save_config
from commprof.commands.running.run_report import show_run
from commprof.commands.running.run_under_launcher import run_rank_of_launcher
from commprof.errors import UsageError
from commprof.launch.pinning import place_ranks
from commprof.launch.rendezvous import Rendezvous
from commprof.launch.run_files import save_context
from commprof.launch.run_output import chosen_directory, make_directory
from commprof.launch.run_worlds import (
    INTERRUPTED,
    places_of,
    run_world_sizes,
)
from commprof.launch.under_launcher import given_rank, number_of, slurm_tasks_and_hosts
from commprof.monitor.settings import Settings, settings_of
from commprof.monitor.start import check_settings, start_monitor
from commprof.monitor.watchdog.start import watched
from commprof.trace.ring import remove_orphans
from commprof.trace.run.run_directory import STRATEGIES, world_directory
from commprof.workloads.options import check_ranks


class RunCommand:
    """The command ``commprof run``."""

    @property
    def description(self) -> str:
        """Text of the command's own --help-all."""
        return description()

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        add_arguments(parser)
        if isinstance(parser, Parser):
            parser.shorten_help(invocation.examples(SHORT_DESCRIPTION), COMMON)

    def run(self, args: argparse.Namespace) -> int:
        """Trains at each world size and reports the results; returns the exit code.

        If a launcher such as torchrun started this process as one rank, only this rank runs.
        """
        given = given_rank(os.environ, args.nnodes, args.rdzv_endpoint)
        if given is not None:
            return run_rank_of_launcher(args, given)
        rendezvous = rendezvous_of(args)
        world_sizes = world_sizes_of(args)
        args.placement = place_ranks(args.pin, args.threads_per_rank, world_sizes, args.nnodes)
        metrics = settings_of(args)
        check_settings(metrics)
        check_samples(args)
        beside = partial(watched, threshold=watch_threshold_of(args), samples=bool(args.samples))
        targets = checked_targets(args, world_sizes)
        # On several machines, each target (script, or strategy of a workload) has ports of its own.
        turns = [rendezvous.turn(index * len(world_sizes)) for index in range(len(targets))]
        descriptions = [
            target.check(world_sizes, there) for target, there in zip(targets, turns, strict=True)
        ]
        directory = chosen_directory(args, targets[0].name, rendezvous)
        width = prose_width()
        if args.dry_run:
            planned = (targets, descriptions, world_sizes, rendezvous, directory, width)
            print(dry_run_text(args, *planned), end="")
            return 0
        check_ranks(max(world_sizes) // rendezvous.nodes)
        # Only machine 0 creates this file. If another machine created the file in the run
        # directory, machine 0 might refuse the directory because it is not empty.
        json_file = writable_file(args.json if rendezvous.is_first else None)
        args.settings.leave_for_ranks()
        remove_orphans()
        make_directory(directory, rendezvous)
        places = places_of(directory, targets)
        _monitor(directory, metrics)
        base = run_context(args, world_sizes)
        contexts = [
            {**base, "errors": {}, **target.settings(), "description": description}
            for target, description in zip(targets, descriptions, strict=True)
        ]
        if rendezvous.is_first:
            save_config(directory, args, world_sizes)
            save_changes(directory, args, base)
            if len(targets) > 1:
                names = [place.name for place in places]
                save_context(directory, {**contexts[0], STRATEGIES: names})
        code = 0
        try:
            runs = zip(targets, turns, places, contexts, strict=True)
            for target, there, place, context in runs:
                failed = run_world_sizes(target, there, place, world_sizes, context, beside)
                code = code or failed
                if failed == INTERRUPTED:
                    break
        finally:
            _stop_fork_server()
        if not any(world_directory(p, n).exists() for p in places for n in world_sizes):
            return code
        if not rendezvous.is_first:
            print(
                f"Machine {rendezvous.node_rank} is done; machine 0 prints the report of "
                f"{invocation.quoted(directory)}"
            )
            return code
        show_run(directory, json_file, args, width, bool(code))
        return code


def _stop_fork_server() -> None:
    elastic = sys.modules.get("commprof.launch.elastic")
    if elastic is not None:
        elastic.stop_fork_server()


def _monitor(directory: Path, metrics: Settings) -> None:
    """Starts the live monitor. If this fails, prints the problem and lets the job run."""
    if metrics.wanted:
        os.environ.pop(variables.METRICS, None)  # otherwise rank 0 would start a second monitor
        problem = start_monitor(directory, metrics)
        print(
            f"commprof: {problem}"
            if problem
            else f"Live: {invocation.command('top', invocation.quoted(directory))}",
            file=sys.stderr,
        )


def rendezvous_of(args: argparse.Namespace) -> Rendezvous:
    """Returns the rendezvous of all machines; fills in ``args.nnodes`` and ``args.node_rank``.

    Raises:
        UsageError: each of several Slurm tasks would start all ranks, or this machine's index does
            not fit the number of machines.
    """
    nodes, number = 1, 0
    if args.nnodes is None or args.node_rank is None:
        nodes, number = _of_slurm(os.environ, args.nnodes, args.rdzv_endpoint)
    if args.nnodes is None:
        args.nnodes = nodes
    if args.node_rank is None:
        args.node_rank = number if args.nnodes == nodes else 0
    return Rendezvous(args.rdzv_endpoint, args.nnodes, args.node_rank)


def _of_slurm(
    variables: Mapping[str, str], given: int | None, endpoint: str | None
) -> tuple[int, int]:
    """Returns the number of machines and this machine's index, from Slurm's variables.

    Returns 1 and 0 unless srun started one task per machine.

    Args:
        variables: the environment.
        given: --nnodes; None if not given.
        endpoint: --rdzv-endpoint; None if not given.

    Raises:
        UsageError: each of several tasks would start all ranks.
    """
    tasks, nodes = slurm_tasks_and_hosts(variables)
    if "SLURM_STEP_ID" not in variables or "SLURM_NODEID" not in variables or tasks < 2:
        return 1, 0  # a batch script runs once, even if the job has several tasks
    if tasks == nodes and (endpoint is not None or given is not None):
        return nodes, number_of(variables, "SLURM_NODEID")
    if given is not None:
        return 1, 0
    raise UsageError(
        f"srun started this process as one of {tasks} tasks on {nodes} machines, and each task "
        "would start all ranks by itself. Start one task per machine with srun "
        "--ntasks-per-node=1, and give --rdzv-endpoint HOST:PORT, an address of the first machine: "
        "each task then starts the ranks of its machine. Or start several tasks per machine: each "
        "task then becomes one rank"
    )
