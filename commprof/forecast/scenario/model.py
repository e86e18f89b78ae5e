"""Interface of the models that replay recorded steps, whether DDP or sharded."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commprof.forecast.costs.machine_profile import MachineProfile
from commprof.forecast.scenario.scenario import Estimate, Prediction, Scenario
from commprof.forecast.scenario.schedule import RecordedSteps
from commprof.stats.intervals import percentile_interval

#: Number of steps drawn for the median, and of resamples of the recorded steps for the interval.
STEPS = 100
REPLICATES = 20
SEED = 20240501


@dataclass(frozen=True)
class Model(ABC):
    """A model of recorded steps with fitted costs, which predicts scenarios."""

    schedule: RecordedSteps
    profile: MachineProfile

    def with_profile(self, profile: MachineProfile) -> Model:
        """Returns the same model with other costs."""
        return dataclasses.replace(self, profile=profile)

    def predict(self, scenario: Scenario) -> Prediction:
        """Predicts a scenario, with intervals.

        The intervals reflect the choice of recorded steps and the uncertainty of fitted costs.

        Raises:
            CommprofError: something that the answer depends on was not measured; the message says
                what to do.
        """
        return self.sampled(scenario)[0]

    @abstractmethod
    def sampled(self, scenario: Scenario) -> tuple[Prediction, npt.NDArray[np.float64]]:
        """Predicts a scenario; also returns its step time in s in each bootstrap replicate.

        All scenarios use the same random seed, so that their replicates can be compared.
        """


class Medians(NamedTuple):
    """Medians over the replayed steps, in seconds. The fields are as in ``Prediction``."""

    step_s: float
    wait_s: float
    transfer_s: float
    exposed_s: float
    hidden_s: float


def estimates(main: Medians, replicates: Sequence[Medians]) -> Iterator[Estimate]:
    """Yields each field of ``main``, in order, with its 95 % interval over the replicates."""
    low, high = percentile_interval(replicates).tolist()
    for value, least, most in zip(main, low, high, strict=True):
        yield Estimate(value, min(value, least), max(value, most))
