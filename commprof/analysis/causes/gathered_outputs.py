"""Outputs of all ranks are gathered after every backward pass, for example for a metric."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.edits.collective_calls import gathered_seldom
from commprof.analysis.causes.facts import Facts, Mask, RankCalls, at_line
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.causes.pickled_objects import of_objects
from commprof.analysis.evidence import Figure
from commprof.text import counted, in_bytes, in_ms
from commprof.trace import columns
from commprof.trace.exchanged import trained_by
from commprof.trace.schema import Phase

_OPS = ("all_gather", "all_gather_into_tensor", "gather")
#: Least number of bytes of a gather. Smaller gathers are of scalars, for which there are other
#: causes.
_LEAST_BYTES = 2**12
#: Largest number of gathers in a step. Steps with more gathers probably do not gather outputs.
_MOST = 3
#: Gathers of at least this fraction of the parameters' bytes are of parameters or gradients.
_OF_PARAMETERS = 0.5
#: Parts of the paths of optimizers that gather the updated parameters.
_OPTIMIZERS = ("/optim/", "/deepspeed/", "/apex/", "/megatron/")


def _gathers(calls: RankCalls) -> Mask:
    mask: Mask = calls.chosen(_OPS) & calls.of_script & ~of_objects(calls) & calls.after_backward
    mask &= calls.phase != Phase.OPTIMIZER
    return mask & (calls.size_bytes >= _LEAST_BYTES)


def _is_of_optimizer(calls: RankCalls, mask: Mask) -> bool:
    """True if an optimizer issues the calls, or if no stack shows who issues them."""
    numbers = np.unique(columns.stacks(calls.trace, calls.table.op_id)[mask])
    stacks = [calls.trace.stacks.get(int(number), ()) for number in numbers if number > 0]
    frames = [frame for stack in stacks for frame in stack]
    return not frames or any(part in frame for frame in frames for part in _OPTIMIZERS)


def _rule(facts: Facts) -> Sighting | None:
    if not facts.ddp_models and facts.world.communication.sharding is None:
        return None
    masks = [_gathers(calls) for calls in facts.ranks]
    first, mask = facts.first, masks[0]
    per_step = [calls.per_step(of_rank) for calls, of_rank in zip(facts.ranks, masks, strict=True)]
    if min(per_step) < 1 or max(per_step) > _MOST or _is_of_optimizer(first, mask):
        return None
    step_bytes = float(first.size_bytes[mask].sum()) / facts.steps
    trained = trained_by(first.trace.metadata)
    if trained is None or step_bytes >= _OF_PARAMETERS * trained.parameter_bytes:
        return None
    blocked = [c.blocked_ns(of_rank) for c, of_rank in zip(facts.ranks, masks, strict=True)]
    share = facts.share(blocked)
    if not share >= WORTH_NAMING:
        return None
    line = first.line(mask)
    ms = facts.per_step_ms(blocked)
    removed = [Removed.whole(c, of_rank) for c, of_rank in zip(facts.ranks, masks, strict=True)]
    return Sighting(
        f"After backward, each step gathers {in_bytes(step_bytes)} from all ranks in "
        f"{counted(round(per_step[0]), 'call')}{at_line(line)}, for {in_ms(ms)}. Training does not "
        "need these gathers, because the gradients are already computed. For a metric or a log, "
        "gather less often, or add up the values on each rank and reduce the sums.",
        share,
        saving_without(facts, removed),
        line,
        lines=tuple(first.lines(mask)),
    )


def _edit(facts: Facts, sighting: Sighting) -> str:
    lines = list(sighting.lines)
    return gathered_seldom(facts.script, lines[0], _OPS, every=100) if len(lines) == 1 else ""


CAUSE = CatalogueCause(
    id="gathered-outputs",
    title="Outputs of all ranks are gathered in every step, for example for a metric",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        f"DDP or FSDP exchanges the gradients. A typical step has one to {_MOST} gathers of at "
        f"least {_LEAST_BYTES // 2**10} KiB between a backward pass and the next forward pass. "
        "Recorded stacks show that no optimizer issues the gathers. They send less than "
        f"{_OF_PARAMETERS:.0%} of the parameters' bytes. The ranks wait for the gathers "
        f"for at least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "A metric over all ranks usually needs sums, not every output. Gathering the outputs sends "
        "them to every rank in every step, and training waits. Instead, add up numbers on each "
        "rank, such as right answers, samples and losses, and reduce the sums when they are "
        "logged. A metric that needs all outputs, such as the area under a curve, can gather them "
        "once per evaluation."
    ),
    fix=(
        "counts = torch.tensor([YOUR_RIGHT_ANSWERS, YOUR_SAMPLES], device=YOUR_DEVICE)\n"
        "if YOUR_STEP % 100 == 0:  # add up on each rank until then\n"
        "    torch.distributed.all_reduce(counts)"
    ),
    edit=_edit,
    source="https://github.com/huggingface/accelerate/issues/226",
)
