"""All sharded parameters are gathered in every step, outside of forward and backward."""

from __future__ import annotations

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts, Mask, RankCalls
from commprof.analysis.causes.gathered_shards import OF_SHARDS, after_backward, gathered_shards
from commprof.analysis.evidence import Figure


def _after_update(calls: RankCalls) -> Mask:
    return after_backward(calls) & ~calls.before_update


def _rule(facts: Facts) -> Sighting | None:
    gathers = gathered_shards(facts, _after_update)
    if gathers is None:
        return None
    return Sighting(
        f"After backward, each step gathers {gathers.what} of parameters, {gathers.how}. If this "
        "is done to average the weights, each rank can average its own shards instead.",
        gathers.share,
        gathers.saving,
        gathers.line,
    )


CAUSE = CatalogueCause(
    id="gathered-parameters",
    title="Sharded parameters are gathered in every step, for example to average the weights",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "FSDP shards the job's parameters. In more than half of the steps, the script's "
        f"all-gathers between the update and the next forward pass send at least {OF_SHARDS:.0%} "
        "of a rank's shards. All-gathers of the optimizer do not count. The all-gathers in forward "
        "also send at least this fraction. The ranks wait for the script's all-gathers for at "
        f"least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "`full_tensor()`, `summon_full_params` and a full state dict send the whole model to all "
        "ranks, and no compute hides this. An exponential moving average of the weights does not "
        "need the whole model: each rank can average its own shards, with a fraction of the "
        "memory. Gather the average only to save it. An engine that generates with the new weights "
        "needs whole weights, but only once per round of generation."
    ),
    gain_note=(
        "The steps are replayed without these gathers and without the other work of "
        "`full_tensor()`. Of the work between the gathers, only a rank's own part remains. The "
        "work after the last gather stays in the replay, because its end is not known."
    ),
    fix=(
        "# YOUR_AVERAGES = [p.detach().to_local().clone()\n"
        "#                  for p in YOUR_MODEL.parameters()]\n"
        "with torch.no_grad():\n"
        "    for average, parameter in zip(YOUR_AVERAGES, YOUR_MODEL.parameters()):\n"
        "        average.lerp_(parameter.to_local(), 1 - YOUR_DECAY)"
    ),
    fix_of_fsdp1=(
        "# YOUR_AVERAGES = [p.detach().clone() for p in YOUR_MODEL.parameters()]\n"
        "with torch.no_grad():  # not within summon_full_params: these are shards\n"
        "    for average, parameter in zip(YOUR_AVERAGES, YOUR_MODEL.parameters()):\n"
        "        average.lerp_(parameter, 1 - YOUR_DECAY)"
    ),
    source="https://github.com/thu-ml/Causal-Forcing/pull/20",
)
