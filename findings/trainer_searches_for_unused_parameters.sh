#!/bin/bash
# Guess: transformers' Trainer makes DDP with DDP's defaults: one all-reduce per bucket and step.
# Truth: unless told otherwise it sets find_unused_parameters=True (for its own models: without
# activation checkpointing), so each step has one more all-reduce, of one flag per parameter, and a
# walk through the graph. ddp_find_unused_parameters=False of TrainingArguments ends it.
# Seen with transformers 5.24.0, accelerate 1.15.0, torch 2.13.0, gloo, 2 ranks.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile torch==2.13.0 numpy==2.4.6 transformers==5.24.0 accelerate==1.15.0
fi
cat > "$work/job.py" <<'EOF'
from collections import Counter

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from transformers import Trainer, TrainingArguments


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"inputs": torch.ones(4), "labels": torch.ones(1)}


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, inputs, labels):
        return {"loss": (self.layer(inputs) - labels).square().mean()}


def all_reduces(**options):
    """Sizes and numbers of the all-reduces of ten steps."""
    quiet = {"save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True}
    settings = TrainingArguments("out", max_steps=10, logging_steps=100, **quiet, **options)
    trainer = Trainer(Regression(), settings, train_dataset=Samples())
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        trainer.train()
    events = [event for event in recorded.events() if event.name == "gloo:all_reduce"]
    return dict(Counter(event.input_shapes[0][0] for event in events))


expect("by default", all_reduces(), {5: 10, 2: 10})
expect("when switched off", all_reduces(ddp_find_unused_parameters=False), {5: 10})
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
