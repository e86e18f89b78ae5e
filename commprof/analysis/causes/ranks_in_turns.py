"""The ranks do long work in different steps, and the other ranks wait each time."""

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
#: A rank counts as working in turns if it has at least this many long steps. Largest share of the
#: waiting that one rank may cause.
_LEAST, _ONE_RANK = 2, 0.8
#: In at least this fraction of the long steps, only one rank works longer than usual.
_ALONE = 0.9
#: At least this fraction of the unusual work must lie outside of all phases. Slow compute in a
#: phase has other causes.
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
    # After the fix, all ranks do this work in the same steps. The work then costs as much as that
    # of the costliest rank.
    others = [position for position in range(len(by_rank)) if position != int(np.argmax(by_rank))]
    ranks = [facts.seen.ranks[position] for position in turns.tolist()]
    return Sighting(
        f"{named_ranks(ranks).capitalize()} are late in different steps. In {number} of "
        f"{facts.steps} steps, one of them works {in_ms(longer)} longer than usual outside of "
        "forward, backward and updates, and the other ranks wait. This happens if the ranks "
        "collect garbage, write logs or checkpoints, or clear caches in different steps.",
        steps.share(facts.step_ns),
        saving_without(facts, steps, others),
    )


CAUSE = CatalogueCause(
    id="ranks-in-turns",
    title="The ranks do long work in different steps",
    needs=(Figure.SPLIT,),
    rule=_rule,
    looks_like=(
        f"Several ranks work far longer than usual, by at least {LEAST_MS:g} ms, in at least "
        f"{_LEAST} steps per rank. These are different steps on each rank. The extra work lies "
        f"outside of forward, backward and updates. The other ranks wait for at least {_SHARE:.0%} "
        "of all time. If the garbage collector or torch.compile explains the work, "
        "`garbage-in-turns` or `compiled-anew` is named instead."
    ),
    why=(
        "Every rank does some work now and then, such as collecting garbage, clearing a cache, or "
        "writing a log or its part of a checkpoint. If all ranks do this work in the same step, it "
        "delays the job once. If each rank does it in a different step, it delays the job once per "
        "rank, because all ranks wait for each other. Let the index of the step decide when to do "
        "such work."
    ),
    fix=(
        "if YOUR_STEP % 500 == 0:  # the same steps on every rank\n"
        "    YOUR_WORK()  # a log, a checkpoint, torch.cuda.empty_cache(), gc.collect()"
    ),
    source="https://github.com/pytorch/torchtitan/issues/696",
    worth=FEW_STEPS,
)
