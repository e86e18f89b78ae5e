"""Answers for a set of scenarios, ready to be rendered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from commprof import invocation
from commprof.errors import CommprofError
from commprof.forecast.costs.cost_model import link_words
from commprof.forecast.fit.held_out import HeldOutCheck, ModelError, checks, model_error
from commprof.forecast.replay.recorded import RecordedJob
from commprof.forecast.scenario.model import Model
from commprof.forecast.scenario.scenario import Estimate, Prediction, Scenario
from commprof.forecast.scenario.schedule import RecordedSteps
from commprof.forecast.sharded.steps import ShardedSteps
from commprof.forecast.what_if.optimize import PredictedCandidate, Search, optimize, shortest


@dataclass(frozen=True)
class AmdahlFit:
    """Amdahl's law, fitted to measured throughput.

    speed-up(n) = 1 / ((1 - p) + p / n) over one rank (Amdahl, AFIPS 1967). Speed-up is the ratio of
    samples per second, under weak scaling too.
    """

    #: Share of the work that is divided among ranks, from 0 to 1.
    parallel: float
    #: World size, and its measured and fitted speed-up over one rank.
    points: tuple[tuple[int, float, float], ...]

    @property
    def residuals(self) -> tuple[float, ...]:
        """Relative residuals: fitted divided by measured, minus 1."""
        return tuple(fitted / measured - 1 for _, measured, fitted in self.points)

    @property
    def limit(self) -> float:
        """Limit of the speed-up as the number of ranks grows."""
        return float("inf") if self.parallel >= 1 else 1 / (1 - self.parallel)

    def speedup(self, ranks: int) -> float:
        """Returns the fitted speed-up of ``ranks`` ranks over one rank."""
        return 1 / ((1 - self.parallel) + self.parallel / ranks)


def fit_amdahl(samples_per_s: Mapping[int, float]) -> AmdahlFit:
    """Fits Amdahl's law to measured throughput.

    Args:
        samples_per_s: throughput by world size; must include 1 rank.

    Raises:
        CommprofError: the throughput of 1 rank, or of two other world sizes, is missing.
    """
    if 1 not in samples_per_s or len(samples_per_s) < 3:
        sizes = ", ".join(map(str, sorted(samples_per_s))) or "none"
        raise CommprofError(
            f"an Amdahl fit with residuals needs 1 rank and two more world sizes, without a "
            f"hook and with known samples per step (recorded: {sizes}); record them with "
            f"{invocation.command('run', '--world-sizes', '1,2,4')}"
        )
    base = samples_per_s[1]
    ranks = np.array(sorted(n for n in samples_per_s if n > 1), dtype=np.float64)
    measured = np.array([samples_per_s[int(n)] / base for n in ranks])
    # 1 / s - 1 = p (1 / n - 1)
    x, y = 1 / ranks - 1, 1 / measured - 1
    parallel = float(np.clip((x * y).sum() / (x * x).sum(), 0.0, 1.0))
    fitted = 1 / ((1 - parallel) + parallel / ranks)
    points = zip(ranks.astype(int).tolist(), measured.tolist(), fitted.tolist(), strict=True)
    return AmdahlFit(parallel, tuple(points))


@dataclass(frozen=True)
class Answer:
    """Prediction of one scenario, with its cost and the search for a better setting."""

    prediction: Prediction
    #: Predicted step time. Its interval includes the model's error on held-out settings, if known.
    interval_s: Estimate
    #: None if no price is given, or if the run does not record the samples of a step.
    cost: PredictedCost | None
    #: Bytes that one rank sends per epoch; NaN if the run does not record an epoch's samples.
    epoch_sent_bytes: float
    #: Search for the best setting; None unless asked for.
    search: Search | None

    @property
    def candidates(self) -> tuple[PredictedCandidate, ...]:
        """Candidate settings, the best first; empty without a search."""
        return () if self.search is None else self.search.candidates

    @property
    def samples_per_s(self) -> Estimate:
        """Throughput, with the interval that follows from the interval of the step time."""
        return self._over_step(self.prediction.samples_per_s)

    @property
    def efficiency(self) -> Estimate:
        """Efficiency, with the interval that follows from the interval of the step time."""
        found = self._over_step(self.prediction.efficiency)
        return Estimate(found.value, found.low, max(found.value, min(1.0, found.high)))

    def _over_step(self, value: float) -> Estimate:
        """Adds an interval to ``value``, which must be inversely proportional to the step time."""
        step = self.interval_s
        return Estimate(value, value * step.value / step.high, value * step.value / step.low)


@dataclass(frozen=True)
class Best:
    """The changed setting with the shortest predicted step per backward pass."""

    candidate: PredictedCandidate
    #: The candidate's step time with its interval, as in ``Answer``.
    interval_s: Estimate


@dataclass(frozen=True)
class Answers:
    """Answers for all scenarios of one run."""

    answers: tuple[Answer, ...]
    checks: tuple[HeldOutCheck, ...]
    #: None if there is no held-out check.
    error: ModelError | None
    amdahl: AmdahlFit | None
    #: Notes for the user, such as reasons why something was not checked or computed.
    notes: tuple[str, ...]
    #: True if parameters, gradients or optimizer state are sharded.
    is_sharded: bool = False
    #: Changed setting with the shortest step; None if there is nothing to compare.
    best: Best | None = None


def answer(
    replay: Model,
    scenarios: Sequence[Scenario],
    recorded: Sequence[RecordedJob],
    others: Sequence[RecordedJob],
    over: Sequence[str] | None,
    price_per_host_hour: float,
) -> Answers:
    """Predicts every scenario, and compares the model's predictions with recorded settings.

    Args:
        replay: model of the recorded step.
        scenarios: settings to predict.
        recorded: all world sizes of the run.
        others: recorded settings that ``replay`` was not made from.
        over: names of the settings to search, from ``optimize.CHOICES``; None for no search.
        price_per_host_hour: price of a host per hour; NaN if not given.

    Raises:
        CommprofError: a scenario cannot be predicted from what was measured.
    """
    done, refused = checks(replay, others, recorded)
    error = model_error(done)
    answers = [
        _answer(replay, scenario, error, over, price_per_host_hour) for scenario in scenarios
    ]
    notes = [f"not checked: {reason}" for reason in refused]
    if error is None:
        notes += _fit_errors(replay)
    fit = None
    try:
        fit = fit_amdahl(_throughput(recorded))
    except CommprofError as reason:
        notes.append(f"no Amdahl fit: {reason}")
    if not math.isnan(price_per_host_hour) and any(answer_of.cost is None for answer_of in answers):
        notes.append("cost unknown: the run does not record the number of samples per step")
    sharded = isinstance(replay.schedule, ShardedSteps)
    best = _best(replay, answers, error)
    return Answers(tuple(answers), tuple(done), error, fit, tuple(notes), sharded, best)


def _best(replay: Model, answers: Sequence[Answer], error: ModelError | None) -> Best | None:
    worst = math.nan if error is None else error.worst
    scenarios = [answer.prediction.scenario for answer in answers]
    if answers[0].search is not None:
        # The gains of a search are relative to its first setting, which may not be the recorded
        # one.
        searched = (answer.prediction.scenario for answer in answers[0].candidates)
        scenarios = [scenario for scenario in searched if scenario.changes_settings][:1]
    chosen = shortest(replay, scenarios, worst) if scenarios else None
    return None if chosen is None else Best(chosen, _widened(chosen.prediction.step_s, error))


def _fit_errors(replay: Model) -> list[str]:
    found = []
    for name, link in replay.profile.links.items():
        curve = link.curves.get("all_reduce")
        for what, left_out in (
            ("sizes", curve and curve.held_out_size),
            ("world sizes", curve and curve.held_out_world_size),
        ):
            if left_out:
                found.append(
                    f"the fit of all-reduce ({link_words(name)}) is wrong by "
                    f"{left_out.mean:.1%} on average and {left_out.worst:.1%} at worst for {what} "
                    "that were left out of the fit"
                )
    return found


def _answer(
    replay: Model,
    scenario: Scenario,
    error: ModelError | None,
    over: Sequence[str] | None,
    price_per_host_hour: float,
) -> Answer:
    prediction = replay.predict(scenario)
    schedule = replay.schedule
    per_host = scenario.ranks_per_host
    if math.isnan(per_host):
        per_host = schedule.placement.ranks_per_host
    priced = not math.isnan(price_per_host_hour)
    worst = math.nan if error is None else error.worst
    per_rank = prediction.samples_per_s * prediction.step_s.value
    steps = samples_per_epoch(schedule) / per_rank if per_rank > 0 else math.nan
    return Answer(
        prediction=prediction,
        interval_s=_widened(prediction.step_s, error),
        cost=cost(prediction, schedule, per_host, price_per_host_hour) if priced else None,
        epoch_sent_bytes=prediction.sent_bytes * steps,
        search=None if over is None else optimize(replay, scenario, over, worst),
    )


def _widened(step: Estimate, error: ModelError | None) -> Estimate:
    margin = 0.0 if error is None else error.margin
    return Estimate(step.value, step.low / (1 + margin), step.high * (1 + margin))


def _throughput(recorded: Sequence[RecordedJob]) -> dict[int, float]:
    """Returns samples per second by world size, without runs with a hook or unknown samples."""
    plain = [schedule.schedule for schedule in recorded if not schedule.schedule.hook]
    return {
        schedule.world_size: schedule.world_size
        * schedule.batch.per_rank
        / float(np.median(schedule.period_s))
        for schedule in plain
        if schedule.batch.per_rank
    }


_S_PER_HOUR = 3600.0


@dataclass(frozen=True)
class PredictedCost:
    """Cost of a scenario, in the currency of the price."""

    per_1000_samples: float
    #: NaN if the run does not record an epoch's samples.
    per_epoch: float
    hosts: int


def cost(
    prediction: Prediction,
    schedule: RecordedSteps,
    ranks_per_host: float,
    price_per_host_hour: float,
) -> PredictedCost | None:
    """Computes the cost of a scenario; None if the run does not record a step's samples."""
    if math.isnan(prediction.samples_per_s):
        return None
    # Rounded, because 15 / (15 / 13) is slightly above 13.
    hosts = math.ceil(round(prediction.scenario.world_size / ranks_per_host, 6))
    per_sample = hosts * price_per_host_hour / _S_PER_HOUR / prediction.samples_per_s
    return PredictedCost(1000 * per_sample, per_sample * samples_per_epoch(schedule), hosts)


def samples_per_epoch(schedule: RecordedSteps) -> float:
    """Returns the samples of an epoch, padding included; NaN if not recorded."""
    batch = schedule.batch
    samples = batch.steps_per_epoch * batch.per_rank * schedule.world_size
    return samples if samples else math.nan
