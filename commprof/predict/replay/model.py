"""What every replay of recorded steps can answer, whatever its ranks share."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from commprof.predict.fit.machine_profile import MachineProfile
from commprof.predict.replay.scenario import Prediction, Scenario
from commprof.predict.replay.schedule import RecordedSteps


class Model(Protocol):
    """Recorded steps and fitted costs."""

    @property
    def schedule(self) -> RecordedSteps:
        """The recorded steps."""

    @property
    def profile(self) -> MachineProfile:
        """The fitted costs."""

    def with_profile(self, profile: MachineProfile) -> Model:
        """The same with other costs."""

    def predict(self, scenario: Scenario) -> Prediction:
        """The answer, with the interval that sampling and the fit leave open."""

    def sampled(self, scenario: Scenario) -> tuple[Prediction, npt.NDArray[np.float64]]:
        """The answer, and its step time by replicate: the same draws for every scenario."""
