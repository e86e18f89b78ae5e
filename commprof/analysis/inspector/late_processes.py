"""Finds processes that others wait for, by the waiting that they cause and by their own time."""

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
#: waiting, or if others cause nearly as much, no process is named.
_MOST_LATE = 8
#: Largest fraction of all processes that is named as late; but up to ``_ALWAYS_ALLOWED`` processes
#: may always be named.
_MOST_LATE_PART, _ALWAYS_ALLOWED = 1 / 16, 2
#: A late process causes at least this fraction of the waiting that the latest process causes.
_LEAST_OF_LATEST = 0.05
#: This smaller fraction is enough for a process that stands apart from the process that causes the
#: next most waiting. It does so in the two cases that the next two constants describe.
_LEAST_IF_APART = 0.03
#: First case: the process causes this many times the waiting that the next one causes. This cannot
#: be an error of tracing waiting through communicators: waiting that is traced to wrong processes
#: is spread over several of them.
_APART = 50.0
#: Second case: the process causes ``_GAP`` times the waiting of the next, and also works longer
#: than the others. The probability that chance explains the longer work is at most this.
_CHANCE_OF_LONGER = 0.05
#: Least ratio of the waiting that a late process causes to that of any process that is not late.
_CLEARLY = 2.0
#: Processes are sorted by the waiting that they cause, the largest first. The list of late
#: processes ends with the last one that causes at least this many times as much as the next
#: process. Earlier processes may have such a ratio too, because one late process is much later than
#: the rest.
_GAP = 4.0
#: If the list ends at a ratio of ``_GAP``, the late processes must cause at least this fraction of
#: the excess waiting (waiting for a process beyond the amount that many processes cause equally).
#: The fraction is lower than usual, because the small waiting that each other process causes adds
#: up in a large job.
_SHARE_BEYOND_GAP = 0.4
_NS_PER_US = 1e3


@dataclass(frozen=True)
class LateProcess:
    """A process for which others wait longer than chance explains."""

    process: Process
    #: The communicators of the process: label, and rank of the process in it.
    ranks: tuple[tuple[str, int], ...]
    #: Waiting that began with this process, summed over the waiting processes; the next field is
    #: its fraction of all waiting.
    wait_s: float
    share: float
    #: The same waiting, as a mean over the ``waiting_processes``.
    wait_per_process_s: float
    waiting_processes: int
    #: Number of parts of the run in which the process is late, out of ``parts`` parts with any
    #: waiting.
    late_parts: int
    parts: int
    #: Probability that chance explains the waiting, see :func:`stragglers.find_late_rank`; where
    #: this cannot be tested, that it explains the process's own longer time.
    p_value: float
    #: The process's own waiting.
    waits_s: float
    #: The process's time outside of all operations, minus that of the median process; NaN if not
    #: known.
    own_s: float


def late_processes(
    job: InspectedJob,
    traced: InspectedOrigins,
    time_us: Floats,
    operation_us: Floats,
    uneven: float = 0.0,
) -> tuple[LateProcess, ...]:
    """Finds the processes that cause clearly more waiting than all others.

    Waiting that many processes cause equally comes from the schedule or from chance: stages of a
    pipeline always wait for each other. So in each part of the run, this amount is subtracted from
    the waiting that each process causes; only the rest (the excess) counts.

    If several processes are late in turns, a part of the run contains the waiting for all of them,
    which may be traced to the wrong process. So if the process with the most excess also works
    longer than all others (see :mod:`commprof.analysis.inspector.own_time`), the other processes
    that work longer and are waited for count as late too. All candidates together are tested as if
    they were one process, by the test of late ranks. This test counts a series of late parts that
    follow each other as one observation. If there are too few observations, as where a process is
    late during one long part of a short run, candidates that all work longer than the other
    processes are late.

    Args:
        job: the processes and communicators.
        traced: where the job's waiting began.
        time_us: time of each process in operations whose waiting is known.
        operation_us: result of :func:`commprof.analysis.inspector.own_time.operation_time`.
        uneven: largest offset between the beginnings of the communicators' parts, as a fraction of
            a part. This fraction of the waiting for the latest process may be traced wrongly to
            ranks that waited for it and then came late to their other communicators.
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
        # A process was late by at least the mean of the waiting of all others of its set.
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
    ``by_process`` is the excess waiting that each process causes, see :func:`late_processes`;
    ``own_us`` is the result of :func:`commprof.analysis.inspector.own_time.own_time`.
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
    # The waiting that many processes cause equally has been subtracted, so the smallest excess in
    # ``falling`` is near 0 in any case. A large ratio of excesses is therefore not sufficient: the
    # total waiting that the processes cause must have such a ratio too.
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

    Empty if the process that causes most waiting does not work longer: then the lateness in this
    job does not come from the processes' own time.
    """
    most = int(np.argmax(by_process))
    longer = standing_out(own_us, allowed)
    if most not in longer:
        return []
    of_others = float(np.delete(by_process, longer).max(initial=0.0))
    # Expected waiting is proportional to extra work: with half the extra work of process ``most``,
    # a process makes the others wait half as long.
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
    """Tests the candidates as one process; None if chance may explain the waiting for them.

    ``longer_by_chance`` is the probability that chance explains the candidates' own longer time;
    NaN if this time does not show that all of them were late. This probability decides if the parts
    of the run with waiting for the candidates are too few independent observations for a test.
    """
    first, others = candidates[0], list(candidates[1:])
    merged = beyond.copy()
    merged[:, first] = beyond[:, list(candidates)].sum(axis=1)
    merged[:, others] = 0.0
    pairs = None
    if traced.pairs_us is not None:
        pairs = traced.pairs_us * _NS_PER_US
        pairs[:, first] = pairs[:, list(candidates)].sum(axis=1)
        pairs[:, others] = 0.0
        if not pairs[:, first].any():  # over the whole run, the waiting began with another process
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
