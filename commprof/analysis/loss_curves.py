"""Comparison of the loss curves of a run's world sizes, and remarks on losses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from commprof.analysis.checks.losses import TOLERANCES, LossAgreement, loss_trend
from commprof.analysis.world import WorldResult
from commprof.text import counted


def loss_agreement(
    context: Mapping[str, Any], worlds: Sequence[WorldResult]
) -> LossAgreement | None:
    """Compares the loss curves of world sizes; None if the curves need not agree.

    The curves must agree if the global batch is the same (strong scaling), no DDP hook changes the
    gradients, and the loss does not depend on how a batch is split.
    """
    if not must_agree(context, worlds) or context.get("split_dependence"):
        return None
    base, *others = [world for world in worlds if world.training.step_losses]
    precision = (context.get("training") or {}).get("precision", "fp32")
    steps = 0
    for counts in zip(*(world.training.step_samples for world in (base, *others)), strict=False):
        if len(set(counts)) > 1:
            break
        steps += 1
    differences = [
        (
            _difference(world.training.step_losses[step], base.training.step_losses[step]),
            world.world_size,
            step,
        )
        for world in others
        for step in range(steps)
    ]
    if not differences:
        return None
    worst, size, step = max(differences)
    return LossAgreement(
        world_sizes=tuple(world.world_size for world in (base, *others)),
        steps=steps,
        samples=base.training.step_samples[0]
        if len(set(base.training.step_samples[:steps])) == 1
        else None,
        worst=worst,
        worst_world_size=size,
        worst_step=step,
        tolerance=TOLERANCES[precision],
    )


def must_agree(context: Mapping[str, Any], worlds: Sequence[WorldResult]) -> bool:
    """True if two or more world sizes trained on the same batches without a DDP hook."""
    with_losses = [world for world in worlds if any(world.training.step_losses)]
    strong = context.get("scaling") == "strong" and not context.get("hook")
    return strong and len(with_losses) > 1


def _difference(loss: float, base: float) -> float:
    """Returns the relative difference of two losses; infinite if a loss is NaN."""
    difference = abs(loss - base) / abs(base) if base else abs(loss)
    return math.inf if math.isnan(difference) else difference


def loss_remarks(context: Mapping[str, Any], worlds: Sequence[WorldResult]) -> list[str]:
    """Returns remarks on the loss curves."""
    found = [text for world in worlds for text in _trend(world)]
    agreement = loss_agreement(context, worlds)
    if agreement is not None:
        found.append(_about(agreement))
    elif must_agree(context, worlds) and context.get("split_dependence"):
        found.append(
            f"Loss curves of the world sizes are not compared: {context['split_dependence']}."
        )
    return found


CURVES_DISAGREE = "The loss curves of the world sizes disagree: they did not train equally."


def _about(agreement: LossAgreement) -> str:
    sizes = [str(size) for size in agreement.world_sizes]
    listed = ", ".join(sizes[:-1]) + f" and {sizes[-1]} ranks"
    allowed = f"(allowed: {agreement.tolerance:.0e}, because the order of sums differs)"
    worst = f"{agreement.worst:.1e} of its value"
    base = f"{sizes[0]} {'rank' if sizes[0] == '1' else 'ranks'}"
    if agreement.agrees:
        samples = (
            "samples" if agreement.samples is None else f"{agreement.samples} samples per step"
        )
        return (
            f"Loss curves of {listed} agree: the runs used the same {samples} for "
            f"{agreement.steps} steps, and no loss differs by more than "
            f"{worst} from the loss at {base} {allowed}."
        )
    return (
        f"Loss curves of {listed} DISAGREE: at {agreement.worst_world_size} ranks the loss of step "
        f"{agreement.worst_step} differs by {worst} from the loss at {base} {allowed}. The same "
        "samples should give the same loss: look for a rank that trains on other data, or that "
        "leaves out a synchronisation."
    )


def _trend(world: WorldResult) -> list[str]:
    trend = loss_trend(world.training.step_losses)
    if trend is None:
        return []
    where = f"At {counted(world.world_size, 'rank')}"
    if trend.diverged_from is not None:
        return [
            f"{where} the loss is not finite from step {trend.diverged_from} on: training has "
            "diverged."
        ]
    if trend.not_finite is not None:
        return [
            f"{where} the loss is not finite in {trend.not_finite_steps} of {trend.steps} steps, "
            f"first in step {trend.not_finite}."
        ]
    if trend.rises:
        return [
            f"{where} the loss rises from {trend.first:.3g} to {trend.last:.3g} (p = "
            f"{trend.p_value:.2g}): try a lower learning rate, and check the data."
        ]
    return []
