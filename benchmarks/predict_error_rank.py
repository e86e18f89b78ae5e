"""One rank of the transformer with a bucket cap, for predict_error.py.

python -m benchmarks.predict_error_rank RUN WORLD_SIZE CAP_MIB HOOK
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from commprof.launch.job import Job
from commprof.launch.worker import run_rank
from commprof.trace.run_directory import world_directory
from commprof.workloads import transformer

STEPS = 24


def main() -> None:
    run, world_size, cap_mib, hook = sys.argv[1:]
    transformer._TransformerTrainee.ddp_options = lambda self: {"bucket_cap_mb": float(cap_mib)}
    directory = world_directory(Path(run), int(world_size))
    directory.mkdir(parents=True, exist_ok=True)
    compressor = "" if hook == "-" else hook
    job = Job(
        "transformer",
        int(world_size),
        directory,
        steps=STEPS,
        batch_size=4,
        hook=False,
        compressor=compressor,
    )
    path = directory / f"job_{os.environ['RANK']}.json"
    job.save(path)
    run_rank(str(path))


if __name__ == "__main__":
    main()
