"""A trial on every DDP model of a script that knows nothing of it."""

from __future__ import annotations

import functools
import sys
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from commprof.capture.attachment import attach
from commprof.capture.profiler import Profiler
from commprof.errors import CommprofError
from commprof.trials.live.controller import Trial
from commprof.trials.plan import parse_trial


def try_every_model(candidates: str, profiler: Profiler) -> None:
    """From now on each DDP model that is made takes part in one trial.

    Args:
        candidates: as ``commprof.trials.plan.parse_trial`` takes it.
        profiler: the capture of this process.

    Raises:
        CommprofError: it does not take it, or the capture is not full.
    """
    trial = Trial(parse_trial(candidates), profiler)
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        try:
            trial.add(attach(self))
        except CommprofError as error:
            print(f"commprof: a model takes no part in the trial: {error}", file=sys.stderr)

    DistributedDataParallel.__init__ = made
