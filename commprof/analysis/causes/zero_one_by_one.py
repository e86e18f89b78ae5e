"""ZeroRedundancyOptimizer sends the updated parameters one by one."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.edits.model_settings import with_settings
from commprof.analysis.causes.facts import Facts, Floats, Mask, RankCalls
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.causes.joined_calls import call_cost
from commprof.analysis.evidence import Figure
from commprof.analysis.named_cause import Saving
from commprof.text import counted, in_bytes, in_ms
from commprof.trace import columns

#: File of torch whose frame is in the stacks of these calls.
_FILE = "/distributed/optim/zero_redundancy_optimizer.py:"
#: Least number of calls in a step, and their largest mean size in bytes: larger calls spend most
#: of their time on transfer.
_LEAST, _MEAN_BYTES = 8, 2**20


def _sent(calls: RankCalls) -> Mask:
    """Broadcasts of updated parameters, recognised by the stacks that were recorded."""
    mask = calls.chosen(["broadcast"]) & calls.of_script
    numbers = [n for n, frames in calls.trace.stacks.items() if any(_FILE in f for f in frames)]
    if not numbers or not mask.any():
        return mask & False
    of_zero = np.isin(columns.stacks(calls.trace, calls.table.op_id), numbers)
    # Stacks may be recorded in some steps only. Calls of other steps are recognised by group and
    # size.
    keys = [
        (int(g), int(size)) for g, size in zip(calls.table.group, calls.size_bytes, strict=True)
    ]
    wanted = {key for key, is_of_zero in zip(keys, of_zero, strict=True) if is_of_zero}
    alike: Mask = np.array([key in wanted for key in keys], dtype=bool)
    return mask & alike


def _rule(facts: Facts) -> Sighting | None:
    number = facts.first.per_step(_sent(facts.first))
    if number < _LEAST:  # checked first, because it takes long to examine the calls of all ranks
        return None
    masks = [_sent(calls) for calls in facts.ranks]
    if min(c.per_step(mask) for c, mask in zip(facts.ranks, masks, strict=True)) < _LEAST:
        return None
    first, mask = facts.first, masks[0]
    mean = float(first.size_bytes[mask].mean())
    exposed = [float(c.exposed_ns[m].sum()) for c, m in zip(facts.ranks, masks, strict=True)]
    share = facts.share(exposed)
    joined = len(np.unique(first.table.peer[mask]))
    if mean > _MEAN_BYTES or number < 2 * joined or not share >= WORTH_NAMING:
        return None
    ms = facts.per_step_ms(exposed)
    return Sighting(
        "After each update, ZeroRedundancyOptimizer sends every parameter in a broadcast of its "
        f"own: {counted(round(number), 'call')} per step ({in_bytes(mean)} on average). The step "
        f"waits {in_ms(ms)} for them. With parameters_as_bucket_view=True each rank sends its part "
        f"in one call: {counted(joined, 'call')} in all.",
        share,
        _saving(facts, masks),
        first.line(mask),
    )


def _saving(facts: Facts, masks: list[Mask]) -> Saving | None:
    """Replays the steps with one call for each rank's part; None if a call's cost is not known."""
    cost = call_cost(facts, masks)
    if cost is None:
        return None
    removed, changed = [], []
    for calls, mask in zip(facts.ranks, masks, strict=True):
        rows = np.flatnonzero(mask)
        keys = np.stack([calls.step[rows], calls.table.peer[rows]], axis=1)
        _, part = np.unique(keys, axis=0, return_inverse=True)
        part = part.reshape(-1)
        last = np.zeros(part.max(initial=-1) + 1, dtype=np.int64)
        last[part] = rows
        size = np.zeros(len(last), dtype=np.int64)
        np.add.at(size, part, calls.size_bytes[rows])
        gone = mask.copy()
        gone[last] = False
        transfer: Floats = np.full(len(mask), np.nan)
        transfer[last] = cost.of_ns(size)
        removed.append(Removed.only(gone, bytes_remain=True))
        changed.append(transfer)
    return saving_without(facts, removed, changed)


CAUSE = CatalogueCause(
    id="zero-one-by-one",
    title="ZeroRedundancyOptimizer sends the updated parameters one by one",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "The stacks show that torch's ZeroRedundancyOptimizer issues broadcasts. In a typical step "
        f"there are at least {_LEAST} of them, and at least two per sending rank, of at most "
        f"{_MEAN_BYTES // 2**20} MiB on average. The training thread waits for them for at least "
        f"{WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "The optimizer updates a part of the parameters on each rank, and then sends each updated "
        "parameter to the others in a call of its own, which pays the latency of a call. With "
        "`parameters_as_bucket_view=True` the parameters of a rank lie in one buffer, and the rank "
        "sends it in one call. `overlap_with_ddp=True` sends during the next backward pass, but "
        "needs a communication hook and works only with some optimizers."
    ),
    gain_note=(
        "The steps are replayed with one call of each rank. The time of this call is computed from "
        "the times and bytes of this run's calls. Not predicted if all calls have nearly one size, "
        "or if their times vary too much."
    ),
    fix=(
        "from torch.distributed.optim import ZeroRedundancyOptimizer\n\n"
        "optimizer = ZeroRedundancyOptimizer(\n"
        "    YOUR_MODEL.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True\n"
        ")"
    ),
    edit=lambda facts, _: with_settings(
        facts.script, ("ZeroRedundancyOptimizer",), parameters_as_bucket_view=True
    ),
    source="https://github.com/facebookresearch/fairscale/issues/117",
)
