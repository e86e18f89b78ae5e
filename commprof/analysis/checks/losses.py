"""Whether training at several world sizes took the same course."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commprof.trace.run.run_directory import WorldRun

if TYPE_CHECKING:
    from commprof.analysis.world import WorldResult

#: Largest difference of a step's loss, relative to it, that sums in another order explain.
TOLERANCES = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}


@dataclass(frozen=True)
class LossAgreement:
    """The loss curves of several world sizes, where they must be equal but for rounding."""

    world_sizes: tuple[int, ...]
    #: Steps compared: those before the first whose samples are not equally many everywhere.
    steps: int
    #: Samples of all ranks in a step.
    samples: int
    #: Largest difference from the smallest world size's loss, relative to that loss.
    worst: float
    #: Where it is; steps are counted from 0.
    worst_world_size: int
    worst_step: int
    #: Of TOLERANCES.
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Whether no step differs by more than the tolerance."""
        return self.worst <= self.tolerance


def global_losses(run: WorldRun) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Per trained step the mean loss over all ranks' samples, and how many these were."""
    results = [run.results.get(rank) for rank in range(run.world_size)]
    if not all(result is not None and "losses" in result for result in results):
        return (), ()
    known = [result for result in results if result is not None]
    losses, samples = [], []
    curves = [zip(r["losses"], r["step_samples"], strict=False) for r in known]
    for step in zip(*curves, strict=False):
        count = sum(of_rank for _, of_rank in step)
        losses.append(float(sum(loss * of_rank for loss, of_rank in step)) / count)
        samples.append(int(count))
    return tuple(losses), tuple(samples)


def differing_weights(run: WorldRun) -> tuple[int, ...]:
    """Ranks whose weights are not those of most ranks, of equally many those of the lowest."""
    digests = {rank: result.get("weights_crc32") for rank, result in sorted(run.results.items())}
    known = {rank: digest for rank, digest in digests.items() if digest is not None}
    if len(set(known.values())) < 2:
        return ()
    (usual, _), *_ = Counter(known.values()).most_common()
    return tuple(rank for rank, digest in known.items() if digest != usual)


def loss_agreement(
    context: Mapping[str, Any], worlds: Sequence[WorldResult]
) -> LossAgreement | None:
    """None where world sizes need not agree, or nothing can be compared.

    They must where the global batch is the same (strong scaling), nothing lossy is between, and
    the loss does not depend on how a batch is split.
    """
    if not must_agree(context, worlds) or context.get("split_dependence"):
        return None
    base, *others = [world for world in worlds if world.step_losses]
    precision = (context.get("training") or {}).get("precision", "fp32")
    steps = 0
    for counts in zip(*(world.step_samples for world in (base, *others)), strict=False):
        if len(set(counts)) > 1:
            break
        steps += 1
    differences = [
        (_difference(world.step_losses[step], base.step_losses[step]), world.world_size, step)
        for world in others
        for step in range(steps)
    ]
    if not differences:
        return None
    worst, size, step = max(differences)
    return LossAgreement(
        world_sizes=tuple(world.world_size for world in (base, *others)),
        steps=steps,
        samples=base.step_samples[0],
        worst=worst,
        worst_world_size=size,
        worst_step=step,
        tolerance=TOLERANCES[precision],
    )


def must_agree(context: Mapping[str, Any], worlds: Sequence[WorldResult]) -> bool:
    """Whether two or more world sizes trained on the same batches without losing anything."""
    with_losses = [world for world in worlds if any(world.step_losses)]
    strong = context.get("scaling") == "strong" and not context.get("hook")
    return strong and len(with_losses) > 1


def _difference(loss: float, base: float) -> float:
    """Relative to the base; a loss that is no number differs from any other."""
    difference = abs(loss - base) / abs(base) if base else abs(loss)
    return math.inf if math.isnan(difference) else difference
