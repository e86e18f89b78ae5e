"""Which of how many machines this is, for ``commprof run``: as it was said, or as Slurm says.

A process that is one of several ranks of a launcher has been told apart before.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from commprof.errors import UsageError
from commprof.launch.rendezvous import Rendezvous
from commprof.launch.under_launcher import number_of


def meeting_of(args: argparse.Namespace) -> Rendezvous:
    """Where the launchers of all machines meet; what was not given is filled in, in ``args`` too.

    Raises:
        UsageError: this process is one of several that would each start all ranks, or the numbers
            do not fit each other.
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
    """Machines and the number of this one, in a step of one task per node; else one machine.

    Args:
        variables: the environment.
        given: --nnodes; None where it was not.
        endpoint: --rdzv-endpoint; None where it was not given.
    """
    tasks, nodes = number_of(variables, "SLURM_NTASKS"), number_of(variables, "SLURM_NNODES")
    if "SLURM_STEP_ID" not in variables or "SLURM_NODEID" not in variables or tasks < 2:
        return 1, 0  # of a batch script there is one, whatever the job may start
    if tasks == nodes and (endpoint is not None or given is not None):
        return nodes, number_of(variables, "SLURM_NODEID")
    if given is not None:
        return 1, 0
    raise UsageError(
        f"srun started this process as one of {tasks} on {nodes} machines, and commprof run starts "
        "all ranks of a machine itself: srun --ntasks-per-node=1, and give --rdzv-endpoint "
        "HOST:PORT, an address of the first one; with several tasks per node each is a rank"
    )
