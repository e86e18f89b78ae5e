"""FSDP gathers every unit again in backward, though there is memory to keep the units."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.edits.model_settings import FSDP1, after_sharding, with_settings
from commprof.analysis.causes.edits.script import Code
from commprof.analysis.causes.facts import Facts, Mask, RankCalls
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.causes.memory_for_gathers import (
    LARGE,
    LEAST_SAVED,
    LEAST_WAITED,
    OF_MEMORY,
    has_memory,
    is_worth_memory,
)
from commprof.analysis.causes.sharded_library import fsdp_of, is_flat, library, unit_gathers
from commprof.analysis.evidence import Figure
from commprof.text import in_bytes, in_ms

_FIX_OF_FSDP1 = (
    "from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy\n\n"
    "# with your other settings:\n"
    "options = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)\n"
    'options["device_id"] = torch.device(YOUR_DEVICE)\n'
    "model = FullyShardedDataParallel(YOUR_MODEL, **options)"
)


def _again(calls: RankCalls) -> Mask:
    return unit_gathers(calls) & calls.in_backward


def _with_copies(facts: Facts, position: int, mask: Mask) -> Removed:
    """Removes the gathers, and FSDP's copies before and after them.

    If the copies were not recorded, the time between the previous call and the gather stands for
    them. The model may also compute in this time, so at most the median of these times is removed.
    """
    calls = facts.ranks[position]
    table = calls.table
    noted = Removed.with_noted(calls, mask, facts.noted_ns(position, "fsdp_backward_gathers"))
    if noted is not None:
        return noted
    rows = np.flatnonzero(mask)
    rows = rows[rows > 0]
    rows = rows[table.graph_task[rows - 1] == table.graph_task[rows]]
    if not len(rows):
        return Removed.only(mask)
    done_ns = np.maximum(calls.wait_end_ns[rows - 1], table.issue_ns[rows - 1])
    gap_ns = np.maximum(table.issue_ns[rows] - done_ns, 0)
    gap_ns = np.minimum(gap_ns, int(np.median(gap_ns)))
    return Removed(mask, table.issue_ns[rows] - gap_ns, table.issue_ns[rows])


def _rule(facts: Facts) -> Sighting | None:
    sharding = fsdp_of(facts)
    if sharding is None or facts.on_device:  # the memory of a device is not recorded
        return None
    masks = [_again(calls) for calls in facts.ranks]
    exposed = [
        float(calls.exposed_ns[mask].sum()) for calls, mask in zip(facts.ranks, masks, strict=True)
    ]
    share = facts.share(exposed)
    whole = _model_bytes(facts.first)
    if not share >= LEAST_WAITED or not has_memory(facts, whole):
        return None
    saving = saving_without(facts, [_with_copies(facts, *of_rank) for of_rank in enumerate(masks)])
    if not is_worth_memory(share, saving):
        return None
    ms = facts.per_step_ms(exposed)
    return Sighting(
        f"{library(facts)} gathers each unit twice per pass, in forward and again in backward. The "
        f"step waits {in_ms(ms)} for the gathers in backward. There is memory for the whole model, "
        f"{in_bytes(whole)} per rank.",
        share,
        saving,
    )


def _model_bytes(calls: RankCalls) -> int:
    first = unit_gathers(calls) & ~calls.in_backward & (calls.step == 0)
    # With several micro batches, each unit is gathered once per backward pass.
    tasks = np.unique(calls.table.graph_task[_again(calls) & (calls.step == 0)])
    return int(calls.size_bytes[first].sum()) // max(1, len(tasks))


def _edit(facts: Facts) -> str:
    script = facts.script
    if is_flat(facts):
        strategy = Code("torch.distributed.fsdp.ShardingStrategy.SHARD_GRAD_OP")
        return with_settings(script, FSDP1, sharding_strategy=strategy)
    return after_sharding(script, "set_reshard_after_forward(False)")


CAUSE = CatalogueCause(
    id="fsdp-gathers-twice",
    title="FSDP gathers every unit again in backward, though there is memory to keep them",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        f"The step waits for all-gathers in backward for at least {LARGE:.0%} of its length, or "
        f"for at least {LEAST_WAITED:.0%} if the fix saves at least {LARGE:.0%} of the step (low "
        "end of the interval). The gathered models of all ranks together would take at most "
        f"{OF_MEMORY:.0%} of a host's memory. The cause is not named for jobs on GPUs, because the "
        "memory of GPUs is not recorded."
    ),
    why=(
        "By default FSDP2 frees the gathered parameters of a unit after its forward pass, and "
        "gathers them again in backward. This saves memory for large models, but increases "
        "communication by half. A model that fits into memory can keep its gathered parameters "
        "until backward. Gradients and optimizer states stay sharded."
    ),
    gain_note=(
        "The steps are replayed without these gathers and without FSDP's copies before and after "
        "them. If the copies were not recorded, they are assumed to take the time between the "
        "previous call and the gather, but at most the median of these times."
    ),
    fix="YOUR_MODEL.set_reshard_after_forward(False)  # after fully_shard",
    edit=lambda facts, _: _edit(facts),
    fix_of_fsdp1=_FIX_OF_FSDP1,
    source="https://github.com/Robbyant/lingbot-vla/pull/50",
    worth=LEAST_SAVED,
)
