"""``commprof run``: train a workload at several world sizes and report each."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from commprof.commands.output_file import writable_file
from commprof.commands.run_arguments import DESCRIPTION, add_arguments
from commprof.commands.run_worlds import (
    INTERRUPTED,
    places_of,
    run_world_sizes,
    save_context,
    subjects_of,
)
from commprof.commands.shown import read_shown
from commprof.compressors import parse
from commprof.errors import CommprofError, UsageError
from commprof.launch.meeting import Meeting
from commprof.live.thresholds import AUTO, parse_threshold
from commprof.trace.run_directory import RUN_FILE, STRATEGIES, world_directory
from commprof.trace.schema import MODES
from commprof.trials.plan import parse_trial
from commprof.watch.flames import parse_ranks
from commprof.watch.start import WatchOptions

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
        watch = _watch_options(args)
        _set_mode(args)
        from commprof.launch.elastic import stop_fork_server  # seconds: it loads torch

        if args.hook is not None:
            args.hook = parse(args.hook).label
        _check_trial(args, world_sizes)
        if args.stacks:
            os.environ["COMMPROF_STACKS"] = "1"  # the ranks inherit it
        subjects = subjects_of(args)
        descriptions = [subject.check(world_sizes, meeting) for subject in subjects]
        json_file = writable_file(args.json)
        directory = _output_directory(args, subjects[0].name, meeting)
        places = places_of(directory, subjects)
        contexts = [
            {
                **_context(args, world_sizes),
                **subject.settings(),
                "description": description,
            }
            for subject, description in zip(subjects, descriptions, strict=True)
        ]
        if len(subjects) > 1 and meeting.is_first:
            save_context(directory, {**contexts[0], STRATEGIES: [place.name for place in places]})
        code = 0
        try:
            for subject, place, context in zip(subjects, places, contexts, strict=True):
                failed = run_world_sizes(subject, meeting, place, world_sizes, context, watch)
                code = code or failed
                if failed == INTERRUPTED:
                    break
        finally:
            stop_fork_server()
        if not any(world_directory(p, n).exists() for p in places for n in world_sizes):
            return code
        if not meeting.is_first:
            print(f"Machine {meeting.node_rank} is done; machine 0 reports from {directory}")
            return code
        shown = read_shown(directory)
        (directory / "result.json").write_text(shown.json())
        if json_file is not None:
            json_file.write_text(shown.json())
        print(shown.text(shutil.get_terminal_size((100, 24)).columns))
        if json_file is not None:
            print(f"JSON: {json_file}")
        print(f"Run directory: {directory}\nShow it again: commprof report {directory}")
        if args.trial and not shown.has_trial:
            raise CommprofError(
                "no trial took place: the ranks made no DDP model, trained fewer steps than it "
                "waits for, or have a hook of their own; see what they printed"
            )
        return code


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


def _set_mode(args: argparse.Namespace) -> None:
    """Leaves the mode where the ranks find it, and refuses one that they would refuse."""
    from commprof.capture.mode import MODE_VARIABLE, mode_code, switch_signal

    if args.mode is not None:
        os.environ[MODE_VARIABLE] = args.mode
    mode_code(None)
    switch_signal()


def _watch_options(args: argparse.Namespace) -> WatchOptions | None:
    """What was asked of the watchdog, checked; None without one."""
    if args.watchdog is None and args.flamegraph is None:
        return None
    threshold = args.watchdog or AUTO
    parse_threshold(threshold)
    parse_ranks(args.flamegraph or "0")
    return WatchOptions(threshold, args.flamegraph or "")


def _out_of_range(nproc: int) -> NoReturn:
    raise UsageError(f"--nproc {nproc} is out of range (allowed: 1 or more)")


def _context(args: argparse.Namespace, world_sizes: list[int]) -> dict[str, Any]:
    import torch

    from commprof import _native
    from commprof.capture.metadata import machine

    return {
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "commprof.run", *sys.argv[1:]]),
        "commprof": version("commprof"),
        "torch": torch.__version__,
        "capture": "native" if _native.native is not None else "python",
        "backend": args.backend or "gloo",
        "threads_per_rank": args.threads,
        "world_sizes": world_sizes,
        "machine": machine(),
        "nodes": args.nnodes,
        "errors": {},
    }


def _output_directory(args: argparse.Namespace, subject_name: str, meeting: Meeting) -> Path:
    """The run directory, made and found writable; one that all machines see, if there are more."""
    directory: Path | None = args.output
    if directory is None and meeting.nodes > 1:
        raise UsageError("--nnodes needs --output DIR, the same directory on all machines")
    if directory is None:
        name = f"{datetime.now().strftime('%Y%m%d-%H%M%S')}-{subject_name}"
        directory = Path("commprof-runs") / name
    if not meeting.is_first:
        _await_first(directory)
        return directory
    try:
        if directory.is_dir() and any(directory.iterdir()):
            raise UsageError(
                f"--output {directory} is not empty; name a new directory, nothing is overwritten"
            )
        directory.mkdir(parents=True, exist_ok=True)
        (directory / RUN_FILE).touch()
    except OSError as error:
        raise UsageError(
            f"cannot write to --output {directory}: {error.strerror}; name another directory"
        ) from None
    return directory


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
