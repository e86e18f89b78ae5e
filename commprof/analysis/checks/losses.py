"""Checks that the ranks end with equal weights, and that loss curves agree and fall.

The trend of a loss is judged by the rank correlation of loss and step (Mann, "Nonparametric Tests
against Trend", Econometrica 13 (1945) 245-259), with the normal approximation and its correction
for ties and continuity (Kendall, Rank Correlation Methods, 1975, chapter 4).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from commprof.stats.rank_tests import two_sided
from commprof.text import counted, named_ranks
from commprof.trace.run.run_directory import WorldRun

if TYPE_CHECKING:
    from commprof.analysis.world import WorldResult


#: Smallest number of losses from which a trend is computed.
LEAST_STEPS = 10
#: Significance level of a trend.
_LEVEL = 0.01
#: The test compares all pairs; more losses than this are averaged over neighbouring steps.
_MOST_POINTS = 500


@dataclass(frozen=True)
class LossTrend:
    """Trend of the loss of one training run, and the first step whose loss is not finite."""

    steps: int
    #: Number of the first step whose loss is not finite; None if all losses are finite.
    not_finite: int | None
    #: How many steps have a loss that is not finite.
    not_finite_steps: int
    #: Means of the first and the last tenth of the steps; NaN if not finite.
    first: float
    last: float
    #: Kendall's tau of loss against step: -1 if every step lowers it, 1 if every step raises it;
    #: NaN below LEAST_STEPS, or if some loss is not finite.
    tau: float
    #: Two-sided p-value of tau; NaN if tau is NaN.
    p_value: float

    @property
    def diverged(self) -> bool:
        """True if no loss is finite from some step on."""
        return self.not_finite is not None and self.not_finite + self.not_finite_steps == self.steps

    @property
    def falls(self) -> bool:
        """True if the loss falls significantly."""
        return self.p_value < _LEVEL and self.tau < 0

    @property
    def rises(self) -> bool:
        """True if the loss rises significantly."""
        return self.p_value < _LEVEL and self.tau > 0


def loss_trend(losses: Sequence[float]) -> LossTrend | None:
    """Computes the trend of a series with one loss per step; None if it is empty."""
    if not len(losses):
        return None
    values = np.array(losses, dtype=np.float64)
    broken = np.flatnonzero(~np.isfinite(values))
    tenth = max(1, len(values) // 10)
    tau, p_value = math.nan, math.nan
    if len(values) >= LEAST_STEPS and not len(broken):
        tau, p_value = _mann_kendall(_thinned(values))
    with np.errstate(all="ignore"):
        first, last = float(values[:tenth].mean()), float(values[-tenth:].mean())
    return LossTrend(
        steps=len(values),
        not_finite=int(broken[0]) if len(broken) else None,
        not_finite_steps=len(broken),
        first=first if math.isfinite(first) else math.nan,
        last=last if math.isfinite(last) else math.nan,
        tau=tau,
        p_value=p_value,
    )


def _thinned(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
    return [float(part.mean()) for part in np.array_split(values, min(len(values), _MOST_POINTS))]


def _mann_kendall(values: Sequence[float]) -> tuple[float, float]:
    n = len(values)
    array = np.array(values)
    score = float(np.sign(array[None, :] - array[:, None])[np.triu_indices(n, 1)].sum())
    _, ties = np.unique(array, return_counts=True)
    tied = float((ties * (ties - 1) * (2 * ties + 5)).sum())
    variance = (n * (n - 1) * (2 * n + 5) - tied) / 18
    if variance <= 0:
        return 0.0, 1.0  # all losses are equal
    deviate = max(abs(score) - 1, 0.0) / math.sqrt(variance)
    return score / (n * (n - 1) / 2), two_sided(deviate)


#: Largest relative difference of a step's loss that another order of sums explains, by precision.
TOLERANCES = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 2e-2}


@dataclass(frozen=True)
class LossAgreement:
    """Comparison of the loss curves of world sizes, which must be equal except for rounding."""

    world_sizes: tuple[int, ...]
    #: Steps compared: those before the first whose number of samples differs between world sizes.
    steps: int
    #: Samples of all ranks in a step; None if the steps have different numbers.
    samples: int | None
    #: Largest difference from the smallest world size's loss, relative to that loss.
    worst: float
    #: World size and step of ``worst``; steps are counted from 0.
    worst_world_size: int
    worst_step: int
    #: The one of TOLERANCES for the precision of the run.
    tolerance: float

    @property
    def agrees(self) -> bool:
        """True if no step differs by more than the tolerance."""
        return self.worst <= self.tolerance


def global_losses(run: WorldRun) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Per trained step: mean loss over the samples of all ranks, and number of these samples.

    Both are empty if a rank left no losses.
    """
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
    """Returns the ranks whose weights differ from the weights of most ranks."""
    digests = {rank: result.get("weights_crc32") for rank, result in sorted(run.results.items())}
    known = {rank: digest for rank, digest in digests.items() if digest is not None}
    if len(set(known.values())) < 2:
        return ()
    (usual, _), *_ = Counter(known.values()).most_common()
    return tuple(rank for rank, digest in known.items() if digest != usual)


def loss_agreement(
    context: Mapping[str, Any], worlds: Sequence[WorldResult]
) -> LossAgreement | None:
    """Compares the loss curves of world sizes; None if they need not agree.

    They must agree if the global batch is the same (strong scaling), no DDP hook changes the
    gradients, and the loss does not depend on how a batch is split.
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
        samples=base.step_samples[0] if len(set(base.step_samples[:steps])) == 1 else None,
        worst=worst,
        worst_world_size=size,
        worst_step=step,
        tolerance=TOLERANCES[precision],
    )


def must_agree(context: Mapping[str, Any], worlds: Sequence[WorldResult]) -> bool:
    """True if two or more world sizes trained on the same batches without a DDP hook."""
    with_losses = [world for world in worlds if any(world.step_losses)]
    strong = context.get("scaling") == "strong" and not context.get("hook")
    return strong and len(with_losses) > 1


def _difference(loss: float, base: float) -> float:
    """Difference of two losses relative to the base; infinite if a loss is NaN."""
    difference = abs(loss - base) / abs(base) if base else abs(loss)
    return math.inf if math.isnan(difference) else difference


def loss_remarks(context: Mapping[str, Any], worlds: Sequence[WorldResult]) -> list[str]:
    """Returns remarks on ranks whose weights differ, then on the loss curves."""
    found = [
        f"At {world.world_size} ranks the weights of {named_ranks(world.weights_differ)} differ "
        "from those of the others after training. They must be equal to the last bit: a "
        "synchronisation was left out, or the ranks trained differently."
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
    allowed = f"(allowed: {agreement.tolerance:.0e}, because the order of sums differs)"
    worst = f"{agreement.worst:.1e} of its value"
    base = f"{sizes[0]} {'rank' if sizes[0] == '1' else 'ranks'}"
    if agreement.agrees:
        samples = "samples" if agreement.samples is None else f"{agreement.samples} samples"
        return (
            f"Loss curves of {listed} agree: in {agreement.steps} steps, each of the same "
            f"{samples} at every number of ranks, no loss differs by more than "
            f"{worst} from the loss at {base} {allowed}."
        )
    return (
        f"Loss curves of {listed} DISAGREE: at {agreement.worst_world_size} ranks the loss of step "
        f"{agreement.worst_step} differs by {worst} from that at {base} {allowed}. The same "
        "samples should give the same loss: look for a rank that trains on other data, or that "
        "leaves out a synchronisation."
    )


def _trend(world: WorldResult) -> list[str]:
    """Returns remarks on a loss that rises or diverges; none for a constant loss (random data)."""
    trend = loss_trend(world.step_losses)
    if trend is None:
        return []
    where = f"At {counted(world.world_size, 'rank')}"
    if trend.not_finite is not None and not trend.diverged:
        return [
            f"{where} the loss is not finite in {trend.not_finite_steps} of {trend.steps} steps, "
            f"first in step {trend.not_finite}."
        ]
    if trend.not_finite is not None:
        return [
            f"{where} the loss is not finite from step {trend.not_finite} on: training has "
            "diverged."
        ]
    if trend.rises:
        return [
            f"{where} the loss rises from {trend.first:.3g} to {trend.last:.3g} (p = "
            f"{trend.p_value:.2g}): try a lower learning rate, and check the data."
        ]
    return []
