"""What training costs, from a price per host and hour."""

from __future__ import annotations

import math
from dataclasses import dataclass

from commprof.predict.replay.scenario import Prediction
from commprof.predict.replay.schedule import Schedule

_S_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Cost:
    """In the currency of the price."""

    per_1000_samples: float
    #: NaN where the run does not say how many samples an epoch has.
    per_epoch: float
    hosts: int


def cost(
    prediction: Prediction, schedule: Schedule, ranks_per_host: float, price_per_host_hour: float
) -> Cost | None:
    """Of one scenario; None where the run does not say how many samples a step has."""
    if math.isnan(prediction.samples_per_s):
        return None
    hosts = math.ceil(prediction.scenario.world_size / ranks_per_host)
    per_sample = hosts * price_per_host_hour / _S_PER_HOUR / prediction.samples_per_s
    return Cost(1000 * per_sample, per_sample * samples_per_epoch(schedule), hosts)


def samples_per_epoch(schedule: Schedule) -> float:
    """Padding counts, as in the run; NaN where the run does not say."""
    batch = schedule.batch
    found = batch.steps_per_epoch * batch.per_rank * schedule.world_size
    return found if found else math.nan
