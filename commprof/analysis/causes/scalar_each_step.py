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
#: In at most this fraction of the steps, ranks exchange anything else.
_OTHERS = 1 / 3
#: Least number of steps in which ranks exchange anything else.
_LEAST = 2


def _lone(calls: RankCalls) -> Mask:
    """Returns a mask of the small calls in training steps that have no other calls.

    A training step has a backward pass and an update. No call is chosen if too few or too many
    steps have other calls.
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
        f"In {lone} of {facts.steps} steps, the ranks exchange only numbers, in {per_step} per "
        f"step{at_line(line)}. This takes {in_ms(facts.per_step_ms(blocked))} per step, and all "
        "ranks wait for the slowest rank in every step. The ranks exchange weights or gradients in "
        "few steps only.",
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
        f"At least {_LONE:.0%} of the steps have a backward pass and an update, but only calls of "
        f"at most 256 bytes outside of forward and backward. At least {_LEAST} steps, and at most "
        "a third of the steps, have other calls too. In the steps without other calls, the ranks "
        f"wait for the small calls for at least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "With Local SGD and DiLoCo, each rank makes many updates before the ranks average their "
        "weights. Neither the network nor a slow rank then delays every step. But if the ranks "
        "exchange a flag or a loss in every step, they again wait for each other in every step. "
        "Exchange such numbers only in the steps that average weights."
    ),
    fix=(
        "if YOUR_STEP % YOUR_INTERVAL == 0:  # the steps that average weights\n"
        "    torch.distributed.all_reduce(YOUR_TENSOR)  # a flag, or sums for a log"
    ),
    source="https://github.com/rwth-i6/returnn/pull/1727",
)
