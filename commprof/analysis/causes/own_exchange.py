"""The script exchanges the gradients itself, and no compute hides the exchange."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.edits.model_settings import wrapped_model
from commprof.analysis.causes.facts import Facts, Mask, RankCalls, at_line
from commprof.analysis.causes.pickled_objects import of_objects
from commprof.analysis.evidence import Figure
from commprof.text import counted, in_bytes, in_ms
from commprof.trace.exchanged import trained_by
from commprof.trace.schema import Phase

#: The training thread waits for the exchange for at least this fraction of the step.
_EXPOSED = 0.1
#: Bytes of a step's calls divided by the bytes of the gradients: at least ``_ALL``, at most ``1 /
#: _ALL``.
_ALL = 0.9
#: Other all-reduces of the same groups send less than this fraction of the gradients' bytes.
_OTHERS = 0.5
#: Paths of libraries that exchange gradients. Their users cannot wrap the model by DDP.
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/deepspeed/", "/apex/", "/megatron/")


def _own(calls: RankCalls) -> Mask:
    last = calls.last_begun(Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    mask: Mask = calls.chosen(("all_reduce",)) & calls.is_blocking & ~of_objects(calls)
    mask &= calls.in_backward | (calls.of_script & (last == Phase.BACKWARD))
    return mask


def _holds_gradients(calls: RankCalls, mask: Mask, world_size: int) -> bool:
    trained = trained_by(calls.trace.metadata)
    if trained is None or not trained.parameter_bytes or not mask.any():
        return False
    groups = np.unique(calls.table.group[mask])
    described = [calls.trace.groups.get(int(group)) for group in groups]
    if any(group is not None and group.size != world_size for group in described):
        return False  # the ranks may have different parameters, so DDP would be wrong
    others = calls.chosen(("all_reduce",)) & ~mask & np.isin(calls.table.group, groups)
    if calls.size_bytes[others].sum() >= _OTHERS * calls.size_bytes[mask].sum():
        return False  # the calls may be of layers, as in tensor parallelism
    steps = len(calls.begin_ns)
    sent = float(np.median(np.bincount(calls.step[mask], calls.size_bytes[mask], minlength=steps)))
    return _ALL <= sent / trained.parameter_bytes <= 1 / _ALL


def _rule(facts: Facts) -> Sighting | None:
    if facts.ddp_models or facts.world.communication.sharding is not None:
        return None
    of_ranks = facts.on_all_ranks(
        lambda calls: (calls, _own(calls)),
        lambda of_rank: _holds_gradients(*of_rank, facts.world.world_size),
    )
    if not of_ranks:
        return None
    exposed = [facts.transferring_ns(position, mask) for position, (_, mask) in enumerate(of_ranks)]
    share = facts.share(exposed)
    first, mask = of_ranks[0]
    line = first.line(mask)
    if not share >= _EXPOSED or any(part in line for part in _LIBRARIES):
        return None
    ms = facts.per_step_ms(exposed)
    inside = bool(first.in_backward[mask].mean() > 0.5)
    when = (
        "while backward waits for each call"
        if inside
        else "after backward, when no compute is left to hide the calls"
    )
    return Sighting(
        f"The script exchanges {in_bytes(float(first.size_bytes[mask].sum()) / facts.steps)} of "
        f"gradients in {counted(round(first.per_step(mask)), 'all_reduce call')} per step"
        f"{at_line(line)}, {when}. Each step waits {in_ms(ms)} for the calls. DDP sends gradients "
        "in buckets while backward computes the remaining gradients.",
        share,
        line=line,
    )


CAUSE = CatalogueCause(
    id="own-exchange",
    title="The script exchanges the gradients itself, with no compute to hide the exchange",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "The job uses neither DDP nor FSDP. Between the start of backward and the update, the "
        "script itself issues all-reduces over all ranks, and the training thread waits for each "
        "of them. They send about as many bytes as the trained parameters have (at least "
        f"{_ALL:.0%}), and their transfer takes at least {_EXPOSED:.0%} of the step. The other "
        f"all-reduces of a step send less than {_OTHERS:.0%} of these bytes: more would be a sign "
        "of tensor parallelism."
    ),
    why=(
        "If the script reduces the gradients after backward, the GPU computes nothing during the "
        "reduction. A tensor that joins all gradients also takes as much memory as all gradients. "
        "If a hook on each parameter reduces and waits, it stops backward once per parameter. "
        "DistributedDataParallel computes the same sums, but reduces buckets of gradients in the "
        "background while backward computes the next gradients."
    ),
    gain_note=(
        "Not predicted, because this run does not show how much the exchange and backward slow "
        "each other down when they overlap. The fix saves at most the given share of the step."
    ),
    fix=(
        "model = torch.nn.parallel.DistributedDataParallel(YOUR_MODEL)\n"
        "output = model(YOUR_BATCH)\n"
        "# call the model itself: DDP exchanges nothing after model.module(...)\n"
        "# delete your own reduction of the gradients, with its division; DDP takes the\n"
        "# mean: if you did not divide, multiply the loss by the number of ranks"
    ),
    edit=lambda facts, _: _wrapped(facts),
    source="https://github.com/leggedrobotics/rsl_rl/issues/163",
)


def _wrapped(facts: Facts) -> str:
    code = wrapped_model(facts.script)
    return code and (
        f"{code}\n# delete your own reduction of the gradients, with its division (DDP takes\n"
        "# the mean); call the model itself, not its methods, or nothing is exchanged"
    )
