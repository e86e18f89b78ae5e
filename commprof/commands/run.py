"""``commprof run``: train a workload at several world sizes and report each."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from commprof.analysis.run import analyse_run
from commprof.commands.output_file import writable_file
from commprof.commands.run_arguments import DESCRIPTION, add_arguments
from commprof.commands.subject import ScriptSubject, Subject, WorkloadSubject
from commprof.compressors import parse
from commprof.errors import CommprofError, RankFailedError, UsageError
from commprof.report import as_json, table, trial_table
from commprof.report.plain_text import printable
from commprof.trace.run_directory import RUN_FILE, world_directory
from commprof.trace.schema import MODES
from commprof.trials.analyse import analyse_trial
from commprof.trials.plan import parse_trial


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
        _check_trial(args, world_sizes)
        if args.stacks:
            os.environ["COMMPROF_STACKS"] = "1"  # the ranks inherit it
        subject: Subject = ScriptSubject(args) if args.script else WorkloadSubject(args)
        description = subject.check(world_sizes, args.rdzv_endpoint)
        json_file = writable_file(args.json)
        directory = _output_directory(args, subject.name)
        context = {
            **_context(args, world_sizes),
            **subject.settings(),
            "description": description,
        }
        _save_context(directory, context)
        code = 0
        try:
            for size in world_sizes:
                failed = _run_world(subject, args.rdzv_endpoint, directory, size, context)
                code = code or failed
                if failed:
                    break
        finally:
            stop_fork_server()
        if not any(world_directory(directory, size).exists() for size in world_sizes):
            return code
        result = analyse_run(directory)
        trial = analyse_trial(directory) if args.trial else None
        text = as_json.render(result, trial=trial)
        (directory / "result.json").write_text(text)
        if json_file is not None:
            json_file.write_text(text)
        width = shutil.get_terminal_size((100, 24)).columns
        if trial is None:
            print(table.render(result, width))
        else:
            print(trial_table.render(trial, description, width))
        if json_file is not None:
            print(f"JSON: {json_file}")
        print(f"Run directory: {directory}\nShow it again: commprof report {directory}")
        if args.trial and trial is None:
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
        if args.nproc is not None and args.nproc < max(sizes):
            raise UsageError(
                f"--world-sizes asks for {max(sizes)} ranks but --nproc for {args.nproc}; "
                "leave --nproc out"
            )
    else:
        nproc = len(os.sched_getaffinity(0)) if args.nproc is None else args.nproc
        if args.script or args.trial:
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


def _run_world(
    subject: Subject,
    endpoint: str | None,
    directory: Path,
    world_size: int,
    context: dict[str, Any],
) -> int:
    """Runs one world size; returns its exit code and notes a failure in ``run.json``."""
    from commprof.trace.salvage import salvage

    world = world_directory(directory, world_size)
    name = f"{world_size} {'rank' if world_size == 1 else 'ranks'}"
    code = 0
    try:
        subject.launch(world_size, world, endpoint)
    except CommprofError as error:
        context["errors"][str(world_size)] = str(error)
        print(f"commprof: {name}: {printable(str(error))}", file=sys.stderr)
        code = error.exit_code
        if isinstance(error, RankFailedError):
            code = subject.exit_code(error)
    except KeyboardInterrupt:
        context["errors"][str(world_size)] = "interrupted"
        print(f"commprof: {name}: interrupted", file=sys.stderr)
        code = 130
    for trace in sorted(world.glob("*.trace")):
        try:
            salvage(trace)
        except (OSError, CommprofError) as error:
            print(f"commprof: {error}", file=sys.stderr)
    _save_context(directory, context)
    return code


def _save_context(directory: Path, context: dict[str, Any]) -> None:
    (directory / RUN_FILE).write_text(json.dumps(context, indent=1) + "\n")


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
