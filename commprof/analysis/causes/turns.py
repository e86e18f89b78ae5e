"""Steps in which one rank works far longer than usual, and the other ranks wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commprof.analysis.causes.facts import Facts, Floats, Mask, once
from commprof.analysis.late.stragglers import of_ranks
from commprof.analysis.named_cause import Saving
from commprof.analysis.replay.gains import saved_by
from commprof.analysis.replay.program import replayed_steps
from commprof.analysis.step.exposure import NO_CORE
from commprof.stats.intervals import robust_deviation
from commprof.trace.schema import PHASES
from commprof.units import ms_to_ns

#: A step is long if the rank's work exceeds its median by all three amounts: robust deviations, a
#: fraction of the median step, and a time in ms. In steps of a few ms, the host alone causes
#: outliers.
_DEVIATIONS, _OF_STEP, LEAST_MS = 6.0, 0.2, 5.0
#: Least number of measured steps.
_STEPS = 8


@dataclass(frozen=True)
class LongSteps:
    """Steps in which a rank worked far longer than usual. Arrays are ``[rank, step]``."""

    #: True if the rank worked far longer than usual in the step.
    is_long: Mask
    #: Mean time for which the other ranks waited for this rank; 0 if the step is not long. Waiting
    #: that a lack of cores caused is left out.
    cost_ns: Floats
    #: Work beyond the rank's median, as ``[rank, step, phase]``; phases are in the order of
    #: ``PHASES``.
    extra_ns: Floats

    def share(self, step_ns: float) -> float:
        """Returns the waiting in the long steps as a fraction of all measured time."""
        return float(self.cost_ns.sum()) / (self.cost_ns.shape[1] * step_ns)

    def phase(self, rank: int) -> str:
        """Returns the phase with most of the unusual work of the rank in row ``rank``."""
        extra = self.extra_ns[rank][self.is_long[rank]].sum(axis=0)
        return PHASES[int(np.argmax(extra))]


def saving_without(
    facts: Facts, steps: LongSteps, places: Sequence[int], is_divided: bool = False
) -> Saving:
    """Returns the saving if some ranks did only their usual work in their long steps.

    If no replay is possible, returns the waiting of the other ranks in these steps. This waiting
    includes the waiting of a usual step.

    Args:
        facts: facts about the job at one world size.
        steps: result of :func:`long_steps`.
        places: indices of the ranks.
        is_divided: True if all ranks share the extra work equally; False if no rank does it.
    """
    recorded = facts.replays
    base = None if recorded is None else recorded.step_ns()
    if recorded is not None and base is not None:
        chosen = np.concatenate(replayed_steps(facts.seen))
        used = np.isin(facts.seen.measured.step, chosen)
        own_ns = recorded.own_ns.copy()
        divided_ns = np.zeros(len(chosen))
        for position in places:
            is_long = steps.is_long[position][used]
            if is_long.any() and not is_long.all():
                usual = np.median(own_ns[position][~is_long], axis=0)
                divided_ns[is_long] += np.maximum(own_ns[position][is_long] - usual, 0.0).sum(
                    axis=1
                )
                own_ns[position][is_long] = usual
        changed = recorded.step_ns(own_ns)
        if changed is not None:
            # All ranks do their parts of the work at the same time, so no rank waits for another.
            changed = changed + is_divided * divided_ns / facts.world.world_size
            return Saving(recorded.saved(base, changed), "replayed")
    wall = facts.seen.measured.table("wall").mean(axis=0)
    cost = steps.cost_ns[list(places)].sum(axis=0)
    cost = cost * (1 - 1 / facts.world.world_size) if is_divided else cost
    return Saving(saved_by(wall, np.maximum(wall - cost, 0.0)), "measured")


@once
def long_steps(facts: Facts) -> LongSteps | None:
    """Finds the long steps of each rank; None if there are too few ranks or steps."""
    measured, ranks = facts.seen.measured, facts.seen.ranks
    if len(ranks) < 2 or facts.steps < _STEPS:
        return None
    # [rank, step, phase]; time without a core is the machine's delay, not the rank's work.
    work_ns = measured.column(lambda part: np.swapaxes(part.work_ns, 1, 2))
    work = np.maximum(work_ns - measured.column(lambda part: part.host.run_delay_ns), 0.0)
    extra = work - np.median(work, axis=1, keepdims=True)
    own = work.sum(axis=2)
    beyond = own - np.median(own, axis=1, keepdims=True)
    limit = np.array([_DEVIATIONS * robust_deviation(row) for row in own])
    typical = float(np.median(measured.table("wall")))
    least = max(_OF_STEP * typical, ms_to_ns(LEAST_MS))
    is_long = beyond > np.maximum(limit, least)[:, np.newaxis]
    # [step, rank]: time for which all ranks together waited for this rank. A table for each
    # waiting rank would take memory for all pairs of ranks.
    waited = of_ranks(measured.caused_in_all(np.ones(facts.steps, dtype=np.bool_)))
    cost = np.zeros(is_long.shape)
    for position, rank in enumerate(ranks):
        own_ns = measured[position].caused.for_rank_ns(rank, without=NO_CORE)
        cost[position] = (waited[:, rank] - own_ns) / (len(ranks) - 1) * is_long[position]
    return LongSteps(is_long, cost, extra)
