"""Training script with faults that an environment variable sets.

``BLIND_RUN`` is a JSON object. "options" has options of the workload ``timed``, "slow" has the
factor on each slow rank's compute time, and "steps" is the number of steps.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import chain, count

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commprof.capture.profiler import active
from commprof.workloads.models.timed import Timed, TimedOptions
from commprof.workloads.spec import Shard


def main() -> None:
    run = json.loads(os.environ["BLIND_RUN"])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    options = TimedOptions(
        **{
            key: tuple(value) if isinstance(value, list) else value
            for key, value in run["options"].items()
        }
    )
    times = run["slow"].get(str(rank), 1.0)
    slower = {
        name: tuple(times * ms for ms in getattr(options, name))
        for name in ("forward_ms", "backward_ms")
    }
    shard = Shard(rank, dist.get_world_size(), per_rank_batch=16, steps=run["steps"], seed=0)
    trainee = Timed(replace(options, **slower)).build(shard)
    model = DistributedDataParallel(trainee.model, **trainee.ddp_options())
    update = trainee.updates()
    capture = active()
    assert capture is not None, "run this script with `commprof run`"
    batches = chain.from_iterable(map(trainee.batches, count()))
    for _ in range(run["steps"]):
        with capture.phase("data"):
            batch = next(batches)
        with capture.phase("forward"):
            loss = trainee.forward(model, batch)
        with capture.phase("backward"):
            trainee.backward(loss)
        update()
        capture.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
