"""Sharded gradients are gathered between backward and the update, for example for their norm."""

from __future__ import annotations

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts, Mask, RankCalls
from commprof.analysis.causes.gathered_shards import OF_SHARDS, after_backward, gathered_shards
from commprof.analysis.evidence import Figure


def _before_update(calls: RankCalls) -> Mask:
    return after_backward(calls) & calls.before_update


def _rule(facts: Facts) -> Sighting | None:
    gathers = gathered_shards(facts, _before_update)
    if gathers is None:
        return None
    return Sighting(
        f"Between backward and the update, each step gathers {gathers.what}, {gathers.how}. If the "
        "script only computes the norm of the gradients, the ranks need to exchange just one "
        "number each. An optimizer that needs whole gradients, such as Muon, must gather them.",
        gathers.share,
        gathers.saving,
        gathers.line,
    )


CAUSE = CatalogueCause(
    id="gathered-gradients",
    title="Sharded gradients are gathered in every step, for example for their norm",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "FSDP shards the job's parameters. In more than half of the steps, the script's "
        f"all-gathers between backward and the update send at least {OF_SHARDS:.0%} of a rank's "
        "shards. All-gathers of the optimizer do not count. The all-gathers in forward also send "
        "at least this fraction. The ranks wait for the script's all-gathers for at least "
        f"{WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "`grad.full_tensor()` and `summon_full_params(with_grads=True)` send the gradients of the "
        "whole model to all ranks, and no compute hides this. Each rank then needs memory for all "
        "gradients. The norm does not need whole gradients: with torch's `clip_grad_norm_`, each "
        "rank adds up the squares of its own shards, and the ranks reduce one number. Histograms "
        "and checks for NaN can use the shards too. Keep the gathers for optimizers that need "
        "whole matrices, such as Muon and Shampoo."
    ),
    gain_note=(
        "The gain is computed as if the script needed only the norm. The steps are replayed "
        "without these gathers. Of the work between the gathers, only a rank's own part remains. "
        "The reduction of the norm is not counted."
    ),
    fix=(
        "# if the whole gradients serve only for their norm\n"
        "parameters = list(YOUR_MODEL.parameters())\n"
        "norm = torch.nn.utils.clip_grad_norm_(parameters, YOUR_LIMIT)  # of the shards\n"
        "if YOUR_STEP % 100 == 0:  # what only a log needs\n"
        "    norm = norm.full_tensor().item()"
    ),
    fix_of_fsdp1=(
        "# if the whole gradients serve only for their norm\n"
        "norm = YOUR_MODEL.clip_grad_norm_(YOUR_LIMIT)  # a method of FSDP1"
    ),
    source="https://github.com/huggingface/transformers/pull/46113",
)
