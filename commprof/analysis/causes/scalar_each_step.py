"""A job that exchanges gradients or weights in few steps exchanges a number in every step."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts, Mask, RankCalls, at_line
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.causes.scalars_one_by_one import small
from commprof.analysis.evidence import Figure
from commprof.text import counted, in_ms
from commprof.trace import columns
from commprof.trace.schema import OPS, Phase

#: In at least this fraction of the steps, ranks exchange single numbers and nothing else.
_LONE = 0.5
#: In at most this fraction of the steps, ranks exchange more.
_OTHERS = 1 / 3
#: Least number of steps in which ranks exchange more.
_LEAST = 2


def _lone(calls: RankCalls) -> Mask:
    """Small calls of steps that train, and in which the rank makes no other calls.

    A step trains if a backward pass and an update begin in it. Steps of gradient accumulation
    without an update are parts of a larger step, whose gradients the ranks exchange. No call is
    chosen if the rank makes other calls in fewer than ``_LEAST`` steps, or in more than
    ``_OTHERS`` of the steps.
    """
    steps = len(calls.begin_ns)
    mask, measured = small(calls), calls.step >= 0
    none: Mask = np.zeros(len(mask), dtype=bool)
    has_others = np.zeros(steps, dtype=bool)
    has_others[calls.step[measured & ~mask]] = True
    if not _LEAST <= has_others.sum() <= _OTHERS * steps:
        return none
    trains = _begins(calls, Phase.BACKWARD) & _begins(calls, Phase.OPTIMIZER)
    chosen: Mask = mask & (trains & ~has_others)[calls.step]
    return chosen if len(np.unique(calls.step[chosen])) >= _LONE * steps else none


def _begins(calls: RankCalls, phase: Phase) -> Mask:
    """For each measured step, whether a phase of this kind begins in it."""
    phases = columns.phases(calls.trace)
    begun = np.sort(phases.begin_ns[phases.key == phase])
    mask: Mask = np.searchsorted(begun, calls.end_ns) > np.searchsorted(begun, calls.begin_ns)
    return mask


def _rule(facts: Facts) -> Sighting | None:
    of_ranks = facts.on_all_ranks(
        lambda calls: (calls, _lone(calls)), lambda of_rank: bool(of_rank[1].any())
    )
    if not of_ranks:
        return None
    removed = [Removed.whole(calls, mask) for calls, mask in of_ranks]
    blocked = [float((spans.end_ns - spans.begin_ns).sum()) for spans in removed]
    share = facts.share(blocked)
    if not share >= WORTH_NAMING:
        return None
    first, mask = of_ranks[0]
    op = OPS[int(np.bincount(first.table.op[mask]).argmax())]
    line = first.line(mask)
    lone = len(np.unique(first.step[mask]))
    per_step = counted(round(float(mask.sum()) / lone), f"{op} call")
    return Sighting(
        f"In {lone} of {facts.steps} steps the ranks exchange nothing but numbers, in {per_step} "
        f"of each step{at_line(line)}, for {in_ms(facts.per_step_ms(blocked))} per step: they wait "
        "for the slowest rank in every step, though they exchange weights or gradients in few.",
        share,
        saving_without(facts, removed),
        line,
    )


CAUSE = CatalogueCause(
    id="scalar-each-step",
    title="Ranks that average weights in few steps exchange a number in every step",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        f"In at least {_LONE:.0%} of the steps a backward pass and an update begin, and the "
        "script makes calls of at most 256 bytes outside of forward and backward, but no other "
        f"calls. In at least {_LEAST} steps, and in at most a third of the steps, it makes other "
        "calls too. In the steps without other calls, the ranks wait in the small calls for at "
        f"least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "Local SGD and DiLoCo let each rank make many updates of its own before weights are "
        "averaged, so that neither the network nor a slow rank holds up each step. If a flag (such "
        "as whether every rank still has data) or a loss for a log is exchanged in every step, the "
        "ranks wait for one another in every step all the same. Exchange it in the steps that "
        "average."
    ),
    fix=(
        "if YOUR_STEP % YOUR_INTERVAL == 0:  # the steps that average weights\n"
        "    torch.distributed.all_reduce(YOUR_TENSOR)  # a flag, or sums for a log"
    ),
    source="https://github.com/rwth-i6/returnn/pull/1727",
)
