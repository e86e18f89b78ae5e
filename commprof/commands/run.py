"""``commprof run``: train a workload at several world sizes and report each."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from commprof.boot import SYNC_VARIABLE
from commprof.commands.dry_run import dry_run_text
from commprof.commands.output_file import writable_file
from commprof.commands.price import price_of, priced
from commprof.commands.run_arguments import DESCRIPTION, add_arguments
from commprof.commands.run_context import run_context, save_config
from commprof.commands.run_worlds import (
    INTERRUPTED,
    keep_text,
    places_of,
    run_world_sizes,
    save_context,
    subjects_of,
)
from commprof.commands.shown import read_shown
from commprof.commands.subject import Subject
from commprof.compressors import parse
from commprof.errors import CommprofError, UsageError
from commprof.launch.meeting import Meeting
from commprof.launch.placing import place_ranks
from commprof.report.plain_text import printable
from commprof.trace.ring import remove_orphans
from commprof.trace.run_directory import (
    CONFIG_FILE,
    RUN_FILE,
    STRATEGIES,
    strategy_directories,
    world_directory,
)
from commprof.trace.schema import MODES
from commprof.trials.plan import parse_trial

#: How long a machine waits for machine 0.
_PATIENCE_S = 900


class RunCommand:
    """See the module."""

    name = "run"
    help = "train at several world sizes and report each"

    description = DESCRIPTION

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        add_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Runs every world size in turn; reports what finished even if one failed."""
        meeting = Meeting(args.rdzv_endpoint, args.nnodes, args.node_rank)
        world_sizes = _world_sizes(args)
        args.placing = place_ranks(args.pin, args.threads_per_rank, world_sizes, args.nnodes)
        subjects = _subjects(args, world_sizes)
        descriptions = [subject.check(world_sizes, meeting) for subject in subjects]
        json_file = writable_file(args.json)
        directory = _chosen_directory(args, subjects[0].name, meeting)
        width = shutil.get_terminal_size((100, 24)).columns
        if args.dry_run:
            planned = (subjects, descriptions, world_sizes, meeting, directory, width)
            print(dry_run_text(args, *planned), end="")
            return 0
        remove_orphans()
        _make_directory(directory, meeting)
        places = places_of(directory, subjects)
        base = run_context(args, world_sizes)
        contexts = [
            {**base, "errors": {}, **subject.settings(), "description": description}
            for subject, description in zip(subjects, descriptions, strict=True)
        ]
        if meeting.is_first:
            save_config(directory, args, world_sizes)
            if len(subjects) > 1:
                names = [place.name for place in places]
                save_context(directory, {**contexts[0], STRATEGIES: names})
        code = 0
        try:
            for subject, place, context in zip(subjects, places, contexts, strict=True):
                failed = run_world_sizes(subject, meeting, place, world_sizes, context)
                code = code or failed
                if failed == INTERRUPTED:
                    break
        finally:
            _stop_fork_server()
        if not any(world_directory(p, n).exists() for p in places for n in world_sizes):
            return code
        if not meeting.is_first:
            print(f"Machine {meeting.node_rank} is done; machine 0 reports from {directory}")
            return code
        _report(directory, json_file, args, width)
        return code


def _subjects(args: argparse.Namespace, world_sizes: list[int]) -> list[Subject]:
    """What runs, after what the options say of all ranks was refused or left in the environment."""
    _set_mode(args)
    _check_restarts(args)
    if args.hook is not None:
        args.hook = parse(args.hook).label
    if price_of(args) is not None and args.trial is not None:
        raise UsageError("--price-per-hour and --trial exclude each other: candidates share steps")
    _check_trial(args, world_sizes)
    if args.stacks:
        os.environ["COMMPROF_STACKS"] = "1"  # the ranks inherit it
    if args.check_sync is not None:
        os.environ[SYNC_VARIABLE] = str(args.check_sync)
    return subjects_of(args)


def _stop_fork_server() -> None:
    from commprof.launch.elastic import stop_fork_server  # seconds: it loads torch

    stop_fork_server()


def _report(directory: Path, json_file: Path | None, args: argparse.Namespace, width: int) -> None:
    """Shows the run, and leaves the result in its directory."""
    try:
        shown = read_shown(directory)
    except CommprofError as error:
        if not args.script:
            raise
        # The script went well, or failed, by itself: its exit code stands.
        print(f"commprof: no report: {printable(str(error))}", file=sys.stderr)
        return
    text, price, paid = shown.text(width), price_of(args), None
    if price is not None:
        strategies = strategy_directories(directory)
        for place in strategies or [directory]:
            cost, section = priced(place, price, width)
            text += f"\n{f'{place.name}: ' if strategies else ''}{section}\n"
            paid = None if strategies else cost
    keep_text(directory / "result.json", shown.json(paid))
    print(text)
    if json_file is not None:
        keep_text(json_file, shown.json(paid))
        print(f"JSON: {json_file}")
    print(f"Run directory: {directory}\nShow it again: commprof report {directory}")
    print(f"Run it again: python -m commprof.run --config {directory / CONFIG_FILE}")
    if args.trial and not shown.has_trial:
        raise CommprofError(
            "no trial took place: the ranks made no DDP model, trained fewer steps than it "
            "waits for, or have a hook of their own; see what they printed"
        )


def _check_trial(args: argparse.Namespace, world_sizes: list[int]) -> None:
    """Puts the trial into its standard form, or refuses it."""
    if args.trial is None:
        return
    args.trial = parse_trial(args.trial).text
    if args.hook is not None:
        raise UsageError("--hook and --trial exclude each other; name the hook in --trial")
    if args.strategy not in (None, "ddp"):
        raise UsageError(f"--trial compares DDP's hooks, not --strategy {args.strategy}; leave one")
    if len(world_sizes) > 1 or world_sizes[0] < 2:
        raise UsageError(
            f"--trial compares at one world size of 2 ranks or more, not at {world_sizes}; give "
            "--nproc N"
        )
    from commprof.capture.mode import mode_code

    mode = MODES[mode_code(None)]
    if mode != "full":
        raise UsageError(
            f"--trial needs every record, which mode {mode} does not keep (needed: full)"
        )


def _world_sizes(args: argparse.Namespace) -> list[int]:
    if args.world_sizes is not None:
        try:
            sizes = sorted({int(word) for word in args.world_sizes.split(",")})
        except ValueError:
            raise UsageError(
                f"--world-sizes {args.world_sizes!r} is not a list of whole numbers such as 1,2,4"
            ) from None
        if args.nproc is not None and args.nproc * args.nnodes < max(sizes):
            raise UsageError(
                f"--world-sizes asks for {max(sizes)} ranks but --nproc for {args.nproc}; "
                "leave --nproc out"
            )
    else:
        nproc = len(os.sched_getaffinity(0)) if args.nproc is None else args.nproc
        if args.script or args.trial:
            return [nproc * args.nnodes] if nproc >= 1 else _out_of_range(nproc)
        sizes = [2**power for power in range(max(nproc, 1).bit_length()) if 2**power <= nproc]
        sizes = sizes if nproc in sizes or nproc < 1 else [*sizes, nproc]
        if nproc < 1:
            _out_of_range(nproc)
        sizes = [size * args.nnodes for size in sizes]
    if min(sizes) < 1:
        raise UsageError(f"world size {min(sizes)} is out of range (allowed: 1 or more)")
    return sizes


def _check_restarts(args: argparse.Namespace) -> None:
    if args.max_restarts < 0:
        raise UsageError(f"--max-restarts {args.max_restarts} is out of range (allowed: 0 or more)")
    if args.max_restarts and args.nnodes > 1:
        raise UsageError(
            "--max-restarts starts the ranks of one machine again; on several, take torchrun "
            "--max-restarts with `commprof env`"
        )
    if args.check_sync is not None and args.check_sync < 1:
        raise UsageError(f"--check-sync {args.check_sync} is out of range (allowed: 1 or more)")


def _set_mode(args: argparse.Namespace) -> None:
    """Leaves the mode where the ranks find it, and refuses one that they would refuse."""
    from commprof.capture.mode import MODE_VARIABLE, mode_code, switch_signal

    if args.mode is not None:
        os.environ[MODE_VARIABLE] = args.mode
    mode_code(None)
    switch_signal()


def _out_of_range(nproc: int) -> NoReturn:
    raise UsageError(f"--nproc {nproc} is out of range (allowed: 1 or more)")


def _chosen_directory(args: argparse.Namespace, subject_name: str, meeting: Meeting) -> Path:
    """The run directory, not made yet; one that all machines see, if there are more."""
    directory: Path | None = args.output
    if directory is None and meeting.nodes > 1:
        raise UsageError("--nnodes needs --output DIR, the same directory on all machines")
    if directory is None:
        name = f"{datetime.now().strftime('%Y%m%d-%H%M%S')}-{subject_name}"
        directory = Path("commprof-runs") / name
    try:
        occupied = meeting.is_first and directory.is_dir() and any(directory.iterdir())
    except OSError as error:
        raise _unwritable(directory, error) from None
    if occupied:
        raise UsageError(
            f"--output {directory} is not empty; name a new directory, nothing is overwritten"
        )
    return directory


def _make_directory(directory: Path, meeting: Meeting) -> None:
    """On the first machine, and found writable; the others wait for it."""
    if not meeting.is_first:
        _await_first(directory)
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / RUN_FILE).touch(exist_ok=False)
    except OSError as error:
        if isinstance(error, FileExistsError) and directory.is_dir():
            raise UsageError(
                f"--output {directory} was taken by another run just now; name a new directory"
            ) from None
        raise _unwritable(directory, error) from None


def _unwritable(directory: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot write to --output {directory}: {error.strerror}; name another directory"
    )


def _await_first(directory: Path) -> None:
    """Returns once machine 0 has made the run directory, which shows that both see the same."""
    begin, told = time.monotonic(), False
    while not (directory / RUN_FILE).exists():
        waited_s = time.monotonic() - begin
        if waited_s > _PATIENCE_S:
            raise CommprofError(
                f"machine 0 did not make {directory} within {_PATIENCE_S} s: start it with the "
                "same --output, on a file system that all machines share"
            )
        if waited_s > 5 and not told:
            print(f"commprof: waiting for machine 0 to make {directory}", file=sys.stderr)
            told = True
        time.sleep(0.1)
