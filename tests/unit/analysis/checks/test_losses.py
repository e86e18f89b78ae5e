from __future__ import annotations

import math
import random
from typing import Any

import pytest

from commprof.analysis.checks.losses import differing_weights, global_losses, loss_trend
from commprof.analysis.findings import findings
from commprof.analysis.loss_curves import loss_agreement, loss_remarks
from commprof.analysis.world import WorldResult
from tests.support.builders.results import context, world
from tests.support.builders.traces import Rank, world_run


def test_a_loss_that_falls_at_every_step_has_a_falling_trend() -> None:
    trend = loss_trend([float(n) for n in range(12, 0, -1)])
    assert trend is not None
    assert (trend.tau, trend.first, trend.last) == (-1.0, 12.0, 1.0)
    # All 66 pairs fall. Kendall's variance is n (n - 1) (2 n + 5) / 18 with n = 12.
    assert trend.p_value == pytest.approx(math.erfc(65 / math.sqrt(12 * 11 * 29 / 18) / 2**0.5))
    assert (trend.falls, trend.rises) == (True, False)


def test_a_mostly_rising_loss_has_a_rising_trend() -> None:
    trend = loss_trend([n + 0.5 * (n % 2) for n in range(30)])
    assert trend is not None
    assert (trend.falls, trend.rises) == (False, True)


def test_random_losses_rarely_have_a_trend() -> None:
    found = 0
    for seed in range(300):
        chance = random.Random(seed)
        trend = loss_trend([chance.gauss(4, 0.1) for _ in range(40)])
        assert trend is not None
        found += trend.falls or trend.rises
    # At a level of 1 %, 3 of 300 are expected; 10 is 4 standard deviations more.
    assert found <= 10


def test_equal_losses_have_no_trend() -> None:
    trend = loss_trend([2.0] * 20)
    assert trend is not None
    assert (trend.tau, trend.p_value, trend.falls, trend.rises) == (0.0, 1.0, False, False)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_losses_that_stay_nan_or_infinite_have_diverged(broken: float) -> None:
    trend = loss_trend([3.0] * 7 + [broken] * 13)
    assert trend is not None
    assert trend.not_finite == 7
    assert trend.diverged_from == 7
    assert math.isnan(trend.tau)
    assert math.isnan(trend.last)


def test_a_divergence_is_told_from_its_step_also_after_a_single_broken_loss() -> None:
    losses = [3.0, math.nan, *[3.0] * 10, *[math.nan] * 8]
    trend = loss_trend(losses)
    assert trend is not None
    assert (trend.not_finite, trend.not_finite_steps, trend.diverged_from) == (1, 9, 12)
    (said,) = loss_remarks(context(), [curve(1, losses)])
    assert "not finite from step 12 on: training has diverged" in said


def test_a_single_infinite_loss_is_reported_but_is_no_divergence() -> None:
    losses = (4.0, math.inf, *(3.0 - n / 10 for n in range(20)))
    trend = loss_trend(losses)
    assert trend is not None
    assert (trend.not_finite, trend.not_finite_steps, trend.diverged_from) == (1, 1, None)
    (said,) = loss_remarks(context(), [curve(1, losses)])
    assert said == "At 1 rank the loss is not finite in 1 of 22 steps, first in step 1."


def test_three_losses_have_no_trend() -> None:
    trend = loss_trend([3.0, 2.0, 1.0])
    assert trend is not None
    assert (trend.falls, trend.rises) == (False, False)
    assert loss_trend([]) is None


def test_the_trend_of_many_losses_counts_all_steps() -> None:
    trend = loss_trend([1 / (1 + n) for n in range(100_000)])
    assert trend is not None
    assert trend.tau == -1.0
    assert trend.steps == 100_000


CURVE = (4.0, 3.0, 2.0, 1.0)


def curve(world_size: int, losses: tuple[float, ...] = CURVE, samples: int = 16) -> WorldResult:
    return world(world_size, step_losses=losses, step_samples=(samples,) * len(losses))


def strong(**values: Any) -> dict[str, Any]:
    return context(scaling="strong", **values)


def test_loss_curves_that_differ_by_rounding_agree() -> None:
    rounded = (4.0, 3.0, 2.00002, 1.0)
    found = loss_agreement(strong(), [curve(1), curve(2), curve(4, rounded)])

    assert found is not None
    assert found.agrees
    assert (found.steps, found.samples, found.world_sizes) == (4, 16, (1, 2, 4))
    assert (found.worst_world_size, found.worst_step) == (4, 2)
    assert found.worst == pytest.approx(1e-5)


def test_with_a_smaller_last_batch_no_number_of_samples_per_step_is_shown() -> None:
    curves = [world(size, step_losses=CURVE, step_samples=(96, 96, 96, 32)) for size in (1, 2)]
    found = loss_agreement(strong(), curves)
    assert found is not None
    assert (found.steps, found.samples) == (4, None)
    said = loss_remarks(strong(), curves)[-1]
    assert "the runs used the same samples for 4 steps" in said


def test_a_loss_curve_that_deviates_beyond_the_precision_does_not_agree() -> None:
    found = loss_agreement(strong(), [curve(1), curve(2, (4.0, 3.0, 2.0, 1.01))])

    assert found is not None
    assert not found.agrees
    assert (found.worst_step, found.worst) == (3, pytest.approx(0.01))
    low = strong(training={"precision": "bf16"})
    loose = loss_agreement(low, [curve(1), curve(2, (4.0, 3.0, 2.0, 1.01))])
    assert loose is not None
    assert loose.agrees


def test_a_loss_curve_with_nan_does_not_agree() -> None:
    found = loss_agreement(strong(), [curve(1), curve(2, (4.0, math.nan, 2.0, 1.0))])

    assert found is not None
    assert not found.agrees
    assert found.worst_step == 1


def test_losses_are_not_compared_from_the_first_step_with_other_samples_on() -> None:
    padded = world(2, step_losses=(4.0, 3.0, 9.0, 9.0), step_samples=(16, 16, 18, 16))
    found = loss_agreement(strong(), [curve(1), padded])

    assert found is not None
    assert found.agrees
    assert found.steps == 2


@pytest.mark.parametrize(
    ("about", "worlds"),
    [
        (context(scaling="weak"), [curve(1), curve(2)]),
        (strong(hook="int8"), [curve(1), curve(2)]),
        (strong(split_dependence="batch norm"), [curve(1), curve(2)]),
        (strong(), [curve(1)]),
        (strong(), [curve(1), world(2)]),
        (strong(), [curve(1, (0.0, 0.0)), curve(2, (0.0, 0.0))]),
        (strong(), [curve(1), curve(2, samples=17)]),
    ],
)
def test_loss_agreement_is_none_if_curves_are_not_comparable(
    about: dict[str, Any], worlds: list[WorldResult]
) -> None:
    assert loss_agreement(about, worlds) is None


def test_the_global_loss_is_weighted_by_each_rank_s_samples() -> None:
    ranks = [Rank(rank, 2) for rank in range(2)]
    run = world_run(ranks)
    run.results[0].update(losses=[1.0, 2.0], step_samples=[3, 4])
    run.results[1].update(losses=[5.0, 2.0], step_samples=[1, 4])

    assert global_losses(run) == ((2.0, 2.0), (4, 8))
    del run.results[1]
    assert global_losses(run) == ((), ())


@pytest.mark.parametrize(
    ("digests", "different"),
    [
        ((7, 7, 7), ()),
        ((7, 7, 8), (2,)),
        ((8, 7, 7), (0,)),
        ((7, 8), (1,)),
        ((None, None), ()),
        ((1, 2, 3), (1, 2)),
    ],
)
def test_ranks_whose_weight_digest_differs_from_the_majority_are_listed(
    digests: tuple[int | None, ...], different: tuple[int, ...]
) -> None:
    run = world_run([Rank(rank, len(digests)) for rank in range(len(digests))])
    for rank, digest in enumerate(digests):
        run.results[rank]["weights_crc32"] = digest

    assert differing_weights(run) == different


def test_remarks_on_agreeing_disagreeing_and_uncompared_loss_curves() -> None:
    (agree,) = loss_remarks(strong(), [curve(1), curve(2)])
    assert agree.startswith(
        "Loss curves of 1 and 2 ranks agree: the runs used the same 16 samples per step for 4 "
        "steps, and no loss differs by more than 0.0e+00 of its value from the loss at 1 rank "
        "(allowed: 1e-04"
    )
    (disagree,) = loss_remarks(strong(), [curve(1), curve(2), curve(4, (4.0, 3.3, 2.0, 1.0))])
    assert disagree.startswith("Loss curves of 1, 2 and 4 ranks DISAGREE: at 4 ranks the loss of")
    assert "step 1 differs by 1.0e-01 of its value" in disagree
    (not_compared,) = loss_remarks(
        strong(split_dependence="batch norm differs"), [curve(1), curve(2)]
    )
    assert not_compared.endswith("not compared: batch norm differs.")
    assert loss_remarks(context(), [curve(1), curve(2)]) == []
    (weights,) = (
        fact.caveat
        for fact in findings(context(), world(4, weights_differ=(1, 3)))
        if fact.kind == "weights_differ"
    )
    assert weights.startswith("At 4 ranks the weights of ranks 1, 3 differ from the weights")
