#!/bin/bash
# Guess: pyarrow reads 64-bit communicator hashes as unsigned integers, or fails.
# Truth: where one is above 2**63 the whole column becomes double, and communicators whose hashes
# are close become one in a group-by. NCCL's example profiler plugin writes such numbers
# ("CommHash": %lu). polars and duckdb widen to 128 bits, pandas to unsigned 64.
# Seen with pyarrow 26.0.1, polars 2.1.0, duckdb 2.0.1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile duckdb==2.0.1 polars==2.1.0 pyarrow==26.0.1
fi
cat > "$work/job.py" <<'EOF'
import json

import duckdb
import polars
import pyarrow
import pyarrow.csv
import pyarrow.json


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


# Two communicators that were split from one another.
hashes = [0xC0FFEE0000000001, 0xC0FFEE0000000002]
with open("events.jsonl", "w") as file, open("events.csv", "w") as table:
    table.write("CommHash,SeqNum\n")
    for number in range(4):
        event = {"CommHash": hashes[number % 2], "SeqNum": number}
        file.write(json.dumps(event) + "\n")
        table.write(f"{event['CommHash']},{event['SeqNum']}\n")
for what, read in (
    ("JSON lines", pyarrow.json.read_json("events.jsonl")),
    ("CSV", pyarrow.csv.read_csv("events.csv")),
):
    column = read["CommHash"]
    expect(f"pyarrow {pyarrow.__version__}, {what}: type", str(column.type), "double")
    expect(f"{what}: communicators", len(column.unique()), 1)
counted = polars.read_ndjson("events.jsonl")["CommHash"].n_unique()
expect(f"polars {polars.__version__}: communicators", counted, 2)
query = "select count(distinct CommHash) from 'events.jsonl'"
expect(f"duckdb {duckdb.__version__}: communicators", duckdb.sql(query).fetchall(), [(2,)])
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
