"""Computes how steps change if another number of ranks shares a core.

A core and its ranks are a closed queueing network: the core is the server, and the ranks are the
customers. A rank wants the core for the processor time of its training thread and helper threads;
otherwise it sleeps or waits for the link. A rank's time at the core is computed by mean value
analysis (Reiser and Lavenberg, "Mean-Value Analysis of Closed Multichain Queueing Networks",
JACM 27:2, 1980).

A collective costs processor time per message and per byte, but one recording cannot separate the
two. The processor time is therefore assumed to be proportional to the geometric mean of the numbers
of messages and bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from commprof.forecast.costs.algorithms import OPERATIONS, work
from commprof.forecast.scenario.schedule import Placement
from commprof.forecast.sharded.changes import ChangedCall, ShardedChange
from commprof.forecast.sharded.costs import ranks_of
from commprof.forecast.sharded.steps import ShardedSteps


@dataclass(frozen=True)
class Crowding:
    """Change of a step's times when another number of ranks shares a core."""

    #: Factor for a rank's own work; below 1 if fewer ranks share a core than in the recorded run.
    own: float = 1.0
    #: Time by which a step is longer because more ranks share a core, in ns. Overlap does not hide
    #: this time.
    longer_ns: float = 0.0


def crowding(
    steps: ShardedSteps, changed: ShardedChange, placement: Placement, step_ns: float, own_ns: float
) -> Crowding:
    """Returns how the scenario's number of ranks per core changes a step's times.

    If ``steps.placement.busy`` is NaN, the times are kept.

    Args:
        steps: the recorded steps.
        changed: the scenario's step.
        placement: the scenario's ranks and cores.
        step_ns: length of the scenario's step at the recorded number of ranks per core.
        own_ns: part of ``step_ns`` in which a rank does not wait for communication.
    """
    here = steps.placement
    if math.isnan(here.busy):
        return Crowding()
    before = here.crowding() if math.isnan(steps.lacked) else max(here.crowding(), steps.lacked)
    wanted_ns = here.busy * own_ns / before + _exchange_ns(steps, changed)
    elsewhere_ns = max(0.0, step_ns - before * wanted_ns)
    modelled = [
        stretch(place_of.threads_per_core, wanted_ns, elsewhere_ns)
        for place_of in (here, placement)
    ]
    # Adds the modelled change to ``before``, which may differ from the modelled value.
    after = max(1.0, before + modelled[1] - modelled[0])
    longer_ns = wanted_ns * (after - before)
    if longer_ns < 0:
        return Crowding(own=max(0.0, 1.0 + longer_ns / max(1.0, own_ns)))
    return Crowding(longer_ns=longer_ns)


def costed(steps: ShardedSteps, placement: Placement) -> Placement:
    """Returns ``placement`` with the recorded number of ranks per core, for fitted costs.

    ``crowding`` adds the effect of another number. If CPU times are unknown, ``placement`` is
    returned unchanged.
    """
    here = steps.placement
    if not steps.helpers_ns or math.isnan(here.busy):
        return placement
    cores = placement.ranks_per_host * here.cores_per_host / here.ranks_per_host
    return replace(placement, cores_per_host=cores)


def stretch(sharing: float, wanted: float, elsewhere: float) -> float:
    """Returns a rank's time at a core, queueing included, divided by the rank's processor time.

    Args:
        sharing: number of threads that share the core; may be fractional.
        wanted: processor time that a rank wants per step.
        elsewhere: time per step in which the rank does not want the core, in the unit of
            ``wanted``.
    """
    if sharing <= 1 or wanted <= 0:
        return 1.0
    queue, lengths = 0.0, [1.0]
    for ranks in range(1, math.ceil(sharing) + 1):
        at_core = wanted * (1.0 + queue)
        queue = ranks * at_core / (elsewhere + at_core)
        lengths.append(at_core / wanted)
    return float(np.interp(sharing, range(len(lengths)), lengths))


def _exchange_ns(steps: ShardedSteps, changed: ShardedChange) -> float:
    """Returns the helper threads' processor time in the changed step."""
    recorded = sum(
        _weight(steps, ChangedCall(call, ranks_of(steps, call), number))
        for number, call in enumerate(steps.calls)
    )
    if not recorded:
        return 0.0
    return steps.helpers_ns * sum(_weight(steps, call) for call in changed.calls) / recorded


def _weight(steps: ShardedSteps, call: ChangedCall) -> float:
    """Returns a number that is proportional to a collective's processor time; 0 if unknown."""
    if call.call.op not in OPERATIONS:
        return 0.0
    done = work(call.call.op, call.ranks, steps.backend)
    return math.sqrt(done.steps * done.sent * call.call.size_bytes)
