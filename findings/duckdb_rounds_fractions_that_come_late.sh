#!/bin/bash
# Guess: durations that are whole for a long time and have a fraction later are read as they are, or an
# error says which row does not fit.
# Truth: duckdb takes a column's type from the first 20,480 rows and rounds what comes later: 0.4 us become
# 0 and 1.5 us 2, of JSON lines and of CSV, without a word. Of a folder of Parquet files it rounds all files
# whose column is a double if the first one's is an integer. pyarrow and pandas read the fractions,
# polars raises; of the Parquet files pyarrow raises too. With sample_size=-1 duckdb reads them right.
# Seen with duckdb 2.0.1, pyarrow 26.0.1, pandas 3.1.1, polars 2.1.0.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile duckdb==2.0.1 pyarrow==26.0.1 pandas==3.1.1 polars==2.1.0 numpy==2.4.6
fi
cat > "$work/job.py" <<'EOF'
from pathlib import Path

import duckdb
import pandas
import polars
import pyarrow
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def refused(read, *arguments):
    try:
        read(*arguments)
    except Exception as error:
        return type(error).__name__
    return "no"


def by_duckdb(source):
    return [value for (value,) in duckdb.sql(f"select us from {source}").fetchall()][-3:]


WHOLE, LATE = 25_000, [0.4, 1.5, 2.25]
with open("calls.jsonl", "w") as lines, open("calls.csv", "w") as table:
    table.write("us\n")
    for us in [7] * WHOLE + LATE:
        lines.write(f'{{"us": {us}}}\n')
        table.write(f"{us}\n")
ROUNDED = [0, 2, 2]
print(duckdb.__version__)
expect("duckdb, JSON lines", by_duckdb("'calls.jsonl'"), ROUNDED)
expect("duckdb, CSV", by_duckdb("'calls.csv'"), ROUNDED)
expect("duckdb, sample_size=-1", by_duckdb("read_json('calls.jsonl', sample_size=-1)"), LATE)
expect("duckdb, CSV, sample_size=-1", by_duckdb("read_csv('calls.csv', sample_size=-1)"), LATE)
expect("pyarrow, JSON lines", pyarrow.json.read_json("calls.jsonl")["us"].to_pylist()[-3:], LATE)
expect("pyarrow, CSV", pyarrow.csv.read_csv("calls.csv")["us"].to_pylist()[-3:], LATE)
expect("pandas, JSON lines", pandas.read_json("calls.jsonl", lines=True)["us"].tolist()[-3:], LATE)
expect("pandas, CSV", pandas.read_csv("calls.csv")["us"].tolist()[-3:], LATE)
expect("polars, JSON lines", refused(polars.read_ndjson, "calls.jsonl"), "ComputeError")
expect("polars, CSV", refused(polars.read_csv, "calls.csv"), "ComputeError")
Path("ranks").mkdir()
pyarrow.parquet.write_table(pyarrow.table({"us": [7]}), "ranks/rank0.parquet")
pyarrow.parquet.write_table(pyarrow.table({"us": LATE}), "ranks/rank1.parquet")
expect("duckdb, Parquet files", by_duckdb("'ranks/*.parquet'"), ROUNDED)
expect("pyarrow, Parquet files", refused(pyarrow.parquet.read_table, "ranks"), "ArrowInvalid")
expect("polars, Parquet files", refused(polars.read_parquet, "ranks/*.parquet"), "SchemaError")
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
