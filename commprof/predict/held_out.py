"""The model's own error: steps that were recorded, predicted from those of another setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commprof.errors import CommprofError
from commprof.predict.replay import Replay
from commprof.predict.scenario import Scenario
from commprof.predict.schedule import Schedule


@dataclass(frozen=True)
class Check:
    """One recorded setting and what the model says of it."""

    #: What was recorded, in words.
    name: str
    world_size: int
    measured_s: float
    predicted_s: float
    #: False for the run that the replay was made of: it shows the replay's own error only.
    held_out: bool
    #: What ideal models say: no overlap, perfect overlap.
    no_overlap_s: float
    perfect_overlap_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True)
class ModelError:
    """Over the held-out checks."""

    mean: float
    worst: float
    points: int


def check(replay: Replay, recorded: Schedule, name: str, scenario: Scenario | None = None) -> Check:
    """Predicts a recorded schedule's setting and compares.

    Args:
        replay: made of another run, or of this one.
        recorded: what was measured.
        name: for the reader.
        scenario: its setting; None for the same link, caps and hook at its world size and
            placement.

    Raises:
        CommprofError: the setting cannot be predicted.
    """
    if scenario is None:
        scenario = Scenario(
            recorded.world_size,
            hook=recorded.hook,
            ranks_per_host=recorded.placement.ranks_per_host,
            cores_per_host=recorded.placement.cores_per_host,
            scaling=recorded.batch.scaling or "weak",
        )
    found = replay.predict(scenario)
    return Check(
        name=name,
        world_size=recorded.world_size,
        measured_s=float(np.median(recorded.period_s)),
        predicted_s=found.step_s.value,
        held_out=recorded is not replay.schedule,
        no_overlap_s=found.no_overlap_s,
        perfect_overlap_s=found.perfect_overlap_s,
    )


def checks(replay: Replay, others: Sequence[tuple[str, Schedule]]) -> tuple[list[Check], list[str]]:
    """All that can be checked, this run itself first; and why the rest cannot."""
    found, refused = [], []
    for name, schedule in [("the run itself", replay.schedule), *others]:
        try:
            found.append(check(replay, schedule, name))
        except CommprofError as error:
            refused.append(f"{name}: {error}")
    return found, refused


def model_error(found: Sequence[Check]) -> ModelError | None:
    """Over the held-out checks; None without any."""
    errors = [abs(each.error) for each in found if each.held_out]
    if not errors:
        return None
    return ModelError(float(np.mean(errors)), max(errors), len(errors))
