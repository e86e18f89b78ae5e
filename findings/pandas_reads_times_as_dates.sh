#!/bin/bash
# Guess: pandas.read_json leaves a column of integers a column of integers: dates have a text form.
# Truth: a column whose name ends in _time or _at, begins with timestamp, or is modified or date,
# becomes a date, if its numbers could be seconds, ms, us or ns since 1970. So exec_time in ns, a
# duration, becomes a date of 1970, 1973 or later, and a time of CLOCK_MONOTONIC one of 2000; the
# unit is guessed for each column. The same names with a unit behind, exec_time_us, stay integers. A
# short duration keeps its column of integers, so that the type depends on the data. dtype=False
# leaves them all.
# Seen with pandas 3.1.1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile pandas==3.1.1 numpy==2.4.6
fi
cat > "$work/job.py" <<'EOF'
import json

import pandas


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


calls = [
    {"rank": 0, "exec_time": 123_456_789, "start_time": 952_374_096_944, "timestamp_ns": 5},
    {"rank": 1, "exec_time": 223_456_789, "start_time": 952_374_096_999, "timestamp_ns": 9},
]
for call in calls:
    call["exec_time_ns"] = call["exec_time"]
    call["timestamp_ns"] += 952_374_096_944
with open("calls.jsonl", "w") as file:
    file.writelines(json.dumps(call) + "\n" for call in calls)
read = pandas.read_json("calls.jsonl", lines=True)
for name in ("exec_time", "start_time", "timestamp_ns"):
    expect(f"type of {name}", str(read[name].dtype).partition("[")[0], "datetime64")
expect("type of exec_time_ns", str(read["exec_time_ns"].dtype), "int64")
expect("year of a start 952 s after boot", int(read["start_time"].dt.year[0]), 2000)
expect("year of a duration of 0.12 s", int(read["exec_time"].dt.year[0]), 1973)
shorter = pandas.read_json("calls.jsonl", lines=True, nrows=1).assign(exec_time=0)
shorter.drop(columns=["start_time", "timestamp_ns"]).to_json(
    "short.jsonl", orient="records", lines=True
)
short = pandas.read_json("short.jsonl", lines=True)
expect("type of a shorter exec_time", str(short["exec_time"].dtype), "int64")
plain = pandas.read_json("calls.jsonl", lines=True, dtype=False)
expect("types with dtype=False", {str(kind) for kind in plain.dtypes}, {"int64"})
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
