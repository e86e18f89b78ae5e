"""The model's own error: steps that were recorded, predicted from those of another setting."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commprof.errors import CommprofError
from commprof.predict.fit.build import curves_of
from commprof.predict.fit.machine_profile import MachineProfile
from commprof.predict.replay.model import Model
from commprof.predict.replay.recorded import Recorded, compute_by_batch
from commprof.predict.replay.replay import Replay
from commprof.predict.replay.scenario import Scenario
from commprof.predict.replay.schedule import RecordedSteps
from commprof.predict.sharded.changes import as_recorded
from commprof.predict.sharded.steps import ShardedSteps
from commprof.stats.intervals import student_t_quantile

#: What predictions of random jobs were wrong by, root mean square; as in
#: benchmarks/results/predictions/predict_intervals.jsonl.
_TYPICAL, _WEIGHT = 0.04, 2
#: Answers that need no model, by their names in a ``Check``.
TRIVIAL = ("as_is_s", "perfect_overlap_s")
#: Of the better one's mean error, what a model may have to be clearly better.
_SKILLED = 0.5


@dataclass(frozen=True)
class Check:
    """A recorded setting beside the model's prediction of it."""

    #: What was recorded, in words.
    name: str
    world_size: int
    measured_s: float
    predicted_s: float
    #: False for the run that the replay was made of, and where the costs were fitted to this run
    #: too: it shows how well the model follows what it was given.
    held_out: bool
    #: What ideal models say: no overlap, perfect overlap.
    no_overlap_s: float
    perfect_overlap_s: float
    #: The median step of the run that the replay was made of: "as it is now".
    as_is_s: float = math.nan

    @property
    def error(self) -> float:
        """Relative error: predicted over measured, less 1."""
        return self.predicted_s / self.measured_s - 1

    def error_of(self, answer: str) -> float:
        """Relative error of one of the ``TRIVIAL`` answers."""
        return float(getattr(self, answer)) / self.measured_s - 1


@dataclass(frozen=True)
class ModelError:
    """Errors of the model over the held-out checks."""

    mean: float
    worst: float
    points: int
    #: By which the interval of another step is widened, see ``margin_of``.
    margin: float
    #: The better of the ``TRIVIAL`` answers on the same checks, and what it misses in the mean.
    trivial: str = ""
    trivial_mean: float = math.nan

    @property
    def is_skilled(self) -> bool:
        """True if the model misses at most half of what the better trivial answer misses."""
        return self.mean <= _SKILLED * self.trivial_mean


def check(replay: Model, recorded: RecordedSteps, name: str, is_fitted: bool = False) -> Check:
    """Predicts a recorded setting on the same link with the same caps, and compares.

    Args:
        replay: made of another run, or of this one.
        recorded: what was measured.
        name: for the reader.
        is_fitted: whether the replay's costs were fitted to it too.

    Raises:
        CommprofError: the setting cannot be predicted.
    """
    scenario = Scenario(
        recorded.world_size,
        hook=recorded.hook,
        ranks_per_host=recorded.placement.ranks_per_host,
        cores_per_host=recorded.placement.cores_per_host,
        scaling=recorded.batch.scaling or "weak",
    )
    if isinstance(recorded, ShardedSteps):
        scenario = as_recorded(scenario, recorded)
    found = replay.predict(scenario)
    return Check(
        name=name,
        world_size=recorded.world_size,
        measured_s=float(np.median(recorded.period_s)),
        predicted_s=found.step_s.value,
        held_out=recorded is not replay.schedule and not is_fitted,
        no_overlap_s=found.no_overlap_s,
        perfect_overlap_s=found.perfect_overlap_s,
        as_is_s=float(np.median(replay.schedule.period_s)),
    )


def checks(
    replay: Model, others: Sequence[Recorded], recorded: Sequence[Recorded] = ()
) -> tuple[list[Check], list[str]]:
    """Makes all checks that can be made, the replay's own run first; says why others cannot.

    What a checked run has told the replay is taken out before: an all-reduce's cost that was fitted
    to it is fitted anew to the replay's own run alone, and it has no part in how compute depends on
    the batch. Where that cannot be done, the check is marked as not held out.

    Args:
        replay: what is to be checked.
        others: what was recorded besides its own run.
        recorded: what ``replay.compute_by_batch`` was made of.
    """
    sources = {Path(source).resolve() for source in replay.profile.sources}
    given = [each for each in others if each.source and Path(each.source).resolve() in sources]
    alone = _fitted_alone(replay) if given else replay.profile
    found, refused = [], []
    own = Recorded("the run itself", replay.schedule, ())
    for each in (own, *others):
        schedule, tried, is_fitted = each.schedule, replay, False
        if each is not own:
            if any(each is one for one in given):
                tried = replay.with_profile(alone)
                is_fitted = _is_fitted(replay.profile, alone, schedule)
            tried = _without(tried, schedule, recorded)
        try:
            found.append(check(tried, schedule, each.name, is_fitted))
        except CommprofError as error:
            refused.append(f"{each.name}: {error}")
    return found, refused


def _fitted_alone(replay: Model) -> MachineProfile:
    """The profile with what runs said of a collective from the replay's own run alone."""
    schedule, profile = replay.schedule, replay.profile
    link = profile.links.get(schedule.link)
    if link is None or not _from_runs(profile, schedule):
        return profile
    if schedule.hook or schedule.world_size < 2:
        return profile
    own = curves_of([schedule])
    kept = {op: curve for op, curve in link.curves.items() if not curve.is_from_steps}
    fitted = dataclasses.replace(link, curves={**own, **kept})
    return dataclasses.replace(profile, links={**profile.links, schedule.link: fitted})


def _from_runs(profile: MachineProfile, schedule: RecordedSteps) -> bool:
    """Whether runs said what a collective costs on the links of this one."""
    link = profile.links.get(schedule.link)
    return link is not None and any(each.is_from_steps for each in link.curves.values())


def _is_fitted(profile: MachineProfile, alone: MachineProfile, schedule: RecordedSteps) -> bool:
    """Whether a run that the profile was fitted to still has a part in ``alone``."""
    if schedule.hook:
        return True
    link = profile.links.get(schedule.link)
    return _from_runs(profile, schedule) and alone.links[schedule.link] is link


def _without(replay: Model, checked: RecordedSteps, recorded: Sequence[Recorded]) -> Model:
    """With how compute depends on the batch from all recorded runs but the checked one."""
    rest = [each for each in recorded if each.schedule is not checked]
    if not isinstance(replay, Replay) or replay.compute_by_batch is None:
        return replay
    if len(rest) == len(recorded):
        return replay
    return dataclasses.replace(replay, compute_by_batch=compute_by_batch(rest, replay.schedule))


def model_error(found: Sequence[Check]) -> ModelError | None:
    """Computes the errors over the held-out checks; None without any."""
    held_out = [each for each in found if each.held_out]
    errors = [abs(each.error) for each in held_out]
    if not errors:
        return None
    trivial = {
        name: float(np.mean([abs(each.error_of(name)) for each in held_out])) for name in TRIVIAL
    }
    known = [name for name in TRIVIAL if not math.isnan(trivial[name])]
    better = min(known, key=lambda name: trivial[name])
    mean, margin = float(np.mean(errors)), margin_of(errors)
    return ModelError(mean, max(errors), len(errors), margin, better, trivial[better])


def margin_of(errors: Sequence[float]) -> float:
    """Margin at 95 % that errors on held-out settings imply for another setting.

    Errors are taken as normal around 0: Student's t times their root mean square. One or two may be
    small by chance; so ``_TYPICAL`` counts beside them, as ``_WEIGHT`` points more.
    """
    points = _WEIGHT + len(errors)
    square = (_WEIGHT * _TYPICAL**2 + sum(error**2 for error in errors)) / points
    return student_t_quantile(0.975, points) * math.sqrt(square)
