"""Arguments and help texts of ``commprof run``."""

from __future__ import annotations

import argparse
from pathlib import Path

from commprof import satellites
from commprof.commands.showing.price import add_price_arguments
from commprof.launch.pinning import PIN_MODES
from commprof.monitor import settings
from commprof.trace.schema import MODES
from commprof.workloads.options import PRECISIONS

#: Argument names of the options that ``--help`` shows.
COMMON = (
    *("nproc", "workload", "steps", "strategy", "hook", "trial", "output", "json", "all"),
    *("watchdog", "metrics", "nnodes", "config", "dry_run", "module"),
)
SHORT_DESCRIPTION = """\
Trains a workload at several world sizes, under DistributedDataParallel or another strategy,
records every collective in every rank, and reports throughput, scaling, and where each step went.

  commprof run --nproc 4 train.py --lr 0.1   your own script, unchanged, on 4 ranks
  commprof run --nproc 8                     1, 2, 4 and 8 ranks of a small transformer
  commprof run --nproc 2 --trial fp16,bucket-cap=5 train.py      would these be faster?
  commprof run --nproc 4 --watchdog auto train.py                names what a hung job waits for

Workloads: transformer, resnet50, lora, mlp, timed (sleeps of known length).
Strategies: ddp, zero1, fsdp, hsdp. --help-all lists their options, and the compressors for --hook.
"""
_DESCRIPTION = """\
Trains a workload at several world sizes, under DistributedDataParallel or another strategy,
records every collective in every rank, and reports throughput, scaling, and where each step went.

  commprof run --nproc 8                     1, 2, 4 and 8 ranks, transformer
  commprof run --nproc 4 --scaling strong    the global batch stays the same
  commprof run --nproc 2 --workload timed:backward_ms=10,gradient_mb=25
                                             sleeps of known length: try the tool
  commprof run --world-sizes 2 --steps 50 --json result.json
  commprof run --nproc 4 train.py --lr 0.1   your own script, unchanged, on 4 ranks
  commprof run --nproc 4 --watchdog auto train.py     names what a hung job waits for, see
                                             docs/monitoring.md
  commprof run --nnodes 2 --node-rank 0 --nproc 4 --output /shared/run \\
      --rdzv-endpoint first-host:29500       on each of two machines, with its number
  torchrun --nproc-per-node 4 -m commprof.run --workload mlp     on ranks of torchrun, or of srun
  commprof run --config run.yaml --dry-run   options from a file; only prints the launch

Workloads, as NAME or NAME:key=value,key=value:
  transformer   vocab=2048,d_model=256,heads=4,layers=2,feedforward=512,sequence=128,
                samples=320,learning_rate=0.0005
  resnet50      classes=10,image=32,samples=320,data=synthetic,learning_rate=0.0125
  lora          size=tiny,rank=16,targets=attention,base=fp32,sequence=128,samples=160,
                learning_rate=0.0002      (needs transformers and peft; base=4bit: bitsandbytes)
  mlp           inputs=256,width=512,layers=4,classes=10,samples=2048,learning_rate=0.05
  timed         layers=4,data_ms=2,forward_ms=2,backward_ms=4,gradient_mb=1,gradients=constant,
                optimizer_ms=0,bucket_cap_mb=0,late_rank=-1,late_ms=0,late_phase=backward,
                late_every=1
                (backward_ms=4/2/2/4: one value per layer, also for forward_ms, gradient_mb;
                late_phase=pause: SIGSTOP really stops the late rank's process)

Strategies, as --strategy NAME; several, as in ddp,fsdp, are run one by one and compared:
  ddp           the whole model on every rank, gradients all-reduced in buckets
  zero1         like ddp, but optimizer state is sharded, and updated parameters are broadcast
  fsdp          everything sharded: parameters gathered block by block, gradients reduce-scattered;
                fsdp:wrap_blocks=N gathers N neighbouring blocks together
  hsdp          fsdp within groups of ranks; hsdp:shard=N makes groups of N ranks (0: commprof
                chooses); takes wrap_blocks too: hsdp:shard=2,wrap_blocks=2

  commprof run --nproc 4 --strategy ddp,fsdp --workload resnet50
  commprof run --nproc 2 --accumulate 4 --precision bf16 --clip-norm 1
See docs/launching.md.

{tuning}
A file for --config holds one `option: value` per line, such as `nproc: 4`, `strategy: [ddp, fsdp]`,
`script: train.py` or `script-args: [--lr, "0.1"]`. Each run directory has such a file, config.yaml.
See docs/launching.md.

To watch the job while it runs: commprof top RUN, or metrics for Prometheus, TensorBoard or a file:
  commprof run --nproc 2 --metrics --metrics-jsonl metrics.jsonl train.py
See docs/monitoring.md.
"""


def description() -> str:
    """Returns the long help of ``commprof run``, with compressors and trials if installed."""
    seam = satellites.tune_if_there()
    return _DESCRIPTION.replace("{tuning}", "" if seam is None else seam.run_help())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds all arguments of ``commprof run``, in the order of the help text."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="read options from a YAML file of `option: value` lines; options on the command line "
        "override them",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what would be launched, and launch nothing",
    )
    _add_what(parser.add_argument_group("what runs"))
    _add_training(parser.add_argument_group("training"))
    _add_where(parser.add_argument_group("where the job runs, and what is recorded"))
    settings.add_arguments(parser)
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


def _add_what(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--nproc",
        type=int,
        metavar="N",
        help="largest number of ranks: a workload runs on 1, 2, 4, ... and N ranks, a script or "
        "trial only on N (default: usable cores)",
    )
    parser.add_argument(
        "--world-sizes", metavar="A,B,...", help="world sizes to run, instead of those of --nproc"
    )
    parser.add_argument("--workload", help="see above (default: transformer)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps to train per world size")
    parser.add_argument(
        "--epochs",
        type=int,
        metavar="N",
        help="epochs instead of steps (default: 2 epochs, but at least 12 steps; with --trial, the "
        "steps of the trial)",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help="samples of a backward pass, per rank (weak scaling) or over all ranks (strong); "
        "default: the workload's",
    )
    parser.add_argument(
        "--scaling",
        choices=("weak", "strong"),
        help="weak: the same batch per rank at every world size; strong: the same global batch "
        "(default: weak)",
    )
    parser.add_argument(
        "--hook",
        type=lambda text: satellites.tune().parse_hook(text).label,
        metavar="NAME[:OPTION=VALUE,...]",
        help="compress DDP's gradients, see above (default: DDP's own mean all-reduce)",
    )
    parser.add_argument(
        "--bucket-cap-mb",
        type=float,
        metavar="MIB",
        help="bucket_cap_mb of every DDP model that is created without one (default: DDP's); "
        "use this option if a trial recommends bucket-cap=MB; torch.compile refuses less than 1",
    )
    parser.add_argument(
        "--check-prediction",
        type=Path,
        metavar="RUN",
        help="compare the step time of this run with the step time that commprof predict RUN "
        "predicted for the best setting; if commprof predict finds a setting to try, and RUN is a "
        "directory, its output ends with a command that has this option",
    )
    parser.add_argument(
        "--fsdp",
        metavar="SETTING[+SETTING]",
        help="setting of every FSDP2 model from the third step on, written as for --trial, such as "
        "reshard-after-forward=false (default: the model's own)",
    )
    parser.add_argument(
        "--trial",
        metavar="CANDIDATE,...",
        help="compare these settings, which take turns on the training steps of --nproc ranks "
        "(list: --help-all)",
    )
    parser.add_argument(
        "--backend",
        help="gloo; commprof (gloo, but shared memory between ranks of one host); nccl or mpi if "
        "this build of torch has it (default: gloo)",
    )
    parser.add_argument(
        "--threads-per-rank",
        metavar="N|auto",
        help="intra-op threads of each rank, the same at every world size; auto: "
        "OMP_NUM_THREADS, or else the rank's share of the cores at the largest world size "
        "(default: OMP_NUM_THREADS, or 1)",
    )
    parser.add_argument(
        "--pin",
        choices=PIN_MODES,
        default="auto",
        help="pin each rank to CPUs. none: no pinning; cores: a separate, equal part of the cores "
        "for each rank; numa: like cores, but each part lies within one NUMA node; auto: numa if "
        "there are several NUMA nodes and enough cores, else none (default: auto)",
    )
    parser.add_argument("--seed", type=int, help="random seed of data and weights (default: 0)")
    parser.add_argument(
        "--overhead-steps",
        type=int,
        metavar="N",
        help="further steps that measure commprof's overhead, half of them with capture on and "
        "half with capture off; give a multiple of 4 (default: 16; 0 = none; none with --trial)",
    )


def _add_training(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--strategy", metavar="NAME,...", help="how ranks share the model, see above (default: ddp)"
    )
    parser.add_argument(
        "--accumulate",
        type=int,
        metavar="N",
        help="backward passes per update; only the last pass synchronises gradients (default: 1)",
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="type in which forward and backward compute; fp16 scales the loss (default: fp32)",
    )
    parser.add_argument(
        "--clip-norm",
        type=float,
        metavar="X",
        help="clip gradients to this norm (default: no clipping)",
    )
    parser.add_argument(
        "--checkpoint-activations",
        action=argparse.BooleanOptionalAction,
        help="keep only the inputs of each block and recompute the rest in backward",
    )
    parser.add_argument(
        "--cpu-offload",
        action=argparse.BooleanOptionalAction,
        help="with fsdp or hsdp on a GPU, keep the shards in the host's memory",
    )
    parser.add_argument(
        "--scale-lr",
        action=argparse.BooleanOptionalAction,
        help="multiply the learning rate by (samples per update / --batch-size)",
    )
    parser.add_argument(
        "--lr-warmup",
        type=int,
        metavar="N",
        help="steps in which the learning rate grows to its full value (default: 0)",
    )


def _add_where(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="run directory, new or empty (default: commprof-runs/DATE-WORKLOAD)",
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        help="what to keep; full: every record; always-on: histograms of bounded size; off: "
        "nothing, until another mode is chosen (default: COMMPROF_MODE, or full)",
    )
    add_price_arguments(parser)
    parser.add_argument(
        "--all", action="store_true", help="print all tables too, not only the first screen"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result to FILE")
    parser.add_argument(
        "--nnodes",
        type=int,
        metavar="N",
        help="number of machines; run the same command on each, with its --node-rank; --nproc "
        "counts per machine (default: 1; with --rdzv-endpoint under srun, the number of machines "
        "on which srun started commprof)",
    )
    parser.add_argument(
        "--node-rank",
        type=int,
        metavar="N",
        help="index of this machine, counted from 0; machine 0 prints the report (default: 0, or "
        "SLURM_NODEID if srun started one task per machine)",
    )
    parser.add_argument(
        "--rdzv-endpoint",
        metavar="HOST:PORT",
        help="rendezvous of the ranks: an address of machine 0 and a port; on several machines, "
        "each further world size or strategy uses the next port (default: a free port of "
        "localhost)",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="start all ranks again when one fails, at most N times; the report shows each attempt "
        "(default: 0)",
    )
    parser.add_argument(
        "--check-sync",
        type=int,
        metavar="STEPS",
        help="every STEPS steps verify that all ranks hold identical parameters in DDP models, "
        "and name the ranks that differ (default: never)",
    )
    parser.add_argument(
        "--stacks",
        action=argparse.BooleanOptionalAction,
        help="also record the line of code that issued each collective",
    )
    parser.add_argument(
        "--samples",
        action=argparse.BooleanOptionalAction,
        help="have py-spy sample the Python stacks of each rank: the report names the functions in "
        "which a late rank spends more time than the others",
    )
    parser.add_argument(
        "--gradient-norms",
        type=int,
        metavar="N",
        help="every N steps measure the norm of each rank's own gradients, for live metrics",
    )
    parser.add_argument(
        "--watchdog",
        metavar="SECONDS|auto",
        help="if a step or collective takes longer than SECONDS, name the rank, collective and "
        "bucket that it waits for, and show stacks; auto: learn the limit from the run",
    )
