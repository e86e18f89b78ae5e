"""Main program of ranks that run a list of jobs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def run_listed(run: Callable[[dict[str, Any], Path], None]) -> None:
    """Runs all jobs of ``python -m MODULE JOBS DIR``.

    JOBS is a JSON file with a list of jobs. The traces of job i go to DIR/i.
    """
    jobs, directory = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for number, job in enumerate(jobs):
        run(job, directory / str(number))
    dist.destroy_process_group()
    time.sleep(0.05)  # torch 2.13's gloo threads may abort a process that ends immediately
