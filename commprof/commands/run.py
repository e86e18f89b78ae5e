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
from commprof.commands.subject import ScriptSubject, Subject, WorkloadSubject
from commprof.compressors import parse
from commprof.compressors.schemes import help_text
from commprof.errors import CommprofError, RankFailedError, UsageError
from commprof.report import as_json, table
from commprof.report.plain_text import printable
from commprof.trace.run_directory import RUN_FILE, world_directory
from commprof.trace.schema import MODES

_DESCRIPTION = (
    """\
Trains a workload under DistributedDataParallel at several world sizes, records every
collective in every rank, and reports throughput, scaling, and where each step went.

  python -m commprof.run --nproc 8                     1, 2, 4 and 8 ranks, transformer
  python -m commprof.run --nproc 4 --scaling strong    the global batch stays the same
  python -m commprof.run --nproc 2 --workload timed:backward_ms=10,gradient_mb=25
                                                       sleeps of known length: try the tool
  python -m commprof.run --world-sizes 2 --steps 50 --json result.json
  python -m commprof.run --nproc 4 train.py --lr 0.1   your own script, unchanged, on 4 ranks

Workloads, as NAME or NAME:key=value,key=value; "/" separates values per layer:
  transformer   vocab=2048,d_model=256,heads=4,layers=2,feedforward=512,sequence=128,
                samples=320,learning_rate=0.0005
  timed         layers=4,data_ms=2,forward_ms=2,backward_ms=4,gradient_mb=1,optimizer_ms=0,
                bucket_cap_mb=0,late_rank=-1,late_ms=0,late_phase=backward,late_every=1

Gradient compressors, as --hook NAME or --hook NAME:option=value,option=value:
"""
    + help_text()
    + """
  python -m commprof.run --nproc 2 --hook int8                the transformer, int8 gradients
  python -m commprof.run --nproc 2 --hook topk:ratio=0.001 train.py      the same for a script
Options of all but none: feedback=0|1, start_step=N, checksum=0|1; of all: measure_every=N. See
docs/compressors.md.
"""
)


class RunCommand:
    """See the module."""

    name = "run"
    help = "train at several world sizes and report each"

    description = _DESCRIPTION

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        _add_what(parser)
        _add_where(parser)
        parser.add_argument(
            "-m", dest="module", action="store_true", help="SCRIPT is a module, as for python -m"
        )
        parser.add_argument(
            "script", nargs="?", metavar="SCRIPT", help="a training script instead of a workload"
        )
        parser.add_argument(
            "script_args",
            nargs=argparse.REMAINDER,
            metavar="ARGS",
            help="the script's own arguments",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Runs every world size in turn; reports what finished even if one failed."""
        world_sizes = _world_sizes(args)
        _set_mode(args)
        from commprof.launch.elastic import stop_fork_server  # seconds: it loads torch

        if args.hook is not None:
            args.hook = parse(args.hook).label
        if args.stacks:
            os.environ["COMMPROF_STACKS"] = "1"  # the ranks inherit it
        subject: Subject = ScriptSubject(args) if args.script else WorkloadSubject(args)
        description = subject.check(world_sizes, args.rdzv_endpoint)
        json_file = _writable_file(args.json)
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
        text = as_json.render(result)
        (directory / "result.json").write_text(text)
        if json_file is not None:
            json_file.write_text(text)
        width = shutil.get_terminal_size((100, 24)).columns
        print(table.render(result, width))
        if json_file is not None:
            print(f"JSON: {json_file}")
        print(f"Run directory: {directory}\nShow it again: commprof report {directory}")
        return code


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nproc",
        type=int,
        metavar="N",
        help="largest number of ranks; runs 1, 2, 4, ... up to N, a script just N "
        "(default: usable cores)",
    )
    parser.add_argument(
        "--world-sizes", metavar="A,B,...", help="exactly these world sizes instead"
    )
    parser.add_argument("--workload", help="see above (default: transformer)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps to train per world size")
    parser.add_argument(
        "--epochs",
        type=int,
        metavar="N",
        help="epochs instead of steps (default: 2 epochs, but at least 12 steps)",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help="samples per rank (weak scaling) or over all ranks (strong); default: the workload's",
    )
    parser.add_argument(
        "--scaling",
        choices=("weak", "strong"),
        help="weak: the batch per rank stays; strong: the global batch stays (default: weak)",
    )
    parser.add_argument(
        "--hook",
        metavar="NAME[:OPTION=VALUE,...]",
        help="compress DDP's gradients, see above (default: DDP's own mean all-reduce)",
    )
    parser.add_argument(
        "--backend", help="gloo, nccl or mpi, where this torch has it (default: gloo)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="intra-op threads per rank, the same at every world size (default: 1)",
    )
    parser.add_argument("--seed", type=int, help="of data and weights (default: 0)")
    parser.add_argument(
        "--overhead-steps",
        type=int,
        metavar="N",
        help="more steps, with capture off and on in turn, to measure commprof itself "
        "(default: 8; 0 = none)",
    )


def _add_where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="run directory, new or empty (default: commprof-runs/DATE-WORKLOAD)",
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        help="what to keep: every record (full), histograms of bounded size (always-on), or "
        "nothing until it is switched on (off); default: COMMPROF_MODE, or full",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there as well")
    parser.add_argument(
        "--rdzv-endpoint",
        metavar="HOST:PORT",
        help="where the ranks meet (default: a free port of localhost)",
    )
    parser.add_argument(
        "--stacks", action="store_true", help="record which line issued each collective as well"
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
