#!/bin/bash
# Guess: the sum of a BIGINT column in duckdb is an integer wherever it goes.
# Truth: it is a HUGEINT of 128 bits, which fetchall, arrow and polars keep, but pandas, numpy and
# Parquet files have no such type: there it is a double, without a word. Beyond 2**53 it is rounded:
# the bytes of a rank at 400 GB/s after 6.3 hours, or a sum of two times in ns since 1970. So it is
# with sums of INTEGER, and with max() - min() of UBIGINT it is not. sum(x)::BIGINT is exact.
# Seen with duckdb 2.0.1, pandas 3.1.1, numpy 2.4.6, pyarrow 26.0.1, polars 2.1.0.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile duckdb==2.0.1 pandas==3.1.1 numpy==2.4.6 pyarrow==26.0.1 polars==2.1.0
fi
cat > "$work/job.py" <<'EOF'
import duckdb
import pyarrow.parquet


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


BYTES = 2**53  # what a rank of 400 GB/s has sent after 6.3 hours
duckdb.sql(f"create table sent as select unnest([{BYTES}, 1])::bigint as bytes")
total = duckdb.sql("select sum(bytes) as bytes from sent")
expect("type in duckdb", str(total.types[0]), "HUGEINT")
expect("fetchall", total.fetchall(), [(BYTES + 1,)])
expect("arrow", int(total.to_arrow_table()["bytes"][0].as_py()), BYTES + 1)
expect("polars", int(total.pl()["bytes"][0]), BYTES + 1)
frame = total.df()
expect("pandas", (str(frame["bytes"].dtype), int(frame["bytes"][0])), ("float64", BYTES))
array = total.fetchnumpy()["bytes"]
expect("numpy", (str(array.dtype), int(array[0])), ("float64", BYTES))
duckdb.sql("copy (select sum(bytes) as bytes from sent) to 'total.parquet'")
expect("Parquet, type", str(pyarrow.parquet.read_schema("total.parquet").field("bytes").type), "double")
expect("Parquet, read by duckdb", duckdb.sql("from 'total.parquet'").fetchall(), [(float(BYTES),)])
small = duckdb.sql("select sum(bytes::int) as bytes from sent where bytes = 1")
expect("pandas, sum of INTEGER", str(small.df()["bytes"].dtype), "float64")
span = duckdb.sql("select max(bytes::ubigint) - min(bytes::ubigint) as bytes from sent")
expect("pandas, difference of UBIGINT", str(span.df()["bytes"].dtype), "uint64")
cast = duckdb.sql("select sum(bytes)::bigint as bytes from sent")
expect("pandas, sum(bytes)::bigint", (str(cast.df()["bytes"].dtype), int(cast.df()["bytes"][0])), ("int64", BYTES + 1))
EOF
cd "$work"
"$python" job.py
