#!/bin/bash
# Guess: duckdb and polars read every key of a file of JSON lines, or fail where one comes up late.
# Truth: both take the columns from the first lines (duckdb 20,480, polars 100) and drop later keys
# without a word: of an NCCL Inspector log whose messages (p2p_perf) begin after its collectives,
# no message is read. polars drops late keys inside of an object too (an algorithm's name), where
# duckdb raises. pyarrow and pandas read them all.
# Seen with duckdb 2.0.1, polars 2.1.0, pyarrow 26.0.1.
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
import pyarrow.json


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


header = {"id": "0x9e7a479f95a66c", "rank": 0, "n_ranks": 2, "nnodes": 1}
collective = {"coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 4096}
message = {"p2p": "Send", "p2p_sn": 1, "p2p_peer": 1, "p2p_msg_size_bytes": 8192}
with open("log.jsonl", "w") as file:
    for _ in range(30_000):
        file.write(json.dumps({"header": header, "coll_perf": collective}) + "\n")
    for _ in range(10):
        file.write(json.dumps({"header": header, "p2p_perf": message}) + "\n")
first = ["header", "coll_perf"]
expect(f"duckdb {duckdb.__version__}", duckdb.sql("select * from 'log.jsonl'").columns, first)
expect(f"polars {polars.__version__}", polars.read_ndjson("log.jsonl").columns, first)
lazy = polars.scan_ndjson("log.jsonl").collect().columns
expect("polars, lazily", lazy, first)
read = pyarrow.json.read_json("log.jsonl").column_names
expect(f"pyarrow {pyarrow.__version__}", read, [*first, "p2p_perf"])
with open("nested.jsonl", "w") as file:
    for _ in range(30_000):
        file.write(json.dumps({"coll_perf": collective}) + "\n")
    file.write(json.dumps({"coll_perf": {**collective, "coll_algo": "RING"}}) + "\n")
fields = [field.name for field in polars.read_ndjson("nested.jsonl").schema["coll_perf"].fields]
expect("polars, inside of an object", fields, list(collective))
try:
    told = duckdb.sql("select count(coll_perf) from 'nested.jsonl'").fetchall()
except duckdb.InvalidInputException as error:
    told = "unknown key" in str(error)
expect("duckdb, inside of an object, raises", told, True)
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
