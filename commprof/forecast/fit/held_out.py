"""Measures the model's errors, by predicting recorded steps from the steps of another setting."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commprof.errors import CommprofError
from commprof.forecast.costs.machine_profile import MachineProfile
from commprof.forecast.fit.build import curves_of
from commprof.forecast.replay.recorded import RecordedJob, compute_by_batch
from commprof.forecast.replay.replay import Replay
from commprof.forecast.scenario.model import Model
from commprof.forecast.scenario.scenario import Scenario
from commprof.forecast.scenario.schedule import RecordedSteps, Schedule
from commprof.forecast.sharded.changes import as_recorded
from commprof.forecast.sharded.steps import ShardedSteps, passes_of
from commprof.stats.intervals import student_t_quantile
from commprof.text import counted

#: Root mean square of the relative errors in predictions of random jobs. Source:
#: benchmarks/results/predictions/predict_intervals.jsonl.
_TYPICAL = 0.04
#: Number of errors of size ``_TYPICAL`` that ``margin_of`` adds to the errors of the checks.
_WEIGHT = 2
#: Fields of ``HeldOutCheck`` with trivial answers. A trivial answer is a step time that needs no
#: model.
TRIVIAL = ("as_is_s", "perfect_overlap_s")
#: Largest mean error of a clearly better model, divided by the trivial answer's mean error.
_SKILLED = 0.5


@dataclass(frozen=True)
class HeldOutCheck:
    """A prediction of a recorded setting, compared with the measured steps."""

    name: str
    world_size: int
    measured_s: float
    predicted_s: float
    #: False if the replay was made from the recorded run, or if its costs were fitted to this run.
    held_out: bool
    #: Predicted step times without overlap, and with perfect overlap.
    no_overlap_s: float
    perfect_overlap_s: float
    #: Median step time of the replayed run, scaled to the setting's number of backward passes.
    as_is_s: float = math.nan

    @property
    def error(self) -> float:
        """Relative error: predicted divided by measured, minus 1."""
        return self.predicted_s / self.measured_s - 1

    def error_of(self, answer: str) -> float:
        """Returns the relative error of a trivial answer; ``answer`` is one of ``TRIVIAL``."""
        return float(getattr(self, answer)) / self.measured_s - 1


@dataclass(frozen=True)
class ModelError:
    """Errors of the model in the held-out checks."""

    mean: float
    worst: float
    points: int
    #: Share by which the interval of a predicted step time is widened, see ``margin_of``.
    margin: float
    #: The better one of the ``TRIVIAL`` answers on the same checks.
    trivial: str = ""
    trivial_mean: float = math.nan

    @property
    def is_skilled(self) -> bool:
        """True if the model's mean error is at most half of ``trivial_mean``."""
        return self.mean <= _SKILLED * self.trivial_mean


def check(
    replay: Model, recorded: RecordedSteps, name: str, is_fitted: bool = False
) -> HeldOutCheck:
    """Predicts a recorded setting, and compares the prediction with the measured steps.

    The prediction keeps the link and the bucket cap of the run that ``replay`` was made from.

    Args:
        replay: model made from another run, or from ``recorded`` itself.
        recorded: the measured steps.
        name: name of the setting in reports.
        is_fitted: True if the replay's costs were fitted to ``recorded`` too.

    Raises:
        CommprofError: the setting cannot be predicted.
    """
    _check_kind(replay, recorded)
    scenario = Scenario(
        recorded.world_size,
        hook=recorded.hook,
        ranks_per_host=recorded.placement.ranks_per_host,
        cores_per_host=recorded.placement.cores_per_host,
        scaling=recorded.batch.scaling or "weak",
    )
    if isinstance(recorded, ShardedSteps):
        scenario = as_recorded(scenario, recorded)
    predicted = replay.predict(scenario)
    return HeldOutCheck(
        name=name,
        world_size=recorded.world_size,
        measured_s=float(np.median(recorded.period_s)),
        predicted_s=predicted.step_s.value,
        held_out=recorded is not replay.schedule and not is_fitted,
        no_overlap_s=predicted.no_overlap_s,
        perfect_overlap_s=predicted.perfect_overlap_s,
        as_is_s=passes_of(replay.schedule, scenario) * float(np.median(replay.schedule.period_s)),
    )


def _check_kind(replay: Model, recorded: RecordedSteps) -> None:
    """Raises ``CommprofError`` if the replay cannot predict the recorded steps."""
    kinds = [isinstance(steps, ShardedSteps) for steps in (replay.schedule, recorded)]
    if kinds[0] != kinds[1]:
        raise CommprofError(
            "only one of two runs (this run and the replayed run) shards parameters, gradients or "
            "optimizer state; check a prediction with runs of the same strategy"
        )
    if isinstance(replay.schedule, ShardedSteps) and isinstance(recorded, ShardedSteps):
        units, here = replay.schedule.units, recorded.units
        if units and here and units != here:
            raise CommprofError(
                f"a step of this run reduces gradients in {counted(here, 'unit')}, a step of the "
                f"replayed run in {units}: the runs wrap blocks differently, so this run "
                "cannot check the prediction"
            )
    if isinstance(replay.schedule, Schedule) and isinstance(recorded, Schedule):
        buckets, here = (len(steps.bucket_bytes) for steps in (replay.schedule, recorded))
        if buckets != here:
            raise CommprofError(
                f"a step of this run reduces gradients in {counted(here, 'bucket')}, a step of the "
                f"replayed run in {buckets}, so this run cannot check the prediction; check it "
                "with a run of the same bucket cap"
            )


def checks(
    replay: Model, others: Sequence[RecordedJob], recorded: Sequence[RecordedJob] = ()
) -> tuple[list[HeldOutCheck], list[str]]:
    """Checks the replay on its own run, then on each of the other settings.

    Returns the checks, and a reason for each setting that cannot be predicted. A run that is given
    twice is checked once.

    Costs and compute times that were fitted to a checked run are first refitted without this run.
    If that is not possible, the check is marked as not held out.

    Args:
        replay: the model to check.
        others: settings that were recorded besides the replay's own run.
        recorded: settings to which ``replay.compute_by_batch`` was fitted.
    """
    sources = {Path(source).resolve() for source in replay.profile.sources}
    given = [job for job in others if job.source and Path(job.source).resolve() in sources]
    alone = _fitted_alone(replay) if given else replay.profile
    done, refused = [], []
    own_job = RecordedJob("the run itself", replay.schedule, ())
    for job in _once((own_job, *others)):
        schedule, tried, is_fitted = job.schedule, replay, False
        if job is not own_job:
            if any(job is other for other in given):
                tried = replay.with_profile(alone)
                is_fitted = _is_fitted(replay.profile, alone, schedule)
            tried = _without(tried, schedule, recorded)
        try:
            done.append(check(tried, schedule, job.name, is_fitted))
        except CommprofError as error:
            refused.append(f"{job.name}: {error}")
    return done, refused


def _once(recorded: Sequence[RecordedJob]) -> list[RecordedJob]:
    found: list[RecordedJob] = []
    for each in recorded:
        if not any(_is_same(each.schedule, before.schedule) for before in found):
            found.append(each)
    return found


def _is_same(steps: RecordedSteps, other: RecordedSteps) -> bool:
    """True if settings and step times are equal; two recordings never agree in all ns."""
    settings = [(each.world_size, each.link, each.hook) for each in (steps, other)]
    return settings[0] == settings[1] and np.array_equal(steps.period_s, other.period_s)


def _fitted_alone(replay: Model) -> MachineProfile:
    """Returns the replay's profile with costs refitted to the replay's own run alone.

    Only curves that were fitted to recorded runs are refitted, and only on the link class of the
    replay's run. If that run has a hook or one rank, the profile stays the same.
    """
    schedule, profile = replay.schedule, replay.profile
    link = profile.links.get(schedule.link)
    if link is None or not _from_runs(profile, schedule):
        return profile
    if schedule.hook or schedule.world_size < 2:
        return profile
    kept = {op: curve for op, curve in link.curves.items() if not curve.is_from_steps}
    fitted = dataclasses.replace(link, curves=curves_of([schedule], kept))
    return dataclasses.replace(profile, links={**profile.links, schedule.link: fitted})


def _from_runs(profile: MachineProfile, schedule: RecordedSteps) -> bool:
    link = profile.links.get(schedule.link)
    return link is not None and any(each.is_from_steps for each in link.curves.values())


def _is_fitted(profile: MachineProfile, alone: MachineProfile, schedule: RecordedSteps) -> bool:
    """True if ``alone`` may contain costs that were fitted to the checked run.

    ``profile`` is the replay's profile, and ``alone`` the result of ``_fitted_alone``.
    """
    if schedule.hook:
        return True
    link = profile.links.get(schedule.link)
    return _from_runs(profile, schedule) and alone.links[schedule.link] is link


def _without(replay: Model, checked: RecordedSteps, recorded: Sequence[RecordedJob]) -> Model:
    """Returns the replay with compute time fitted to batch size without the checked run."""
    rest = [each for each in recorded if each.schedule is not checked]
    if not isinstance(replay, Replay) or replay.compute_by_batch is None:
        return replay
    if len(rest) == len(recorded):
        return replay
    return dataclasses.replace(replay, compute_by_batch=compute_by_batch(rest, replay.schedule))


def model_error(checks: Sequence[HeldOutCheck]) -> ModelError | None:
    """Returns the errors of the held-out checks; None if there are no such checks."""
    held_out = [check for check in checks if check.held_out]
    errors = [abs(check.error) for check in held_out]
    if not errors:
        return None
    trivial = {
        name: float(np.mean([abs(check.error_of(name)) for check in held_out])) for name in TRIVIAL
    }
    known = [name for name in TRIVIAL if not math.isnan(trivial[name])]
    better = min(known, key=lambda name: trivial[name])
    mean, margin = float(np.mean(errors)), margin_of(errors)
    return ModelError(mean, max(errors), len(errors), margin, better, trivial[better])


def margin_of(errors: Sequence[float]) -> float:
    """Returns the 95 % margin of the relative error on another setting.

    The margin is Student's t times the root mean square error. ``_WEIGHT`` errors of size
    ``_TYPICAL`` are added to ``errors``, because one or two errors may be small by chance.
    """
    points = _WEIGHT + len(errors)
    square = (_WEIGHT * _TYPICAL**2 + sum(error**2 for error in errors)) / points
    return student_t_quantile(0.975, points) * math.sqrt(square)
