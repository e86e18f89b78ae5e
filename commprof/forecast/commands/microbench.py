"""``commprof microbench``: measure collectives without a training job."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from commprof import satellites
from commprof.analysis.sweeps.sweep_file import read_sweep, write_sweep
from commprof.commands.options.output_file import writable_file
from commprof.errors import CommprofError, UsageError
from commprof.forecast.microbench.operations import (
    DTYPES,
    HOOK_PREFIX,
    OPERATIONS,
    REDOPS,
    dtype_name,
)
from commprof.forecast.microbench.plan import SYNCS, BenchPlan, check_memory, ladder, parse_size
from commprof.interrupts import ends_at_once
from commprof.invocation import quoted
from commprof.launch.topology import this_host
from commprof.launch.under_launcher import adopt_rank, rank_and_world_size
from commprof.report.comparison import sweep_table
from commprof.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

DESCRIPTION = f"""\
Measures collectives alone, without a training job: latency and bandwidth by message size, in the
terms of nccl-tests, on gloo, NCCL, MPI, or commprof's own backend, with the data verified.

  commprof microbench all_reduce --nproc 2              8 bytes to 128 MB, gloo
  commprof microbench all_reduce all_gather --nproc 2,4,8 -b 1K -e 64M -f 4
  commprof microbench all_reduce --nproc 2 --backend commprof --json shm.json
  commprof microbench --hook fp16 --hook topk:ratio=0.01 --nproc 2 -b 1M -e 64M
  commprof microbench all_reduce --nproc 2 --overlap    share of time hidden by compute
  torchrun --nproc-per-node 4 -m commprof.microbench all_reduce   on the ranks of torchrun
  commprof compare A.json B.json                                  compare two results

Operations: {", ".join(OPERATIONS)}.
Sizes: K, M and G are powers of 1024, as in nccl-tests; bandwidths are in GB/s of 1e9 bytes.
See docs/microbench.md.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds all arguments of ``commprof microbench``."""
    parser.add_argument("ops", nargs="*", metavar="OP", help="operations, see above")
    parser.add_argument(
        "--hook",
        action="append",
        default=[],
        metavar="NAME[:OPTION=VALUE,...]",
        help="measure one DDP bucket with this gradient compressor, from the gradient to its mean "
        "over the ranks; may be repeated (see docs/compressors.md)",
    )
    parser.add_argument(
        "--nproc",
        metavar="N[,N...]",
        help="number of ranks; a list such as 2,4 measures groups of the first 2 and 4 ranks in "
        "one run (default: number of usable CPUs; under torchrun, mpirun or srun, all ranks)",
    )
    _add_sizes(parser)
    _add_measuring(parser)
    parser.add_argument(
        "--backend",
        default="gloo",
        help="gloo or commprof; nccl or mpi if this build of torch has it (default: gloo)",
    )
    parser.add_argument(
        "--overlap",
        action="store_true",
        help="run each operation during compute of equal length, and print the share of its time "
        "that the compute hides",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the rows to FILE, with all samples (with --overlap, only medians)",
    )


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-b", "--minbytes", default="8", metavar="SIZE", help="default: 8")
    parser.add_argument("-e", "--maxbytes", default="128M", metavar="SIZE", help="default: 128M")
    parser.add_argument(
        "-f", "--stepfactor", type=int, metavar="N", help="factor between sizes (default: 2)"
    )
    parser.add_argument(
        "-i", "--stepbytes", metavar="SIZE", help="difference between sizes; use either -i or -f"
    )
    parser.add_argument(
        "-d", "--datatype", default="float", help=f"{', '.join(DTYPES)} (default: float)"
    )
    parser.add_argument(
        "-o", "--op", default="sum", dest="redop", help=f"{', '.join(REDOPS)} (default: sum)"
    )


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--iters",
        type=int,
        metavar="N",
        help="samples per row (default: 20 to 400, as many as fit into 0.2 s)",
    )
    parser.add_argument(
        "-w",
        "--warmup_iters",
        type=int,
        metavar="N",
        help="warm-up calls for each row in each round; a round is a pass over all sizes "
        "(default: 1 to 5, as many as fit into 5 ms)",
    )
    parser.add_argument(
        "-c",
        "--check",
        type=int,
        default=1,
        metavar="N",
        help="calls per row whose data are verified; at most one per row of --hook (default: 1; "
        "0 = none)",
    )
    parser.add_argument(
        "--sync",
        choices=SYNCS,
        default="barrier",
        help="barrier: a barrier of the measured group before each sample; none: no barrier "
        "(default: barrier)",
    )


#: Pause before exit: torch 2.13's gloo threads may abort a process that ends right after its last
#: collective.
_EXIT_PAUSE_S = 0.02


class MicrobenchCommand:
    """The command ``commprof microbench``."""

    description = DESCRIPTION

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        add_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Measures and prints the rows; returns the exit code."""
        adopt_rank()
        if (launched := rank_and_world_size(os.environ)) is not None:
            return _run_as_rank(args, *launched)
        plan = make_plan(args, None)
        _check_backend(plan.backend, max(plan.world_sizes))
        if plan.backend == "mpi":
            raise UsageError(
                "the backend 'mpi' needs ranks that mpirun starts (mpirun -n N commprof microbench "
                "...); use 'gloo' to have commprof start the ranks"
            )
        check_memory(plan)
        json_file = writable_file(args.json)  # after all checks: a refused command leaves no file
        directory = Path(tempfile.mkdtemp(prefix="commprof-microbench-"))
        plan = dataclasses.replace(plan, result_path=str(directory / "result.json"))
        code = show_measured(lambda: _launch(plan, directory), plan, json_file)
        if not code:
            shutil.rmtree(directory)  # kept after a failure, because the error names a log in it
        return code


def make_plan(args: argparse.Namespace, launched_ranks: int | None) -> BenchPlan:
    """Returns the plan that the arguments describe, without a result path.

    ``launched_ranks`` is the number of ranks that another launcher started; None without a
    launcher.

    Raises UsageError for a plan that cannot be measured.
    """
    step = None if args.stepbytes is None else parse_size(args.stepbytes, "-i")
    sizes = ladder(
        parse_size(args.minbytes, "-b"), parse_size(args.maxbytes, "-e"), args.stepfactor, step
    )
    hooks = (HOOK_PREFIX + satellites.tune().parse_hook(hook).label for hook in args.hook)
    ops = tuple(dict.fromkeys([*args.ops, *hooks]))
    if not ops:
        raise UsageError("nothing to measure; name an operation such as all_reduce, or a --hook")
    return BenchPlan(
        ops=ops,
        world_sizes=_world_sizes(args.nproc, launched_ranks),
        sizes_bytes=sizes,
        result_path="",
        backend=args.backend,
        dtype=dtype_name(args.datatype),
        redop=args.redop,
        iterations=args.iters,
        warmup=args.warmup_iters,
        check=args.check,
        sync=args.sync,
        overlap=args.overlap,
    )


def _world_sizes(nproc: str | None, launched_ranks: int | None) -> tuple[int, ...]:
    if nproc is None:
        return (launched_ranks or this_host().usable_cpus,)
    try:
        sizes = tuple(sorted({int(word) for word in nproc.split(",")}))
    except ValueError:
        raise UsageError(
            f"--nproc {nproc!r} is not a number of ranks or a list such as 2,4,8"
        ) from None
    if launched_ranks is not None and max(sizes) > launched_ranks:
        raise UsageError(
            f"--nproc {nproc} asks for {max(sizes)} ranks, but {launched_ranks} were launched; "
            "launch more, or ask for fewer"
        )
    return sizes


def _check_backend(backend: str, local_ranks: int) -> None:
    with ends_at_once():
        from commprof import _native
        from commprof.launch.backends import check_backend  # takes seconds, because it loads torch

    if backend != "commprof":
        check_backend(backend, local_ranks)
    elif _native.tune_error is not None:
        raise UsageError(f"backend 'commprof' needs the native module: {_native.tune_error}")


def _launch(plan: BenchPlan, directory: Path) -> None:
    with ends_at_once():
        from commprof.forecast.microbench.rank import run_bench_rank
        from commprof.launch.elastic import TRAINING_IMPORTS, launch_function, stop_fork_server
        from commprof.launch.progress import ProgressLine

    path = directory / "plan.json"
    plan.save(path)
    ranks = max(plan.world_sizes)
    try:
        with ProgressLine(directory, ranks, plan.total_rounds()):
            launch_function(
                run_bench_rank,
                [str(path)],
                ranks,
                directory / "logs",
                imports=(
                    "commprof.forecast.microbench.rank",
                    *(TRAINING_IMPORTS if plan.has_hooks() else ()),
                ),
            )
    finally:
        stop_fork_server()


def _run_as_rank(args: argparse.Namespace, rank: int, world_size: int) -> int:
    """Measures as one rank of a job that a launcher started; rank 0 prints for all."""
    try:
        plan = make_plan(args, world_size)
        local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        _check_backend(plan.backend, local_ranks)
        check_memory(plan, launched_here=local_ranks)
        json_file = writable_file(args.json) if rank == 0 else None
    except CommprofError as error:
        if rank == 0:
            raise
        return error.exit_code
    from commprof.forecast.microbench.rank import run_plan

    with tempfile.TemporaryDirectory(prefix="commprof-microbench-") as directory:
        # Rows go to the file of --json from the start, so that they survive if rank 0 is killed.
        result = json_file or Path(directory) / "result.json"
        if json_file is not None:
            json_file.write_text("")  # removes older rows
        plan = dataclasses.replace(plan, result_path=str(result))
        code = show_measured(lambda: run_plan(plan), plan, json_file, shows=rank == 0)
    time.sleep(_EXIT_PAUSE_S)
    return code


def show_measured(
    measure: Callable[[], None], plan: BenchPlan, json_file: Path | None, shows: bool = True
) -> int:
    """Measures, and then prints and saves the finished rows; returns the exit code.

    If ``shows`` is False, another rank prints and writes the rows.
    """
    code, problem = 0, ""
    try:
        measure()
    except CommprofError as error:
        code, problem = error.exit_code, str(error)
    except KeyboardInterrupt:
        code, problem = 130, "interrupted"
    except RuntimeError as error:  # a collective failed, often because another rank has ended
        code, problem = 1, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    result_path = Path(plan.result_path)
    if shows and result_path.exists() and result_path.stat().st_size:
        result = read_sweep(result_path)
        if problem:
            result = dataclasses.replace(result, problems=(problem,))
        if json_file is not None:
            write_sweep(json_file, result)
        print(sweep_table.render(result), end="")
        if json_file is not None:
            print(f"# JSON: {quoted(json_file)}")
        checked = [row.wrong for row in result.rows] + [row.wrong for row in result.overlap_rows]
        wrong = sum(count or 0 for count in checked)
        if wrong and not problem:
            were = "element was" if wrong == 1 else "elements were"
            code, problem = 1, f"{wrong} {were} wrong; see the column #wrong"
    if problem:
        print(f"commprof microbench: {printable(problem)}", file=sys.stderr)
    return code
