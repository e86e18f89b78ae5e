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

#: The stacks of the optimizer's broadcasts contain a frame of this torch file.
_FILE = "/distributed/optim/zero_redundancy_optimizer.py:"
#: The cause is named only for at least this many calls in a step, of at most this mean size in
#: bytes. Larger calls spend most of their time on transfer.
_LEAST, _MEAN_BYTES = 8, 2**20


def _sent(calls: RankCalls) -> Mask:
    """Selects the broadcasts of updated parameters by their recorded stacks."""
    mask = calls.chosen(["broadcast"]) & calls.of_script
    numbers = [n for n, frames in calls.trace.stacks.items() if any(_FILE in f for f in frames)]
    if not numbers or not mask.any():
        return mask & False
    of_zero = np.isin(columns.stacks(calls.trace, calls.table.op_id), numbers)
    # Some steps may have no stacks. Their calls are recognised by group and size.
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
    """Predicts the saving of one call per sending rank; None if a call's cost is unknown."""
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
        "The stacks show that torch's ZeroRedundancyOptimizer issues broadcasts. A typical step "
        f"has at least {_LEAST} of these broadcasts, and at least two per sending rank. Their mean "
        f"size is at most {_MEAN_BYTES // 2**20} MiB. The training thread waits for these "
        f"broadcasts for at least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "Each rank updates its own part of the parameters, and then sends each updated parameter "
        "to the other ranks in a separate call. Each call has a latency. With "
        "`parameters_as_bucket_view=True`, the parameters of a rank lie in one buffer, and the "
        "rank sends this buffer in one call. `overlap_with_ddp=True` sends the parameters during "
        "the next backward pass, but needs a communication hook and works only with some "
        "optimizers."
    ),
    gain_note=(
        "The steps are replayed with one call of each rank. The time of this call is computed from "
        "the times and bytes of this run's calls. The gain is not predicted if all calls have "
        "nearly the same size, or if their times vary too much."
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
