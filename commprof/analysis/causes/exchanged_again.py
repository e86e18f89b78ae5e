"""The script exchanges gradients, weights or averages that DDP already keeps equal on all ranks."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.ddp_small_buckets import buckets_of_ddp
from commprof.analysis.causes.edits.collective_calls import without_exchange
from commprof.analysis.causes.facts import Facts, Mask, RankCalls, at_line
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.causes.pickled_objects import of_objects
from commprof.analysis.evidence import Figure
from commprof.text import counted, in_bytes, in_ms
from commprof.trace.exchanged import trained_by
from commprof.trace.schema import OPS, Phase

_OPS = ("all_reduce", "broadcast")
#: The calls of a step must send as many bytes as DDP does, within this fraction.
_ALIKE = 0.05


def _again(calls: RankCalls, op: str) -> Mask:
    buckets = buckets_of_ddp(calls)
    mask: Mask = calls.chosen((op,)) & calls.of_script & calls.after_backward & ~of_objects(calls)
    mask &= calls.phase != Phase.OPTIMIZER  # a sharded optimizer must send its weights
    return mask & np.isin(calls.table.group, calls.table.group[buckets])


def _holds_model(calls: RankCalls, mask: Mask) -> bool:
    """True if DDP reduces a whole model in a typical step, and these calls send as many bytes."""
    trained = trained_by(calls.trace.metadata)
    if trained is None or not trained.ddp_bytes or not mask.any():
        return False
    if trained.outside_ddp_bytes >= (1 - _ALIKE) * trained.ddp_bytes:
        return False  # the calls may be for parameters outside of DDP
    broadcast = mask & (calls.table.op == OPS.index("broadcast"))
    if len(np.unique(calls.table.peer[broadcast])) > 1:
        return False  # each rank broadcasts the weights that it alone has updated
    model, steps = trained.ddp_bytes, len(calls.begin_ns)
    by_ddp, again = (
        np.median(np.bincount(calls.step[rows], calls.size_bytes[rows], minlength=steps))
        for rows in (buckets_of_ddp(calls), mask)
    )
    return bool(by_ddp >= (1 - _ALIKE) * model and abs(again - model) <= _ALIKE * model)


def _after_update(calls: RankCalls, mask: Mask) -> bool:
    last = calls.last_begun(Phase.OPTIMIZER, Phase.BACKWARD)[mask]
    return bool((last == Phase.OPTIMIZER).mean() > 0.5)


def _rule(facts: Facts) -> Sighting | None:
    if facts.ddp_models != 1:
        return None  # another model's weights may have this size
    for op in _OPS:
        of_ranks = facts.on_all_ranks(
            lambda calls, op=op: (calls, _again(calls, op)),  # type: ignore[misc]
            lambda of_rank: _holds_model(*of_rank),
        )
        if of_ranks:
            return _sighting(facts, of_ranks, op)
    return None


def _sighting(facts: Facts, of_ranks: list[tuple[RankCalls, Mask]], op: str) -> Sighting | None:
    blocked = [calls.blocked_ns(mask) for calls, mask in of_ranks]
    share = facts.share(blocked)
    if not share >= WORTH_NAMING:
        return None
    first, mask = of_ranks[0]
    line, ms = first.line(mask), facts.per_step_ms(blocked)
    size = in_bytes(float(first.size_bytes[mask].sum()) / facts.steps)
    calls = counted(round(first.per_step(mask)), f"{op} call")
    of_weights = op == "broadcast" or _after_update(first, mask)
    # If the calls reduce weights, the script may compute a moving average between the calls. This
    # work stays in the replay, because the script still needs the average.
    is_average = of_weights and op != "broadcast"
    what = (
        "DDP keeps the weights, and so their moving averages, equal on all ranks"
        if of_weights
        else "DDP has averaged the gradients by the end of backward"
    )
    return Sighting(
        f"{what}. Each step nevertheless sends {size} more, as much as the whole model, in "
        f"{calls}{at_line(line)}. This takes {in_ms(ms)}.",
        share,
        saving_without(
            facts, [Removed.whole(calls, mask, of_loop=not is_average) for calls, mask in of_ranks]
        ),
        line,
        op=op,
        lines=tuple(first.lines(mask)),
    )


def _edit(facts: Facts, sighting: Sighting) -> str:
    lines = sighting.lines
    return without_exchange(facts.script, lines[0], sighting.op) if len(lines) == 1 else ""


CAUSE = CatalogueCause(
    id="exchanged-again",
    title="The script exchanges again what DDP already keeps equal on all ranks",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "In a typical step, DDP reduces the gradients of one model. After backward, the script "
        f"itself reduces or broadcasts the same number of bytes, within {_ALIKE:.0%}, over the "
        f"same ranks. These calls take at least {WORTH_NAMING:.0%} of the step. The cause is not "
        "named if an optimizer issues the calls, if several ranks broadcast, or if the job also "
        "trains a model of this size outside of DDP."
    ),
    why=(
        "After DDP's backward pass, every rank has the mean of the gradients, so all ranks make "
        "the same update. A function that averages gradients again, left over from a script "
        "without DDP, averages equal numbers. The weights stay equal on all ranks, and so does a "
        "moving average of the weights. Neither needs to be exchanged. Weights that only one rank "
        "has changed, for example by loading a checkpoint, need to be sent once."
    ),
    gain_note=(
        "The steps are replayed without the calls and without the work between the calls, such as "
        "the division. If the calls reduce weights, the work between the calls stays in the "
        "replay, because it may compute an average of the weights."
    ),
    fix=(
        "# delete the loop that reduces gradients after backward (with its division\n"
        "# by the number of ranks), and any broadcast of weights after an update; if\n"
        "# the deleted loop did not divide its sum, gradients become smaller by a\n"
        "# factor of the number of ranks: adapt the learning rate\n"
        "YOUR_LOSS(YOUR_MODEL(YOUR_BATCH)).backward()\n"
        "YOUR_OPTIMIZER.step()"
    ),
    edit=_edit,
    source="https://github.com/kubeflow/pytorch-operator/issues/122",
)
