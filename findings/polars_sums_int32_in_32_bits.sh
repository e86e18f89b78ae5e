#!/bin/bash
# Guess: the sum of a column of 32-bit integers is 64 bits wide, as in numpy, pandas, pyarrow and
# duckdb; polars widens 8 and 16 bits too.
# Truth: polars adds Int32 and UInt32 in 32 bits and wraps without a word, in group_by and in SQL as
# well: four calls of 0.9 s are -0.69 s in ns. Running sums wrap in polars and in pyarrow, whose sum
# does not; numpy's and pandas' are 64 bits wide. mean() is right in all.
# Seen with polars 2.1.0, pyarrow 26.0.1, numpy 2.4.6, pandas 3.1.1, duckdb 2.0.1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile polars==2.1.0 pyarrow==26.0.1 numpy==2.4.6 pandas==3.1.1 duckdb==2.0.1
fi
cat > "$work/job.py" <<'EOF'
import duckdb
import numpy
import pandas
import polars
import pyarrow
import pyarrow.compute


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


CALL_NS = 900_000_000  # fits into 32 bits
TOTAL_NS = 4 * CALL_NS
WRAPPED_NS = TOTAL_NS - 2**32
calls_ns = numpy.full(4, CALL_NS, numpy.int32)
frame = polars.DataFrame({"op": ["all_reduce"] * 4, "ns": calls_ns})
table = pyarrow.table({"op": ["all_reduce"] * 4, "ns": calls_ns})
expect("polars, type of the column", str(frame["ns"].dtype), "Int32")
expect("polars, sum", frame["ns"].sum(), WRAPPED_NS)
by_op = frame.group_by("op").agg(polars.col("ns").sum())
expect("polars, sum of a group", by_op["ns"].to_list(), [WRAPPED_NS])
in_sql = frame.sql("select sum(ns) as ns from self")["ns"].item()
expect("polars, sum in SQL", in_sql, WRAPPED_NS)
expect("polars, sum of UInt32", polars.Series([2**32 - 1, 2], dtype=polars.UInt32).sum(), 1)
small = polars.Series([30_000] * 4, dtype=polars.Int16)
expect("polars, sum of Int16", small.sum(), 120_000)
expect("polars, mean", frame["ns"].mean(), float(CALL_NS))
expect("polars, sum of the cast column", frame["ns"].cast(polars.Int64).sum(), TOTAL_NS)
expect("numpy, sum", int(calls_ns.sum()), TOTAL_NS)
expect("pandas, sum", int(pandas.Series(calls_ns).sum()), TOTAL_NS)
grouped = pandas.DataFrame({"op": 0, "ns": calls_ns}).groupby("op")["ns"].sum()
expect("pandas, sum of a group", int(grouped.iloc[0]), TOTAL_NS)
expect("pyarrow, sum", pyarrow.compute.sum(table["ns"]).as_py(), TOTAL_NS)
grouped = table.group_by("op").aggregate([("ns", "sum")])
expect("pyarrow, sum of a group", grouped["ns_sum"].to_pylist(), [TOTAL_NS])
expect("duckdb, sum", duckdb.sql("select sum(ns)::bigint from frame").fetchall(), [(TOTAL_NS,)])
expect("polars, last running sum", frame["ns"].cum_sum()[-1], WRAPPED_NS)
running = pyarrow.compute.cumulative_sum(table["ns"])
expect("pyarrow, last running sum", running[-1].as_py(), WRAPPED_NS)
expect("numpy, last running sum", int(calls_ns.cumsum()[-1]), TOTAL_NS)
expect("pandas, last running sum", int(pandas.Series(calls_ns).cumsum().iloc[-1]), TOTAL_NS)
EOF
cd "$work"
"$python" job.py
