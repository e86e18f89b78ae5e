"""Finds several processes that work longer than all others, such as the processes of a slow host.

Each of these processes comes last now and then, so no process stands out by the waiting that it
causes. But all of these processes spend less time in operations than the others, see
:mod:`commprof.analysis.inspector.own_time`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.analysis.inspector.communicators import InspectedJob, Process, process_sets
from commprof.analysis.inspector.kinds import MESSAGE_PAIR
from commprof.analysis.inspector.origins import InspectedOrigins
from commprof.analysis.late.slower_ranks import whole_hosts
from commprof.analysis.late.stragglers import MOST_WAITING, OF_STEP, OF_STEPS
from commprof.stats.outliers import standing_out

Floats = npt.NDArray[np.float64]

#: A part of the run counts only if the waiting for slower processes is at least this fraction of
#: the mean over all parts.
_OF_MEAN_PART = 0.1


@dataclass(frozen=True)
class SlowerProcesses:
    """Two or more processes that work longer than all others.

    They are at most half of the processes that exchange data with each other.
    """

    processes: tuple[Process, ...]
    #: Hosts of these processes; empty unless ``processes`` has all processes of these hosts.
    hosts: tuple[str, ...]
    #: Time outside of all operations, minus the median of the other processes. The smallest value
    #: of all ``processes``.
    longer_s: float
    #: Waiting that began with these processes, summed over the waiting processes.
    wait_s: float
    #: ``wait_s`` as a fraction of all waiting.
    share: float
    #: ``wait_s`` divided by the number of other processes.
    wait_per_process_s: float
    #: Mean waiting of these processes themselves.
    waits_s: float


def slower_processes(
    job: InspectedJob, traced: InspectedOrigins, time_us: Floats, operation_us: Floats
) -> SlowerProcesses | None:
    """Returns the processes that work longer than all others; None if there are none.

    Args:
        job: the processes and communicators.
        traced: where the job's waiting began.
        time_us: time of each process in operations whose waiting is known.
        operation_us: result of :func:`commprof.analysis.inspector.own_time.operation_time`.

    The returned processes caused at least 60 % of all waiting, over the whole run and in at least
    three quarters of its parts. This waiting is at least 2 % of the other processes' time in
    operations. Slower stages of a pipeline are not returned.
    """
    sets = process_sets(job.communicators, len(job.processes))
    for number in np.unique(sets).tolist():
        of_set = np.flatnonzero(sets == number)
        own_us = np.median(operation_us[of_set]) - operation_us[of_set]
        standing = standing_out(own_us, len(of_set) // 2)
        if len(standing) < 2:
            continue
        slower = np.sort(of_set[standing])
        others = np.setdiff1d(of_set, slower)
        began_us = traced.began_us.sum(axis=0)
        waited_us = traced.waited_us.sum(axis=0)
        wait_us = float(began_us[slower].sum())
        share = wait_us / float(waited_us[of_set].sum()) if waited_us[of_set].any() else 0.0
        if not _in_most_parts(traced, slower) or _are_stages(job, slower):
            continue
        if share < MOST_WAITING or wait_us < OF_STEP * float(time_us[others].sum()):
            continue
        host_of = {index: job.processes[index].host for index in of_set.tolist()}
        longer_us = np.median(operation_us[others]) - operation_us[slower]
        return SlowerProcesses(
            processes=tuple(job.processes[index] for index in slower.tolist()),
            hosts=whole_hosts(slower.tolist(), host_of),
            longer_s=float(longer_us.min()) / 1e6,
            wait_s=wait_us / 1e6,
            share=share,
            wait_per_process_s=wait_us / len(others) / 1e6,
            waits_s=float(waited_us[slower].mean()) / 1e6,
        )
    return None


def _in_most_parts(traced: InspectedOrigins, slower: npt.NDArray[np.int64]) -> bool:
    """True if most waiting began with these processes in most parts of the run."""
    began_us, all_us = traced.began_us[:, slower].sum(axis=1), traced.began_us.sum(axis=1)
    # If these processes stalled only once, nearly all waiting for them is in one part of the run.
    # The other parts are then far below the mean, and do not count.
    least_us = np.maximum(MOST_WAITING * all_us, _OF_MEAN_PART * began_us.mean())
    return bool((began_us >= least_us).mean() >= OF_STEPS)


def _are_stages(job: InspectedJob, slower: npt.NDArray[np.int64]) -> bool:
    """True if each pipeline has some of these processes, which are then stages, not a slow host."""
    pipelines = [
        communicator
        for communicator in job.communicators
        if any(operations.kind == MESSAGE_PAIR for operations in communicator.operations)
    ]
    has_some = [np.isin(communicator.process, slower).any() for communicator in pipelines]
    return bool(pipelines) and all(has_some)
