"""The ranks take turns at a long piece of work of their own, and the others wait each time."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import FEW_STEPS, CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts
from commprof.analysis.causes.turns import LEAST_MS, long_steps, saving_without
from commprof.analysis.evidence import Figure
from commprof.text import in_ms, named_ranks
from commprof.trace.schema import PHASES
from commprof.units import ns_to_ms

#: Least waiting in the long steps, as a fraction of all time.
_SHARE = 0.05
#: Least number of long steps of each rank that takes turns, and largest share of the waiting that
#: one rank may cause.
_LEAST, _ONE_RANK = 2, 0.8
#: In at least this fraction of the long steps, only one rank works long.
_ALONE = 0.9
#: At least this fraction of the unusual work lies outside of forward, backward and updates: slow
#: compute inside of them has other causes.
_OUTSIDE = 0.8


def _rule(facts: Facts) -> Sighting | None:
    steps = long_steps(facts)
    if steps is None or steps.share(facts.step_ns) < _SHARE:
        return None
    by_rank, count = steps.cost_ns.sum(axis=1), steps.is_long.sum(axis=1)
    turns = np.flatnonzero((count >= _LEAST) & (by_rank > 0))
    if len(turns) < 2 or by_rank.max() > _ONE_RANK * by_rank.sum():
        return None
    together = steps.is_long.sum(axis=0)
    if (together == 1).sum() < _ALONE * (together > 0).sum():
        return None
    extra = np.maximum(steps.extra_ns[steps.is_long], 0.0).sum(axis=0)
    if extra[PHASES.index("other")] < _OUTSIDE * extra.sum():
        return None
    number = int((together > 0).sum())
    longer = ns_to_ms(float(np.median(steps.extra_ns[steps.is_long].sum(axis=1))))
    # If all ranks do this work in the same steps, the work still costs as much as the turns of the
    # costliest rank.
    others = [position for position in range(len(by_rank)) if position != int(np.argmax(by_rank))]
    ranks = [facts.seen.ranks[position] for position in turns.tolist()]
    return Sighting(
        f"{named_ranks(ranks).capitalize()} take turns at being late: in {number} of "
        f"{facts.steps} steps one of them works {in_ms(longer)} longer than it usually does, "
        "outside of forward, backward and updates, and the others wait. This happens if each rank "
        "collects garbage, writes a log or checkpoint, or clears a cache in steps of its own.",
        steps.share(facts.step_ns),
        saving_without(facts, steps, others),
    )


CAUSE = CatalogueCause(
    id="ranks-in-turns",
    title="The ranks take turns at long work of their own",
    needs=(Figure.SPLIT,),
    rule=_rule,
    looks_like=(
        f"Several ranks work far longer than they usually do, by at least {LEAST_MS:g} ms, each in "
        f"at least {_LEAST} steps of its own, outside of forward, backward and updates. The "
        "waiting of "
        f"the others takes at least {_SHARE:.0%} of all time. If the garbage collector or "
        "torch.compile explains the work, `garbage-in-turns` or `compiled-anew` is named instead."
    ),
    why=(
        "Every rank does some work now and then, such as collecting garbage, clearing a cache, "
        "or writing a log or its part of a checkpoint. If all ranks do it in the same step, it "
        "delays the job once. If each rank does it in a step of its own, it delays the job once "
        "per rank, because all ranks wait for each other. Tie such work to the index of the step."
    ),
    fix=(
        "if YOUR_STEP % 500 == 0:  # the same steps on every rank\n"
        "    YOUR_WORK()  # a log, a checkpoint, torch.cuda.empty_cache(), gc.collect()"
    ),
    source="https://github.com/pytorch/torchtitan/issues/696",
    worth=FEW_STEPS,
)
