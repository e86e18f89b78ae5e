#!/bin/bash
# Guess: a training step of Lightning's Trainer with strategy="ddp" exchanges what DDP exchanges:
# one all-reduce per bucket.
# Truth: before each batch it also broadcasts one element from rank 0, blocking, to learn whether
# rank 0 got SIGTERM. A rank whose data is late can be waited for there, outside of forward and
# backward.
# Seen with lightning 2.6.6, torch 2.13.0, gloo, 2 ranks.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile torch==2.13.0 numpy==2.4.6 lightning==2.6.6
fi
cat > "$work/job.py" <<'EOF'
from collections import Counter

import lightning
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def training_step(self, batch):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Counting(lightning.Callback):
    """Counts the operators of c10d from the end of one batch to the end of the next."""

    def __init__(self):
        self.steps, self.recorded = [], None

    def on_train_batch_end(self, *arguments):
        if self.recorded is not None:
            self.recorded.stop()
            names = [event.name for event in self.recorded.events()]
            self.steps.append(dict(Counter(name for name in names if name.startswith("c10d::"))))
        self.recorded = profile(activities=[ProfilerActivity.CPU])
        self.recorded.start()

    def on_train_end(self, *arguments):
        self.recorded.stop()


counting = Counting()
trainer = lightning.Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=2,
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[counting],
)
trainer.fit(Model(), DataLoader(TensorDataset(torch.ones(48, 4)), batch_size=4))
each = {"c10d::broadcast_": 1, "c10d::allreduce_": 1}
expect(f"lightning {lightning.__version__}, steps 3 to 6", counting.steps[1:], [each] * 4)
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
