#!/bin/bash
# Guess: a CSV column of communicator ids such as 0x9e7a479f95a66c is text in every reader.
# Truth: duckdb and pyarrow read it as integers, and not as the same ones: pyarrow gives negative
# numbers from 2**63 on. The ids then match neither each other nor those of the JSON log of the
# same run, which both read as text. polars and pandas read text.
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
import duckdb
import polars
import pyarrow.csv


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


with open("communicators.csv", "w") as table, open("log.jsonl", "w") as file:
    table.write("id,name\n0x9e7a479f95a66c,data\n0xfffffffffffffff1,tensor\n")
    file.write('{"id": "0x9e7a479f95a66c", "us": 12}\n{"id": "0xfffffffffffffff1", "us": 7}\n')
read = duckdb.sql("select id from 'communicators.csv'").fetchall()
expect(f"duckdb {duckdb.__version__}, CSV", read, [(44607494358935148,), (18446744073709551601,)])
read = pyarrow.csv.read_csv("communicators.csv")["id"].to_pylist()
expect(f"pyarrow {pyarrow.__version__}, CSV", read, [44607494358935148, -15])
read = duckdb.sql("select id from 'log.jsonl'").fetchall()
expect("duckdb, JSON", read, [("0x9e7a479f95a66c",), ("0xfffffffffffffff1",)])
query = "select count(*) from 'communicators.csv' c join 'log.jsonl' l on c.id::varchar = l.id"
expect("rows of duckdb's join", duckdb.sql(query).fetchall(), [(0,)])
text = ["0x9e7a479f95a66c", "0xfffffffffffffff1"]
expect(f"polars {polars.__version__}", polars.read_csv("communicators.csv")["id"].to_list(), text)
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
