#!/bin/bash
# Guess: get_optimizer_state_dict of torch.distributed.checkpoint reads the optimizer's state and
# changes nothing.
# Truth: before the first step it makes the state itself, with a step of zero gradients at learning
# rate 0. The optimizer's step hooks run, Adam counts its next step as the second one, and the first
# update is 0.74 of what it would be. SGD with momentum and dampening starts with another momentum.
# SGD's and RMSprop's weights stay equal.
# Seen with torch 2.13.0, without a process group.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile torch==2.13.0 numpy==2.4.6
fi
cat > "$work/job.py" <<'EOF'
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "SGD with momentum and dampening": lambda parameters: torch.optim.SGD(
        parameters, lr=0.1, momentum=0.9, dampening=0.5
    ),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.0),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.1),
}


def trained(make, reads):
    """Changes of a weight in two steps, and the runs of a step hook."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer = make(model.parameters())
    hooks = []
    optimizer.register_step_post_hook(lambda *_: hooks.append(1))
    if reads:
        get_optimizer_state_dict(model, optimizer)
    changes = []
    for _ in range(2):
        before = model.weight.item()
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        changes.append(round(before - model.weight.item(), 4))
    return changes, len(hooks)


print("torch", torch.__version__)
for name, (plain, read) in {
    "SGD": ([0.1, 0.1], [0.1, 0.1]),
    "SGD with momentum and dampening": ([0.1, 0.14], [0.05, 0.095]),
    "Adam": ([0.1, 0.1], [0.0744, 0.0858]),
    "AdamW": ([0.1, 0.1], [0.0744, 0.0858]),
    "RMSprop": ([1.0, 0.7089], [1.0, 0.7089]),
}.items():
    expect(f"{name}: changes, runs of the hook", trained(OPTIMIZERS[name], False), (plain, 2))
    expect(f"{name} after its state was read", trained(OPTIMIZERS[name], True), (read, 3))
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
