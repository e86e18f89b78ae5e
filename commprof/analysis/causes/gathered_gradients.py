"""Sharded gradients are gathered between backward and the update, to compute their norm, say."""

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
        f"Between backward and the update, each step gathers {gathers.what}, {gathers.how}. If "
        "the whole gradients are only used to compute their norm, one number per rank is "
        "enough; an optimizer that needs whole gradients, as Muon does, must gather them.",
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
        "FSDP shards the job's parameters. In more than half of the steps, all-gathers between "
        "backward and the update, other than those of the optimizer, send at least "
        f"{OF_SHARDS:.0%} of a rank's shards, and the all-gathers in forward do so too. The ranks "
        "wait in the all-gathers outside of forward for at least "
        f"{WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "`grad.full_tensor()`, or a gradient in `summon_full_params(with_grads=True)`, sends the "
        "gradients of the whole model to all ranks, and nothing overlaps this; each rank then "
        "holds them whole. To clip or to log the norm, each rank adds up the squares of its own "
        "shards, and one number is reduced: torch's `clip_grad_norm_` does so. Histograms and "
        "checks for NaN can be computed on the shards too. Updates that need whole matrices, as "
        "those of Muon and Shampoo, cannot: then keep the gathers."
    ),
    gain_note=(
        "The gain is computed as if only the norm were needed. The steps are replayed without "
        "these gathers, and of the work between one gather and the next, only the part for a "
        "rank's own shards remains. The reduction of the norm is not counted."
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
