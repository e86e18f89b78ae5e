"""Interface of the models that replay recorded steps, whether DDP or sharded."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commprof.forecast.costs.machine_profile import MachineProfile
from commprof.forecast.scenario.scenario import Estimate, PredictedWaiting, Prediction, Scenario
from commprof.forecast.scenario.schedule import RecordedSteps
from commprof.stats.intervals import percentile_interval

#: Number of steps in the replay of a scenario.
STEPS = 100
#: Number of bootstrap replicates.
_REPLICATES = 20
_SEED = 20240501


@dataclass(frozen=True)
class Model(ABC):
    """Predicts scenarios from recorded steps and fitted costs."""

    schedule: RecordedSteps
    profile: MachineProfile

    def with_profile(self, profile: MachineProfile) -> Model:
        """Returns the same model with other costs."""
        return dataclasses.replace(self, profile=profile)

    def predict(self, scenario: Scenario) -> Prediction:
        """Predicts a scenario.

        Raises:
            CommprofError: the prediction needs something that was not measured.
        """
        return self.sampled(scenario)[0]

    def sampled(self, scenario: Scenario) -> tuple[Prediction, npt.NDArray[np.float64]]:
        """Returns a scenario's prediction, and its step time in s in each bootstrap replicate.

        All scenarios use the same random seed, so that their replicates can be compared.
        """
        medians, replayed = self.replayed(scenario)
        return prediction(scenario, medians, replayed), medians.step_s()

    @abstractmethod
    def replayed(self, scenario: Scenario) -> tuple[Replicated, Replayed]:
        """Replays a scenario with all recorded steps, then once per bootstrap replicate."""


class Medians(NamedTuple):
    """Medians over the replayed steps, in seconds. The fields are as in ``Prediction``."""

    step_s: float
    wait_s: float
    transfer_s: float
    exposed_s: float
    hidden_s: float


class Replicated(NamedTuple):
    """Medians of a scenario's replay, and of one more replay per bootstrap replicate."""

    main: Medians
    replicates: list[Medians]

    def step_s(self) -> npt.NDArray[np.float64]:
        """Returns the step time in s of each replicate."""
        return np.array([medians.step_s for medians in self.replicates])


def new_random() -> np.random.Generator:
    """Returns a random generator with the same seed for all scenarios, to compare scenarios."""
    return np.random.default_rng(_SEED)


def replicated(
    main: Medians,
    recorded: int,
    random: np.random.Generator,
    replay: Callable[[int, npt.NDArray[np.int64]], Medians],
) -> Replicated:
    """Replays once per bootstrap replicate.

    Args:
        main: medians of the replay of all recorded steps.
        recorded: number of recorded steps.
        random: chooses the recorded steps of each replicate, with replacement.
        replay: replays one replicate; takes its number and the rows of its recorded steps.
    """
    return Replicated(
        main,
        [replay(number, random.integers(0, recorded, recorded)) for number in range(_REPLICATES)],
    )


@dataclass(frozen=True)
class Replayed:
    """Results of a scenario's replay, except the medians; times in s."""

    #: Step time if transfers took no time. In DDP's steps, only buckets count as transfers.
    bare_s: float
    #: Time in a step during which collectives occupy the link.
    busy_s: float
    #: Time of a rank's own work in a step.
    own_s: float
    #: Samples per rank and step; 0 or NaN if not recorded.
    batch: float
    #: For the fields from here to ``hiding_bytes_per_s``, see ``Prediction``.
    buckets: int
    sent_bytes: float
    outside: tuple[str, ...]
    remarks: tuple[str, ...]
    hiding_bytes_per_s: float = math.nan
    #: Time by which a step is longer because more ranks share a core than in the recorded run; 0
    #: for DDP, where ``bare_s`` and ``own_s`` include it.
    crowding_s: float = 0.0


def few_recorded(ranks: int, steps: int, note: str = "") -> str:
    """Returns a caveat for a simulation of ``ranks`` ranks from only ``steps`` recorded steps.

    ``note``, shown in brackets, says how the steps were counted.
    """
    counted = f"{steps} recorded steps{f' ({note})' if note else ''}"
    return (
        f"{ranks} ranks, simulated from only {counted}: rare long waits may be missing, so the "
        "predicted waiting is a lower bound"
    )


def prediction(scenario: Scenario, medians: Replicated, replayed: Replayed) -> Prediction:
    """Returns the prediction of a scenario from the results of its replay."""
    step, wait, transfer, exposed, hidden = estimates(*medians)
    return Prediction(
        scenario=scenario,
        step_s=step,
        wait_s=wait.value,
        transfer_s=transfer.value,
        hidden_s=hidden.value,
        waiting=PredictedWaiting(wait, transfer, exposed, hidden),
        compute_s=max(0.0, step.value - exposed.value),
        no_overlap_s=replayed.bare_s + replayed.busy_s,
        perfect_overlap_s=max(replayed.bare_s, replayed.busy_s + replayed.crowding_s),
        buckets=replayed.buckets,
        sent_bytes=replayed.sent_bytes,
        samples_per_s=(
            scenario.world_size * replayed.batch / step.value if replayed.batch else math.nan
        ),
        # Limited to 1, because the replayed step can be shorter than the median own work.
        efficiency=min(1.0, replayed.own_s / step.value),
        hiding_bytes_per_s=replayed.hiding_bytes_per_s,
        outside=replayed.outside,
        remarks=replayed.remarks,
    )


def estimates(main: Medians, replicates: Sequence[Medians]) -> Iterator[Estimate]:
    """Yields each field of ``main``, in order, with its 95 % interval over the replicates."""
    low, high = percentile_interval(replicates).tolist()
    for value, least, most in zip(main, low, high, strict=True):
        yield Estimate(value, min(value, least), max(value, most))
