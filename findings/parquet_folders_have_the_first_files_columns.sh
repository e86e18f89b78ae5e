#!/bin/bash
# Guess: of a folder of Parquet files, one per rank, a column that not all files have is null where it is
# missing, or the folder is refused.
# Truth: it depends on the order of names. A column that the first file lacks is dropped from all by
# pyarrow, pandas and duckdb, without a word; one that a later file lacks is null there in pyarrow and
# pandas, and an error in duckdb. Integers of ns and durations are mixed as if they were one. polars
# refuses all three. duckdb's union_by_name reads both kinds of folder.
# Seen with pyarrow 26.0.1, pandas 3.1.1, duckdb 2.0.1, polars 2.1.0.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile pyarrow==26.0.1 pandas==3.1.1 duckdb==2.0.1 polars==2.1.0 numpy==2.4.6
fi
cat > "$work/job.py" <<'EOF'
from pathlib import Path

import duckdb
import pandas
import polars
import pyarrow
import pyarrow.parquet


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def folder(name, *tables):
    """Writes rank0.parquet and so on."""
    Path(name).mkdir()
    for rank, table in enumerate(tables):
        pyarrow.parquet.write_table(pyarrow.table(table), f"{name}/rank{rank}.parquet")
    return name


def columns(read, *arguments):
    """Names of the columns that are read, or the kind of error."""
    try:
        return list(read(*arguments))
    except Exception as error:
        return type(error).__name__


def by_pyarrow(name):
    return pyarrow.parquet.read_table(name).column_names


def by_duckdb(name, options=""):
    return duckdb.sql(f"select * from read_parquet('{name}/*.parquet'{options})").fetchdf()


def by_polars(name):
    return polars.read_parquet(f"{name}/*.parquet")


first_lacks = folder("first_lacks", {"ns": [10]}, {"ns": [20], "phase": ["backward"]})
expect("rank 0 lacks it, pyarrow", columns(by_pyarrow, first_lacks), ["ns"])
expect("rank 0 lacks it, pandas", columns(pandas.read_parquet, first_lacks), ["ns"])
expect("rank 0 lacks it, duckdb", columns(by_duckdb, first_lacks), ["ns"])
expect("rank 0 lacks it, polars", columns(by_polars, first_lacks), "SchemaError")
later_lacks = folder("later_lacks", {"ns": [20], "phase": ["backward"]}, {"ns": [10]})
both = ["ns", "phase"]
expect("rank 1 lacks it, pyarrow", columns(by_pyarrow, later_lacks), both)
expect("rank 1 lacks it, pandas", columns(pandas.read_parquet, later_lacks), both)
expect("rank 1 lacks it, duckdb", columns(by_duckdb, later_lacks), "InvalidInputException")
expect("rank 1 lacks it, polars", columns(by_polars, later_lacks), "ColumnNotFoundError")
for name in (first_lacks, later_lacks):
    expect(f"{name}, union_by_name", columns(by_duckdb, name, ", union_by_name=true"), both)
durations = pyarrow.array([5], pyarrow.duration("us"))
mixed = folder("mixed", {"ns": [1500]}, {"ns": durations})
expect("ns and microseconds, pyarrow", pyarrow.parquet.read_table(mixed)["ns"].to_pylist(), [1500, 5])
expect("ns and microseconds, polars", columns(by_polars, mixed), "SchemaError")
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
