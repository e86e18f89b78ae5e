"""Whether all ranks and world sizes trained the same model, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from commprof.analysis.checks.loss_trend import loss_trend
from commprof.analysis.checks.losses import LossAgreement, loss_agreement, must_agree
from commprof.analysis.world import WorldResult
from commprof.text import counted


def loss_remarks(context: Mapping[str, Any], worlds: Sequence[WorldResult]) -> list[str]:
    """First the weights of each world size, then the loss curves of all."""
    found = [
        f"At {world.world_size} ranks the weights of {_ranks(world.weights_differ)} are not those "
        "of the others after training, and must be equal to the last bit: a synchronisation was "
        "left out, or ranks did not train alike."
        for world in worlds
        if world.weights_differ
    ]
    found += [text for world in worlds for text in _trend(world)]
    agreement = loss_agreement(context, worlds)
    if agreement is not None:
        found.append(_about(agreement))
    elif must_agree(context, worlds) and context.get("split_dependence"):
        found.append(
            f"Loss curves of the world sizes are not compared: {context['split_dependence']}."
        )
    return found


def _about(agreement: LossAgreement) -> str:
    sizes = [str(size) for size in agreement.world_sizes]
    listed = ", ".join(sizes[:-1]) + f" and {sizes[-1]} ranks"
    allowed = f"(allowed: {agreement.tolerance:.0e}, for sums in another order)"
    worst = f"{agreement.worst:.1e} of its value"
    base = f"{sizes[0]} {'rank' if sizes[0] == '1' else 'ranks'}"
    if agreement.agrees:
        return (
            f"Loss curves of {listed} agree: in {agreement.steps} steps of the same "
            f"{agreement.samples} samples no loss is further than {worst} from that at {base} "
            f"{allowed}."
        )
    return (
        f"Loss curves of {listed} DISAGREE: at {agreement.worst_world_size} ranks the loss of step "
        f"{agreement.worst_step + 1} is off by {worst} from that at {base} {allowed}. The same "
        "samples should give the same loss: look for a rank that trains on other data, or leaves a "
        "synchronisation out."
    )


def _ranks(ranks: Sequence[int]) -> str:
    words = [str(rank) for rank in ranks]
    if len(words) == 1:
        return f"rank {words[0]}"
    return "ranks " + ", ".join(words[:-1]) + f" and {words[-1]}"


def _trend(world: WorldResult) -> list[str]:
    """Only what should not be: random data has a loss that stays."""
    trend = loss_trend(world.step_losses)
    if trend is None:
        return []
    where = f"At {counted(world.world_size, 'rank')}"
    if trend.not_finite is not None:
        return [
            f"{where} the loss is no finite number from step {trend.not_finite} on: the training "
            "has diverged."
        ]
    if trend.rises:
        return [
            f"{where} the loss rises, from {trend.first:.3g} to {trend.last:.3g} (by chance: p = "
            f"{trend.p_value:.2g}): a lower learning rate, or data that is not what it should be?"
        ]
    return []
