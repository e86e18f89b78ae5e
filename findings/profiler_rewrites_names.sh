#!/bin/bash
# Guess: a record_function's name stands in the exported trace as it was given.
# Truth: a name with any byte outside printable ASCII (an accent, a tab) becomes "unknown", so that
# all such ranges have one name; newlines are left out, and each backslash is a slash.
# prof.events() of the same run has the names as given.
# Seen with torch 2.13.0.
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
import json

import torch
from torch.profiler import ProfilerActivity, profile, record_function


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


given = ["forward", "vorw\u00e4rts", "step\t1", "first\nsecond", "C:\\data"]
with profile(activities=[ProfilerActivity.CPU]) as recorded:
    for name in given:
        with record_function(name):
            torch.ones(2)
recorded.export_chrome_trace("trace.json")
with open("trace.json") as file:
    events = json.load(file)["traceEvents"]
ranges = [event for event in events if event.get("cat") == "user_annotation"]
exported = [event["name"] for event in sorted(ranges, key=lambda event: event["ts"])]
wanted = ["forward", "unknown", "unknown", "firstsecond", "C:/data"]
expect(f"torch {torch.__version__}: exported names", exported, wanted)
names = [event.name for event in recorded.events() if event.name in given]
expect("names of events()", names, given)
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
