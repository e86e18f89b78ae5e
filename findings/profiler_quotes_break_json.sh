#!/bin/bash
# Guess: what export_chrome_trace writes is JSON, whatever ranges, process groups and metadata are
# called.
# Truth: a double quote in a record_function's name, in a group_desc or in add_metadata's value is
# written as it is, and the whole file is no JSON. A group that is described once spoils every
# later trace of the process.
# Seen with torch 2.13.0, gloo, 2 ranks.
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
import os

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def exported(call):
    """Whether the trace of a call can be parsed."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        call(recorded)
    path = f"trace{os.environ['RANK']}.json"
    recorded.export_chrome_trace(path)
    with open(path) as file:
        try:
            json.load(file)
        except json.JSONDecodeError as error:
            return error.msg
    return "JSON"


def named(name):
    with record_function(name):
        torch.ones(2)


dist.init_process_group("gloo")
refused = "Expecting ',' delimiter"
expect("a plain name", exported(lambda recorded: named("layer 'a'")), "JSON")
expect("a name with quotes", exported(lambda recorded: named('layer "a"')), refused)
text = 'the "long" run'
expect("metadata", exported(lambda recorded: recorded.add_metadata("run", text)), refused)
expect("the trace after it", exported(lambda recorded: named("layer")), "JSON")
dist.new_group([0, 1], group_desc='tensor "inner"')
expect("a group's description", exported(lambda recorded: named("layer")), refused)
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
