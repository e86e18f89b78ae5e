#!/bin/bash
# Guess: ray.train.report(metrics) without a checkpoint hands over a dictionary and returns.
# Truth: it is a barrier of all ranks that no profiler of collectives sees, and more: a later
# report waits until the controller has fetched the one before, every two seconds. A loop that
# reports its loss in each step takes two seconds per step, and a late rank is waited for there.
# Seen with ray 2.60.0 (Ray Train V2), torch 2.13.0, gloo, 2 ranks.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile torch==2.13.0 numpy==2.4.6 "ray[train]==2.60.0"
fi
cat > "$work/job.py" <<'EOF'
import json
import os
import time
from pathlib import Path

import ray
import torch
from ray import train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def loop(settings):
    """Reports five times; rank 1 comes late, and rank 0 writes down how long report() took."""
    import torch.distributed as dist

    taken = []
    for number in range(5):
        dist.barrier()
        if dist.get_rank() == 1:
            time.sleep(settings["late_s"])
        begin = time.perf_counter()
        train.report({"number": number})
        taken.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        Path(settings["file"]).write_text(json.dumps(taken))


def seconds(late_s):
    """Seconds that rank 0 spends in each of five reports."""
    file = Path(f"taken_{late_s}.json").absolute()
    TorchTrainer(
        loop,
        train_loop_config={"file": str(file), "late_s": late_s},
        scaling_config=ScalingConfig(num_workers=2),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(storage_path=os.getcwd()),
    ).fit()
    return json.loads(file.read_text())


def expect(what, values, low, high):
    """Ends the run with a sentence where a value is not between low and high."""
    shown = ", ".join(f"{value:.2f}" for value in values)
    print(f"ray {ray.__version__}, torch {torch.__version__}: {what}: {shown} s", flush=True)
    if not all(low < value < high for value in values):
        raise SystemExit(f"changed: {what} was between {low} and {high} s")


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
expect("third to fifth report of ranks that are in step", seconds(0)[2:], 1.5, 2.9)
expect("reports of rank 0 where rank 1 is 3 s late", seconds(3), 2.7, 5.5)
ray.shutdown()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py 2> log || { tail -n 20 log; exit 1; }
