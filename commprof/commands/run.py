"""``commprof run``: train a workload at several world sizes and report each."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

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
from commprof.errors import UsageError
from commprof.trace.run_directory import RUN_FILE, STRATEGIES, world_directory


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
        world_sizes = _world_sizes(args)
        _set_mode(args)
        from commprof.launch.elastic import stop_fork_server  # seconds: it loads torch

        if args.hook is not None:
            args.hook = parse(args.hook).label
        if args.stacks:
            os.environ["COMMPROF_STACKS"] = "1"  # the ranks inherit it
        subjects = subjects_of(args)
        descriptions = [subject.check(world_sizes, args.rdzv_endpoint) for subject in subjects]
        json_file = _writable_file(args.json)
        directory = _output_directory(args, subjects[0].name)
        places = places_of(directory, subjects)
        contexts = [
            {
                **_context(args, world_sizes),
                **subject.settings(),
                "description": description,
            }
            for subject, description in zip(subjects, descriptions, strict=True)
        ]
        if len(subjects) > 1:
            save_context(directory, {**contexts[0], STRATEGIES: [place.name for place in places]})
        code = 0
        try:
            for subject, place, context in zip(subjects, places, contexts, strict=True):
                failed = run_world_sizes(subject, args.rdzv_endpoint, place, world_sizes, context)
                code = code or failed
                if failed == INTERRUPTED:
                    break
        finally:
            stop_fork_server()
        if not any(world_directory(p, n).exists() for p in places for n in world_sizes):
            return code
        shown = read_shown(directory)
        (directory / "result.json").write_text(shown.json())
        if json_file is not None:
            json_file.write_text(shown.json())
        print(shown.text(shutil.get_terminal_size((100, 24)).columns))
        if json_file is not None:
            print(f"JSON: {json_file}")
        print(f"Run directory: {directory}\nShow it again: commprof report {directory}")
        return code


def _world_sizes(args: argparse.Namespace) -> list[int]:
    if args.world_sizes is not None:
        try:
            sizes = sorted({int(word) for word in args.world_sizes.split(",")})
        except ValueError:
            raise UsageError(
                f"--world-sizes {args.world_sizes!r} is not a list of whole numbers such as 1,2,4"
            ) from None
        if args.nproc is not None and args.nproc < max(sizes):
            raise UsageError(
                f"--world-sizes asks for {max(sizes)} ranks but --nproc for {args.nproc}; "
                "leave --nproc out"
            )
    else:
        nproc = len(os.sched_getaffinity(0)) if args.nproc is None else args.nproc
        if args.script:
            return [nproc] if nproc >= 1 else _out_of_range(nproc)
        sizes = [2**power for power in range(max(nproc, 1).bit_length()) if 2**power <= nproc]
        sizes = sizes if nproc in sizes or nproc < 1 else [*sizes, nproc]
        if nproc < 1:
            _out_of_range(nproc)
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
        "errors": {},
    }


def _output_directory(args: argparse.Namespace, subject_name: str) -> Path:
    """The run directory, made and found writable."""
    directory: Path | None = args.output
    if directory is None:
        name = f"{datetime.now().strftime('%Y%m%d-%H%M%S')}-{subject_name}"
        directory = Path("commprof-runs") / name
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


def _writable_file(path: Path | None) -> Path | None:
    """Fails before the run, not after it."""
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a"):
                pass
        except OSError as error:
            raise UsageError(
                f"cannot write --json {path}: {error.strerror}; name another file"
            ) from None
    return path
