"""FSDP gathers the same parameters again in every micro batch of an update.

By default, FSDP2 frees the gathered parameters after each backward pass.
"""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.edits.model_settings import sharded_model
from commprof.analysis.causes.edits.training_loop import last_pass_only
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
from commprof.analysis.causes.passes_of_updates import lines_of_passes, pass_numbers
from commprof.analysis.causes.sharded_library import fsdp_of, is_flat, library, unit_gathers
from commprof.analysis.evidence import Figure
from commprof.text import in_bytes, in_ms
from commprof.trace import columns
from commprof.trace.schema import Phase

#: At least this fraction of the updates must follow the usual number of forward and backward
#: passes.
_USUAL = 0.9
#: The later passes of an update must gather as many bytes as its first pass, within this fraction.
_ALIKE = 0.1
_SETTER = "set_reshard_after_backward"
_FIX_OF_FSDP1 = (
    "import contextlib\n\n"
    "# with sharding_strategy=ShardingStrategy.SHARD_GRAD_OP: FSDP1 then keeps its\n"
    "# parameters after a pass in no_sync()\n"
    "for i, batch in enumerate(YOUR_MICRO_BATCHES):\n"
    "    last = i == len(YOUR_MICRO_BATCHES) - 1\n"
    "    with contextlib.nullcontext() if last else YOUR_MODEL.no_sync():\n"
    "        YOUR_LOSS(YOUR_MODEL(batch)).backward()"
)


def _is_accumulating(calls: RankCalls) -> bool:
    """True if most updates follow the same number, at least two, of forward and backward passes."""
    phases, steps = columns.phases(calls.trace), columns.steps(calls.trace)
    mine = phases.thread == steps.thread[0]
    mine &= (phases.begin_ns >= calls.begin_ns[0]) & (phases.begin_ns < calls.end_ns[-1])
    update, *passes = (
        np.sort(phases.begin_ns[mine & (phases.key == key)])
        for key in (Phase.OPTIMIZER, Phase.FORWARD, Phase.BACKWARD)
    )
    if not len(update):
        return False
    forward, backward = (
        np.bincount(np.searchsorted(update, begun), minlength=len(update) + 1)[: len(update)]
        for begun in passes
    )
    usual = int(np.median(backward))
    is_usual = (backward == usual) & (forward == usual)
    return usual >= 2 and bool(is_usual.mean() >= _USUAL)


def _needless(calls: RankCalls) -> tuple[Mask, Mask]:
    """Returns two masks of gathers in forward: in the first pass of an update, and in later passes.

    Updates with a single pass are left out.
    """
    since, whole = pass_numbers(calls)
    forward = unit_gathers(calls) & ~calls.in_backward & (calls.phase == Phase.FORWARD)
    first: Mask = forward & (since == 0) & (whole >= 2)
    again: Mask = forward & (since >= 1) & (since < whole)
    return first, again


def _same_units(calls: RankCalls, first: Mask, again: Mask) -> bool:
    """True if the later passes of an update are of the same model as the first pass.

    The passes must gather as many bytes, and the same lines of code must call the model.
    """
    _, whole = pass_numbers(calls)
    passes = float(np.median(whole[first])) - 1 if first.any() else 0.0
    sent, again_sent = (float(calls.size_bytes[mask].sum()) for mask in (first, again))
    if not passes or abs(again_sent - passes * sent) > _ALIKE * passes * sent:
        return False
    lines, later = lines_of_passes(calls)
    return bool(later) and later <= lines


def _rule(facts: Facts) -> Sighting | None:
    if fsdp_of(facts) is None or facts.on_device:  # the memory of a device is not recorded
        return None
    of_ranks = facts.on_all_ranks(
        lambda calls: (calls, *_needless(calls)) if _is_accumulating(calls) else None,
        lambda seen: seen is not None and _same_units(*seen),
    )
    masks = [seen[2] for seen in of_ranks if seen is not None]
    if not masks:
        return None
    exposed = [
        float(calls.exposed_ns[mask].sum()) for calls, mask in zip(facts.ranks, masks, strict=True)
    ]
    share = facts.share(exposed)
    first = facts.first
    passes = round(float(np.median(pass_numbers(first)[1][masks[0]])))
    whole = float(first.size_bytes[masks[0]].sum()) / facts.steps / (passes - 1)
    if not share >= LEAST_WAITED or not has_memory(facts, whole):
        return None
    saving = saving_without(facts, [_with_copies(facts, *of_rank) for of_rank in enumerate(masks)])
    if not is_worth_memory(share, saving):
        return None
    return Sighting(
        f"{library(facts)} gathers the model in each of the {passes} micro batches of an update, "
        "although the weights change only after the last one. The gathers after the first micro "
        f"batch take {in_ms(facts.per_step_ms(exposed))} of the step. There is memory to keep the "
        f"whole model, {in_bytes(whole)} per rank.",
        share,
        saving,
    )


def _with_copies(facts: Facts, position: int, mask: Mask) -> Removed:
    calls = facts.ranks[position]
    noted = Removed.with_noted(calls, mask, facts.noted_ns(position, "fsdp_forward_gathers"))
    return noted or Removed.only(mask)


CAUSE = CatalogueCause(
    id="fsdp-gathers-each-pass",
    title="FSDP gathers the model again for every micro batch, though there is memory to keep it",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "Nine of ten updates follow the same number of backward passes, at least two, and as many "
        "forward passes. Each forward pass after the first gathers as many bytes as the first, "
        f"within {_ALIKE:.0%}, and the same lines of the script call the model. Waiting for these "
        f"later gathers takes at least {LARGE:.0%} of the step, or at least {LEAST_WAITED:.0%} if "
        f"the fix saves at least {LARGE:.0%} of the step (low end of the interval). The gathered "
        f"models of all ranks together would take at most {OF_MEMORY:.0%} of a host's "
        "memory. The cause is not named for jobs on GPUs, because the memory of GPUs is not "
        "recorded."
    ),
    why=(
        "With gradient accumulation, the weights are the same in all micro batches of an update. "
        "By default, FSDP2 nevertheless frees the gathered parameters after each backward pass, "
        "and gathers them again in the next forward pass. If FSDP2 keeps the parameters until the "
        "last micro batch, it gathers them once per update. This takes memory for the parameters "
        "of the whole model. By default, FSDP2 also frees parameters after forward and gathers "
        "them again in backward: `set_reshard_after_forward(False)` avoids this."
    ),
    gain_note=(
        "The steps are replayed without these gathers and, if recorded, without FSDP2's copies for "
        "them. FSDP1's copies cannot be distinguished from its forward pass: with FSDP1, the fix "
        "saves somewhat more than predicted."
    ),
    fix=(
        "for i, batch in enumerate(YOUR_MICRO_BATCHES):\n"
        "    last = i == len(YOUR_MICRO_BATCHES) - 1\n"
        f"    YOUR_MODEL.{_SETTER}(last)\n"
        "    YOUR_LOSS(YOUR_MODEL(batch)).backward()"
    ),
    edit=lambda facts, _: (
        ""
        if is_flat(facts)
        else last_pass_only(facts.script, sharded_model(facts.script), setter=_SETTER)
    ),
    fix_of_fsdp1=_FIX_OF_FSDP1,
    source="https://github.com/pytorch/torchtune/issues/2402",
    worth=LEAST_SAVED,
)
