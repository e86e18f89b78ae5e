"""Computes by how much steps take longer or shorter if another number of ranks shares a core.

A core and its ranks are a closed queueing network, with the core as the server and the ranks as its
customers. In each step a rank wants the core for the processor time of its training thread and of
its helper threads, such as the backend's; otherwise it sleeps or waits for the link. A rank's time
at the core is computed by mean value analysis (Reiser and Lavenberg, "Mean-Value Analysis of Closed
Multichain Queueing Networks", JACM 27:2, 1980).

A collective costs processor time per message and per byte; one recording cannot separate them. The
cost with another number of ranks is therefore assumed to be proportional to the geometric mean of
the number of messages and the number of bytes.
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

    #: Factor for the time in which a rank does not wait; below 1 if ranks have more cores than when
    #: recorded.
    own: float = 1.0
    #: Time by which more ranks per core than recorded lengthen a step, in ns. No overlap hides it,
    #: because a rank spends it waiting for the core.
    longer_ns: float = 0.0


def crowding(
    steps: ShardedSteps, changed: ShardedChange, placement: Placement, step_ns: float, own_ns: float
) -> Crowding:
    """Returns how the scenario's number of ranks per core changes a step's times.

    Returns ``Crowding()``, which changes nothing, if ``steps.placement.busy`` is NaN.

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
    # Only the modelled change is added to ``before``. If ``before`` differs from the modelled value
    # of the recorded placement, this difference stays.
    after = max(1.0, before + modelled[1] - modelled[0])
    longer_ns = wanted_ns * (after - before)
    if longer_ns < 0:
        return Crowding(own=max(0.0, 1.0 + longer_ns / max(1.0, own_ns)))
    return Crowding(longer_ns=longer_ns)


def costed(steps: ShardedSteps, placement: Placement) -> Placement:
    """Returns ``placement`` with the recorded number of ranks per core.

    The fitted costs of collectives are computed for this number; the function ``crowding`` adds the
    effect of a different number. If the CPU time of helper threads or of ranks is unknown, returns
    ``placement`` unchanged.
    """
    here = steps.placement
    if not steps.helpers_ns or math.isnan(here.busy):
        return placement
    cores = placement.ranks_per_host * here.cores_per_host / here.ranks_per_host
    return replace(placement, cores_per_host=cores)


def stretch(sharing: float, wanted: float, elsewhere: float) -> float:
    """Returns a rank's time at a core, queueing included, divided by the processor time it wants.

    Args:
        sharing: threads that share the core; between whole numbers the result is interpolated.
        wanted: processor time that a rank wants per step.
        elsewhere: the part of a step in which the rank does not want the core, in the same unit.
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
    """Returns the helper threads' processor time for the exchanges of the changed step."""
    recorded = sum(
        _weight(steps, ChangedCall(call, ranks_of(steps, call), number))
        for number, call in enumerate(steps.calls)
    )
    if not recorded:
        return 0.0
    return steps.helpers_ns * sum(_weight(steps, call) for call in changed.calls) / recorded


def _weight(steps: ShardedSteps, call: ChangedCall) -> float:
    """Returns a weight proportional to the processor time that a collective costs; 0 if unknown.

    The weight is the geometric mean of the numbers of messages and of bytes that a rank sends.
    """
    if call.call.op not in OPERATIONS:
        return 0.0
    done = work(call.call.op, call.ranks, steps.backend)
    return math.sqrt(done.steps * done.sent * call.call.size_bytes)
