#!/bin/bash
# Guess: SIGUSR1, which Slurm sends before a time limit (--signal=USR1@60), is passed on by torchrun
# to the ranks, or ends the ranks with torchrun, as SIGTERM does.
# Truth: torchrun dies of it and the ranks go on as orphans: they get no signal, keep their memory
# and their devices, and train on, without a parent that would see how they end. A rank's own handler
# never runs. So it is with SIGUSR2. With --signals-to-handle naming SIGUSR1 torchrun ends the ranks,
# but as SIGUSR1 is what it sends, that is what their handlers get.
# Seen with torch 2.13.0, 2 ranks.
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
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
for name in ("SIGUSR1", "SIGTERM"):
    number = getattr(signal, name)
    signal.signal(number, lambda *_, name=name: ((folder / f"{name}_{rank}").touch(), os._exit(3)))
(folder / f"pid_{rank}").write_text(str(os.getpid()))
for step in range(300):  # ends by itself after two minutes at most
    dist.all_reduce(torch.ones(1))
    (folder / f"step_{rank}.new").write_text(str(step))
    (folder / f"step_{rank}.new").replace(folder / f"step_{rank}")
    time.sleep(0.4)
EOF
cat > "$work/agent.py" <<'EOF'
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch


def expect(what, seen, wanted):
    """Ends the run with a sentence where something else is seen than what this file states."""
    print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def waits_for(condition, seconds=90):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    return condition()


def signalled(name, *options):
    """What becomes of torchrun and its two ranks if torchrun gets a signal while they train."""
    folder = Path("_".join([name, *options]).replace("-", ""))
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with open(folder / "log", "w") as log:
        torchrun = subprocess.Popen([*command, *options, "job.py", str(folder)], stderr=log)
    pids = []
    try:
        steps = [folder / f"step_{rank}" for rank in (0, 1)]
        if not waits_for(lambda: all(step.exists() and int(step.read_text()) > 2 for step in steps)):
            raise SystemExit("the ranks did not begin to train")
        pids = [int((folder / f"pid_{rank}").read_text()) for rank in (0, 1)]
        torchrun.send_signal(getattr(signal, name))
        code = torchrun.wait(60)
        before = int(steps[0].read_text())
        trains = waits_for(lambda: int(steps[0].read_text()) > before + 5, 10)
        told = sorted(path.name for path in folder.glob("SIG*"))
        return code, [running(pid) for pid in pids], trains, told
    finally:
        for pid in filter(running, pids):
            os.kill(pid, signal.SIGKILL)
        torchrun.kill()
        torchrun.wait()


left = {name: signalled(name) for name in ("SIGUSR1", "SIGUSR2", "SIGTERM")}
handled = signalled("SIGUSR1", "--signals-to-handle=SIGTERM,SIGUSR1")
columns = "code, ranks running, training, handlers that ran"
expect(f"SIGUSR1: {columns}", left["SIGUSR1"], (-signal.SIGUSR1, [True, True], True, []))
expect(f"SIGUSR2: {columns}", left["SIGUSR2"], (-signal.SIGUSR2, [True, True], True, []))
both = ["SIGTERM_0", "SIGTERM_1"]
expect(f"SIGTERM: {columns}", left["SIGTERM"], (1, [False, False], False, both))
expect(f"SIGUSR1 that is handled: {columns}", handled, (1, [False, False], False, ["SIGUSR1_0", "SIGUSR1_1"]))
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" agent.py
