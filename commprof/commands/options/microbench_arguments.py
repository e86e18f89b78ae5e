"""What ``commprof microbench`` takes, and the help that teaches it."""

from __future__ import annotations

import argparse
from pathlib import Path

from commprof.microbench.operations import DTYPES, OPERATIONS, REDOPS
from commprof.microbench.plan import SYNCS

DESCRIPTION = f"""\
Measures collectives alone, without a training job: latency and bandwidth by message size, in
nccl-tests' words, on gloo, NCCL, MPI, or commprof's own backend, with the data verified.

  commprof microbench all_reduce --nproc 2              8 bytes to 128 MB, gloo
  commprof microbench all_reduce all_gather --nproc 2,4,8 -b 1K -e 64M -f 4
  commprof microbench all_reduce --nproc 2 --backend commprof --json shm.json
  commprof microbench --hook fp16 --hook topk:ratio=0.01 --nproc 2 -b 1M -e 64M
  commprof microbench all_reduce --nproc 2 --overlap    what compute hides of it
  torchrun --nproc-per-node 4 -m commprof.microbench all_reduce   ranks that torchrun starts
  commprof compare A.json B.json                                  is it faster than before?

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
        help="a DDP bucket through a gradient compressor, from gradient to mean; may be repeated "
        "(see docs/compressors.md)",
    )
    parser.add_argument(
        "--nproc",
        metavar="N[,N...]",
        help="ranks; several numbers are groups of the first so many ranks, in one run "
        "(default: usable cores, under torchrun all ranks)",
    )
    _add_sizes(parser)
    _add_measuring(parser)
    parser.add_argument(
        "--backend",
        default="gloo",
        help="gloo, nccl or mpi, where this torch has it, or commprof (default: gloo)",
    )
    parser.add_argument(
        "--overlap",
        action="store_true",
        help="run each operation under compute of its own length, and print what that hides of it",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the rows, with all samples, there"
    )


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-b", "--minbytes", default="8", metavar="SIZE", help="default: 8")
    parser.add_argument("-e", "--maxbytes", default="128M", metavar="SIZE", help="default: 128M")
    parser.add_argument(
        "-f", "--stepfactor", type=int, metavar="N", help="multiply by that (default: 2)"
    )
    parser.add_argument("-i", "--stepbytes", metavar="SIZE", help="add that, in the place of -f")
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
        help="calls before the samples, per size and round (default: 1 to 5, by time)",
    )
    parser.add_argument(
        "-c",
        "--check",
        type=int,
        default=1,
        metavar="N",
        help="calls per row whose data are verified (default: 1; 0 = none)",
    )
    parser.add_argument(
        "--sync",
        choices=SYNCS,
        default="barrier",
        help="what comes before each sample: a barrier of the measured group, or nothing "
        "(default: barrier)",
    )
