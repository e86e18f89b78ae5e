"""Finds late processes, for which other processes wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commprof.analysis.inspector.communicators import InspectedJob, Process, process_sets
from commprof.analysis.inspector.origins import InspectedOrigins
from commprof.analysis.inspector.own_time import is_too_short, own_time
from commprof.analysis.late.stragglers import (
    MOST_WAITING,
    SIGNIFICANCE,
    LateRank,
    find_late_rank,
    most_waited_for,
    too_few_blocks,
    waiting_ranks,
)
from commprof.stats.outliers import chance_beyond, chance_of_standing_out, standing_out

Floats = npt.NDArray[np.float64]

#: Largest number of processes that are named as late. If more processes are needed to explain the
#: waiting, no process is named.
_MOST_LATE = 8
#: Largest fraction of all processes that is named as late. In a small job, up to
#: ``_ALWAYS_ALLOWED`` processes may be named.
_MOST_LATE_PART, _ALWAYS_ALLOWED = 1 / 16, 2
#: A late process causes at least this fraction of the waiting that the latest process causes.
_LEAST_OF_LATEST = 0.05
#: This smaller fraction is enough for a process that causes far more waiting than the next process.
#: ``_APART`` and ``_CHANCE_OF_LONGER`` describe the two cases in which a process does so.
_LEAST_IF_APART = 0.03
#: First case: the process causes this many times the waiting that the next process causes. Errors
#: of tracing cannot explain such a ratio, because they spread waiting over several processes.
_APART = 50.0
#: Second case: the process causes ``_GAP`` times the waiting that the next process causes, and it
#: works longer. This is the largest probability that chance explains the longer work.
_CHANCE_OF_LONGER = 0.05
#: Smallest ratio of the waiting for a late process to the waiting for a process that is not late.
_CLEARLY = 2.0
#: Processes are sorted by the waiting that they cause, the largest first. The list of late
#: processes ends with the last process that causes at least this many times as much as the next.
_GAP = 4.0
#: If the list ends at a ratio of ``_GAP``, the late processes must cause at least this fraction of
#: the excess waiting, see :func:`late_processes`. In a large job, small waits for many other
#: processes add up, so the fraction is lower than ``MOST_WAITING``.
_SHARE_BEYOND_GAP = 0.4
_NS_PER_US = 1e3


@dataclass(frozen=True)
class LateProcess:
    """A process for which others wait longer than chance explains."""

    process: Process
    #: Label of each communicator of the process, and the rank of the process in this communicator.
    ranks: tuple[tuple[str, int], ...]
    #: Waiting that began with this process, summed over the waiting processes.
    wait_s: float
    #: ``wait_s`` as a fraction of all waiting.
    share: float
    #: ``wait_s`` divided by ``waiting_processes``.
    wait_per_process_s: float
    waiting_processes: int
    late_parts: int
    #: Number of parts of the run with any waiting.
    parts: int
    #: Probability that chance explains the waiting, see :func:`stragglers.find_late_rank`. If the
    #: waiting cannot be tested, the probability that chance explains the longer work.
    p_value: float
    #: Waiting of the process itself.
    waits_s: float
    #: Time of the process outside of all operations, minus the median of the processes that
    #: exchange data with it, itself included; NaN if unknown.
    own_s: float


def late_processes(
    job: InspectedJob,
    traced: InspectedOrigins,
    time_us: Floats,
    operation_us: Floats,
    uneven: float = 0.0,
) -> tuple[LateProcess, ...]:
    """Finds the processes that cause clearly more waiting than all others.

    If many processes cause equal waiting, it comes from the schedule or from chance: stages of a
    pipeline always wait for each other. So in each part of the run, this amount is subtracted from
    the waiting that each process causes. Only the rest, called excess, counts.

    If processes are late in turns, waiting may be traced to the wrong process. So processes that
    work longer than all others, see :mod:`commprof.analysis.inspector.own_time`, are candidates
    too. All candidates are tested together, as if they were one process, by the test of late ranks.
    If the late parts of the run are too few for this test, only longer work shows that the
    candidates are late.

    Args:
        job: the processes and communicators.
        traced: where the job's waiting began.
        time_us: time of each process in operations whose waiting is known.
        operation_us: result of :func:`commprof.analysis.inspector.own_time.operation_time`.
        uneven: largest offset between the beginnings of the communicators' parts, as a fraction of
            a part. This fraction of the waiting may be traced to wrong processes.
    """
    count = len(job.processes)
    allowed = min(_MOST_LATE, max(_ALWAYS_ALLOWED, int(_MOST_LATE_PART * count)), count - 1)
    if allowed < 1:
        return ()
    alike = np.partition(traced.began_us, count - 1 - allowed, axis=1)[:, count - 1 - allowed]
    beyond = np.maximum(0.0, traced.began_us - alike[:, np.newaxis])
    by_process = beyond.sum(axis=0)
    if not by_process.any():
        return ()
    sets = process_sets(job.communicators, count)
    own_us = own_time(operation_us, sets)
    candidates, least_share = _by_waiting(traced, by_process, own_us, allowed, uneven)
    longer = _by_own_time(own_us, by_process, allowed)
    if longer:
        # The mean waiting of the other processes in the set is a lower bound of the delay.
        others = (sets[:, np.newaxis] == sets).sum(axis=0) - 1
        delay_us = traced.began_us.sum(axis=0) / np.maximum(1, others)
        also = [
            one
            for one in candidates
            if one not in longer and not is_too_short(own_us, one, float(delay_us[one]))
        ]
        candidates, least_share = [*longer, *also], _SHARE_BEYOND_GAP
    if not candidates:
        return ()
    # NaN if longer work does not show that all candidates were late.
    by_chance = (
        chance_of_standing_out(own_us, longer) if set(candidates) == set(longer) else math.nan
    )
    late = _tested(job, traced, beyond, time_us, candidates, least_share, by_chance)
    if late is None:
        return ()
    return tuple(_late_process(job, traced, own_us, place, late) for place in candidates)


def _by_waiting(
    traced: InspectedOrigins, by_process: Floats, own_us: Floats, allowed: int, uneven: float
) -> tuple[list[int], float]:
    """Returns the processes that cause clearly more waiting than all others, the most first.

    Also returns the least fraction of the waiting that these processes must cause together.
    """
    order = np.argsort(-by_process, kind="stable")
    falling = by_process[order[: allowed + 1]]
    ratio = falling[:-1] / np.maximum(falling[1:], 1e-6 * falling[0])
    others_us = own_us[order[allowed:]]
    works_longer = np.array(
        [chance_beyond(value, others_us) <= _CHANCE_OF_LONGER for value in own_us[order[:allowed]]]
    )
    is_apart = (ratio >= _APART) | (works_longer & (ratio >= _GAP))
    least = np.maximum(uneven, np.where(is_apart, _LEAST_IF_APART, _LEAST_OF_LATEST))
    large = falling[:-1] >= least * falling[0]
    # The smallest excess in ``falling`` is always near 0, so a large ratio of excesses proves
    # little. The total waiting that the processes cause must have such a ratio too.
    total = traced.began_us.sum(axis=0)[order]
    rest = np.maximum.accumulate(total[::-1])[::-1]
    parts = total[: len(ratio)] >= _GAP * rest[1 : len(ratio) + 1]
    gaps = np.flatnonzero(large & (ratio >= _GAP) & parts)
    size = 1 + int(gaps[-1] if len(gaps) else np.argmax(np.where(large, ratio, 0.0)))
    if falling[size - 1] < _CLEARLY * falling[size]:
        return [], math.nan
    share = _SHARE_BEYOND_GAP if falling[size - 1] >= _GAP * falling[size] else MOST_WAITING
    return order[:size].tolist(), share


def _by_own_time(own_us: Floats, by_process: Floats, allowed: int) -> list[int]:
    """Returns processes that work longer than all others and are waited for, in order of waiting.

    Empty if the process that causes most waiting does not work longer than the others.
    """
    most = int(np.argmax(by_process))
    longer = standing_out(own_us, allowed)
    if most not in longer:
        return []
    of_others = float(np.delete(by_process, longer).max(initial=0.0))
    # With half the extra work, a process is expected to make the others wait half as long.
    proportional = by_process[most] * own_us / own_us[most]
    least = np.minimum(_LEAST_IF_APART * proportional, _GAP * of_others)
    waited_for = [one for one in longer if by_process[one] > 0 and by_process[one] >= least[one]]
    return sorted(waited_for, key=lambda one: -float(by_process[one]))


def _tested(
    job: InspectedJob,
    traced: InspectedOrigins,
    beyond: Floats,
    time_us: Floats,
    candidates: Sequence[int],
    least_share: float,
    longer_by_chance: float,
) -> LateRank | None:
    first, others = candidates[0], list(candidates[1:])
    merged = beyond.copy()
    merged[:, first] = beyond[:, list(candidates)].sum(axis=1)
    merged[:, others] = 0.0
    pairs = None
    if traced.pairs_us is not None:
        pairs = traced.pairs_us * _NS_PER_US
        pairs[:, first] = pairs[:, list(candidates)].sum(axis=1)
        pairs[:, others] = 0.0
        # Over the whole run, the waiting began with other processes.
        if not pairs[:, first].any():
            return None
    block_ns = float(time_us.mean()) / job.blocks * _NS_PER_US
    merged_ns = merged * _NS_PER_US
    late = find_late_rank(merged_ns, block_ns, 0.0, pairs, least_share=least_share)
    if late is None and longer_by_chance <= SIGNIFICANCE:  # False for NaN
        late = most_waited_for(merged_ns, block_ns, 0.0, pairs, least_share)
        if late is None or not too_few_blocks(merged_ns, late, block_ns):
            return None
        late = replace(late, p_value=longer_by_chance)
    return late if late is not None and late.rank == first else None


def _late_process(
    job: InspectedJob, traced: InspectedOrigins, own_us: Floats, place: int, late: LateRank
) -> LateProcess:
    ranks = tuple(
        (communicator.label, communicator.recorded[index])
        for communicator in job.communicators
        for index in np.flatnonzero(communicator.process == place).tolist()
    )
    began_us = traced.began_us[:, place]
    waiting = late.waiting_ranks
    if traced.pairs_us is not None:
        waiting = int(waiting_ranks(traced.pairs_us, place).sum())
    typical = np.median(traced.began_us, axis=1)
    return LateProcess(
        process=job.processes[place],
        ranks=ranks,
        wait_s=float(began_us.sum()) / 1e6,
        share=float(began_us.sum() / traced.waited_us.sum()),
        wait_per_process_s=float(began_us.sum()) / max(1, waiting) / 1e6,
        waiting_processes=waiting,
        late_parts=int((began_us > _CLEARLY * typical).sum()),
        parts=int((traced.began_us.sum(axis=1) > 0).sum()),
        p_value=late.p_value,
        waits_s=float(traced.waited_us[:, place].sum()) / 1e6,
        own_s=float(own_us[place]) / 1e6,
    )
