#!/bin/bash
# Guess: a short torch.profiler with stacks inside of a program that cProfile measures, or that has
# a function set by sys.setprofile, leaves the other profiler working afterwards.
# Truth: with with_stack=True it takes the interpreter's one place for a profiler and gives back
# none: all that follows is missing in cProfile's figures, without a word. Without stacks both go
# on.
# Seen with torch 2.13.0, CPython 3.11.
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
import cProfile
import pstats
import sys

import torch
from torch.profiler import ProfilerActivity, profile


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def before():
    return sum(range(100))


def after():
    return sum(range(100))


def recorded(with_stack):
    with profile(activities=[ProfilerActivity.CPU], with_stack=with_stack):
        torch.ones(2)


def counted(with_stack):
    """Calls that cProfile counted before and after a torch.profiler."""
    profiler = cProfile.Profile()
    profiler.enable()
    before()
    recorded(with_stack)
    for _ in range(5):
        after()
    profiler.disable()
    calls = {key[2]: row[0] for key, row in pstats.Stats(profiler).stats.items()}
    return calls.get("before", 0), calls.get("after", 0)


def called(with_stack):
    """Whether sys.setprofile's function is called before and after a torch.profiler."""
    names = []
    sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name))
    before()
    recorded(with_stack)
    after()
    sys.setprofile(None)
    return "before" in names, "after" in names


print("torch", torch.__version__, "Python", sys.version.split()[0])
expect("cProfile, torch.profiler without stacks", counted(False), (1, 5))
expect("cProfile, torch.profiler with stacks", counted(True), (1, 0))
expect("sys.setprofile, torch.profiler without stacks", called(False), (True, True))
expect("sys.setprofile, torch.profiler with stacks", called(True), (True, False))
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
