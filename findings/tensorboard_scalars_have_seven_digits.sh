#!/bin/bash
# Guess: a scalar that is logged as a Python float or a float64 is shown with its digits: a counter of
# bytes that grows by 1 kB a step grows on the curve.
# Truth: TensorBoard's own writer and PyTorch's SummaryWriter store 32 bits. At 1e12 bytes, which a
# rank sends in minutes, the curve has steps of 65,536 bytes and stands still in between; a wall
# time in seconds has steps of 128 s.
# Seen with tensorboard 2.21.0, torch 2.13.0.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile torch==2.13.0 numpy==2.4.6 tensorboard==2.21.0
fi
cat > "$work/job.py" <<'EOF'
import glob

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.summary import Writer
from tensorboard.util.tensor_util import make_ndarray
from torch.utils.tensorboard import SummaryWriter


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def read(directory):
    """Returns the scalars of the only event file in a directory."""
    (path,) = glob.glob(f"{directory}/events*")
    return [
        float(make_ndarray(value.tensor))
        for event in EventFileLoader(path).Load()
        for value in event.summary.value
    ]


SENT_BYTES = 1_000_000_000_000
for name, writer in (("tensorboard", Writer("own")), ("torch", SummaryWriter("torch"))):
    for step in range(3):
        writer.add_scalar("sent", SENT_BYTES + 1000 * step, step)
    writer.add_scalar("wall", 1_764_460_801.5, 3)
    writer.close()
    values = read("own" if name == "tensorboard" else "torch")
    expect(f"{name}: different values of three steps of 1 kB", len(set(values[:3])), 1)
    expect(f"{name}: error of a wall time in s", values[3] - 1_764_460_801.5, -1.5)
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
