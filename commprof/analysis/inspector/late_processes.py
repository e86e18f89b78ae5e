"""Processes that the others wait for, by the waiting that began with them and their own time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commprof.analysis.inspector.communicators import InspectedJob, Process
from commprof.analysis.inspector.origins import InspectedOrigins
from commprof.analysis.inspector.own_time import is_too_short, own_time, standing_out
from commprof.analysis.late.stragglers import (
    MOST_WAITING,
    LateRank,
    find_late_rank,
    waiting_ranks,
)

Floats = npt.NDArray[np.float64]

#: Largest number of processes that are named as late. If more are needed to explain the waiting, or
#: others cause nearly as much, none is named.
_MOST_LATE = 8
#: Likewise as a part of all processes, but at least ``_ALWAYS_ALLOWED``.
_MOST_LATE_PART, _ALWAYS_ALLOWED = 1 / 16, 2
#: A late process causes at least this part of the waiting that the latest of them causes, or the
#: smaller part if no other process causes a fiftieth of it: what is traced wrongly through other
#: communicators is of several.
_LEAST_OF_LATEST, _LEAST_IF_APART, _APART = 0.05, 0.03, 50.0
#: Least ratio of the waiting that a late process causes to that of any process that is not late.
_CLEARLY = 2.0
#: Ratio that parts those who are late from all others, even if one of them is much later.
_GAP = 4.0
#: Least part of the waiting beyond the others' that late processes cause if such a gap parts them
#: from all others, each of which causes little: in a large job that adds up.
_SHARE_BEYOND_GAP = 0.4
_NS_PER_US = 1e3


@dataclass(frozen=True)
class LateProcess:
    """A process that others wait for more than chance explains."""

    process: Process
    #: Its rank in each communicator, by the communicator's label.
    ranks: tuple[tuple[str, int], ...]
    #: Waiting that began with it, summed over the waiting processes, and as a part of all waiting.
    wait_s: float
    share: float
    #: Mean over the processes that wait for it.
    wait_per_process_s: float
    waiting_processes: int
    #: Parts of the run, of ``parts``, in which it is late.
    late_parts: int
    parts: int
    p_value: float
    #: The process's own waiting.
    waits_s: float
    #: Time outside of all operations beyond that of the median process; NaN if it is not known.
    own_s: float


def late_processes(
    job: InspectedJob,
    traced: InspectedOrigins,
    time_us: Floats,
    operation_us: Floats,
    uneven: float = 0.0,
) -> tuple[LateProcess, ...]:
    """Finds the processes that cause clearly more waiting than all others.

    In each part of the run, what many processes cause alike is that of the schedule or of chance:
    stages of a pipeline always wait for each other. Only waiting beyond it is looked at. Of several
    that are late in turns, a part of the run shows the waiting of all, which may then be traced to
    the wrong one; so a process also counts if it works longer than all others, see
    :mod:`commprof.analysis.inspector.own_time`, and is waited for, but only beside the one that
    causes most waiting and works longer itself. Those who stand out are tested as one, by the test
    of late ranks.

    Args:
        job: the processes and communicators.
        traced: where its waiting began.
        time_us: time of each process in operations whose waiting is known.
        operation_us: result of :func:`commprof.analysis.inspector.own_time.operation_time`.
        uneven: fraction of a part of the run by which its communicators may not begin together. So
            much of the waiting for the latest process, of which the waiting ranks come late to
            their other communicators, may be traced to these ranks.
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
    candidates, least_share = _by_waiting(traced, by_process, allowed, uneven)
    own_us = own_time(operation_us)
    longer = _by_own_time(own_us, by_process, allowed)
    if longer:
        # At most all others wait for a process, so it is late at least by their mean waiting.
        delay_us = traced.began_us.sum(axis=0) / (count - 1)
        also = [
            one
            for one in candidates
            if one not in longer and not is_too_short(own_us, longer, one, float(delay_us[one]))
        ]
        candidates, least_share = [*longer, *also], _SHARE_BEYOND_GAP
    late = _tested(job, traced, beyond, time_us, candidates, least_share) if candidates else None
    if late is None:
        return ()
    return tuple(_late_process(job, traced, own_us, place, late) for place in candidates)


def _by_waiting(
    traced: InspectedOrigins, by_process: Floats, allowed: int, uneven: float
) -> tuple[list[int], float]:
    """Returns those who cause clearly more waiting than all others, the most first.

    Also returns the part of the waiting that they must cause at least. ``by_process`` is each
    process's waiting beyond what many cause alike.
    """
    order = np.argsort(-by_process, kind="stable")
    falling = by_process[order[: allowed + 1]]
    ratio = falling[:-1] / np.maximum(falling[1:], 1e-6 * falling[0])
    least = np.maximum(uneven, np.where(ratio >= _APART, _LEAST_IF_APART, _LEAST_OF_LATEST))
    large = falling[:-1] >= least * falling[0]
    # What is beyond the others' shrinks towards the last that is allowed; all waiting does not.
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
    """Returns those who work longer than all others and are waited for, the most waited for first.

    Empty if the one that causes most waiting does not work longer: then it is not by their own
    time that processes of this job are late.
    """
    most = int(np.argmax(by_process))
    longer = standing_out(own_us, allowed)
    if most not in longer:
        return []
    waited_for = [one for one in longer if by_process[one] >= _LEAST_IF_APART * by_process[most]]
    return sorted(waited_for, key=lambda one: -float(by_process[one]))


def _tested(
    job: InspectedJob,
    traced: InspectedOrigins,
    beyond: Floats,
    time_us: Floats,
    candidates: Sequence[int],
    least_share: float,
) -> LateRank | None:
    """Tests the candidates as one process; None if chance may explain the waiting for them."""
    first, others = candidates[0], list(candidates[1:])
    merged = beyond.copy()
    merged[:, first] = beyond[:, list(candidates)].sum(axis=1)
    merged[:, others] = 0.0
    pairs = None
    if traced.pairs_us is not None:
        pairs = traced.pairs_us * _NS_PER_US
        pairs[:, first] = pairs[:, list(candidates)].sum(axis=1)
        pairs[:, others] = 0.0
        if not pairs[:, first].any():  # over the whole run, its waiting began elsewhere
            return None
    block_ns = float(time_us.mean()) / job.blocks * _NS_PER_US
    late = find_late_rank(merged * _NS_PER_US, block_ns, 0.0, pairs, least_share=least_share)
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
