"""``commprof launch-files``: write the file that starts a recorded job on a cluster."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from commprof import invocation
from commprof.commands.options.parser import Parser
from commprof.commands.running.run_arguments import add_arguments
from commprof.commands.running.run_checks import checked_targets, world_sizes_of
from commprof.errors import UsageError
from commprof.launch.cluster_files import TARGETS, ClusterJob
from commprof.launch.pinning import place_ranks
from commprof.launch.target import WorkloadTarget

_DESCRIPTION = """\
Writes a file that starts a job on a cluster; the job runs a script, or a built-in workload, under
commprof. Read the file, change it where needed, and submit it:

  commprof launch-files --target slurm --nodes 4 --nproc-per-node 8 \\
      --output /shared/run1 train.py --lr 0.1 > job.sbatch
  sbatch job.sbatch
  commprof report /shared/run1

  commprof launch-files --target slurm --nodes 4 --nproc-per-node 8 \\
      --output /shared/run2 -- --workload transformer --steps 50 > sweep.sbatch

The second form trains the workload at 4, 8, 16 and 32 ranks; options of commprof run follow --.

Targets: slurm (an sbatch script), k8s (a TrainJob for Kubeflow Trainer v2), k8s-pytorchjob (a
PyTorchJob for the Training Operator v1). The traces of all nodes go to --output, which all nodes
must see. On Kubernetes, the volume claim is mounted at --output. There the traces go to a folder
with the name that --name gives.
"""


class LaunchFilesCommand:
    """The command ``commprof launch-files``."""

    description = _DESCRIPTION

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the arguments."""
        parser.add_argument("--target", choices=tuple(TARGETS), help="required, see above")
        parser.add_argument("--nodes", type=int, metavar="N", help="required: number of machines")
        parser.add_argument(
            "--nproc-per-node", type=int, metavar="N", help="required: ranks per machine"
        )
        parser.add_argument(
            "--output", metavar="DIR", help="required: shared directory for the traces"
        )
        parser.add_argument(
            "--name", default="commprof", help="name of the job (default: commprof)"
        )
        parser.add_argument(
            "--interface", metavar="NAME", help="network interface for gloo, such as eth0"
        )
        parser.add_argument(
            "--port", type=int, default=29500, help="Slurm: rendezvous port (default: 29500)"
        )
        parser.add_argument(
            "--cpus-per-rank", type=int, metavar="N", help="number of cores for each rank"
        )
        parser.add_argument(
            "--time",
            metavar="LIMIT",
            help="Slurm: time limit, in minutes or as HOURS:MINUTES:SECONDS",
        )
        parser.add_argument("--partition", metavar="NAME", help="Slurm: the partition")
        parser.add_argument("--image", help="Kubernetes: container image")
        parser.add_argument(
            "--volume-claim", metavar="NAME", help="Kubernetes: ReadWriteMany volume claim"
        )
        parser.add_argument(
            "-o", "--file", type=Path, metavar="FILE", help="file to write (default: the terminal)"
        )
        parser.add_argument(
            "script",
            nargs=argparse.REMAINDER,
            metavar="SCRIPT ARGS",
            help="the script and its arguments; -- -m MODULE ARGS for a module; -- --workload NAME "
            "for a built-in workload, with further options of the command 'commprof run'",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Prints or writes the file."""
        needed = ("target", "nodes", "nproc_per_node", "output")
        missing = [name for name in needed if getattr(args, name) is None]
        if missing:
            options = ", ".join("--" + name.replace("_", "-") for name in missing)
            raise UsageError(
                f"{options} missing; {invocation.command('launch-files', '--help')} shows examples"
            )
        script = args.script[1:] if args.script[:1] == ["--"] else args.script
        if script and script[0].startswith("--"):
            _check_options(script, args.nodes, args.nproc_per_node)
        job = ClusterJob(
            script=tuple(script),
            nodes=args.nodes,
            ranks_per_node=args.nproc_per_node,
            directory=args.output,
            name=args.name,
            interface=args.interface,
            port=args.port,
            time_limit=args.time,
            partition=args.partition,
            cpus_per_rank=args.cpus_per_rank,
            image=args.image,
            volume_claim=args.volume_claim,
        )
        text = os.fsencode(TARGETS[args.target](job))  # arguments may hold bytes that are not UTF-8
        if args.file is None:
            sys.stdout.buffer.write(text)
            _say_missing(script)
            return 0
        try:
            with args.file.open("xb") as file:
                file.write(text)
        except FileExistsError:
            raise UsageError(
                f"-o {invocation.quoted(args.file)} exists already; name a new file"
            ) from None
        except OSError as error:
            raise UsageError(
                f"cannot write -o {invocation.quoted(args.file)}: {error.strerror}; name another "
                "file"
            ) from None
        print(f"Written: {invocation.quoted(args.file)}", file=sys.stderr)
        _say_missing(script)
        return 0


def _say_missing(script: list[str]) -> None:
    if script and not script[0].startswith("-") and not Path(script[0]).exists():
        said = f"the script {script[0]!r} is not on this machine; the job's machines must have it"
        print(f"commprof: {said}", file=sys.stderr)


def _check_options(words: list[str], nodes: int, ranks_per_node: int) -> None:
    """Raises UsageError for options that ``commprof run`` would refuse later, on the nodes."""
    parser = Parser(prog="commprof run")
    add_arguments(parser)
    given = parser.parse_args(words)
    if given.script is not None:
        raise UsageError(
            f"{given.script!r} is read as a script, but follows the options of a built-in "
            f"workload; put the script first, or leave out {given.script!r}"
        )
    if min(nodes, ranks_per_node) < 1 or (given.nproc, given.nnodes) != (None, None):
        return  # ClusterJob.check raises the error
    given.nnodes, given.nproc = nodes, ranks_per_node
    sizes = world_sizes_of(given)
    given.placement = place_ranks("none", given.threads_per_rank, sizes, nodes)
    for target in checked_targets(given, sizes):
        if isinstance(target, WorkloadTarget):
            target.refuse(sizes)
