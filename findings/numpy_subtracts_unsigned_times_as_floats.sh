#!/bin/bash
# Guess: the difference of two times in ns is exact where both are 64-bit integers, of which one is
# signed and the other is not: one recorder writes uint64, the other int64.
# Truth: numpy and pandas make float64 of both first, whose steps are 256 ns at today's wall clock,
# and an event 137 ns after another is 0 ns after it, or 256. polars, pyarrow and duckdb are exact.
# The median of int64 is float64 too, in all five: 106 ns off on the same clock; quantile_disc of
# duckdb is exact.
# Seen with numpy 2.4.6, pandas 3.1.1, polars 2.1.0, pyarrow 26.0.1, duckdb 2.0.1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile numpy==2.4.6 pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1 duckdb==2.0.1
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


BEGIN_NS = 1_764_460_800_123_456_652  # in November 2025
begin = numpy.array([BEGIN_NS], dtype=numpy.int64)
end = numpy.array([BEGIN_NS + 137], dtype=numpy.uint64)
frame = pandas.DataFrame({"begin": begin, "end": end})
table = pyarrow.table({"begin": begin, "end": end})
expect("numpy: 137 ns as a difference", (end - begin).tolist(), [0.0])
expect("pandas: the same", (frame["end"] - frame["begin"]).tolist(), [0.0])
of_polars = polars.from_arrow(table).select(polars.col("end") - polars.col("begin"))
expect("polars: the same", of_polars.to_series().to_list(), [137])
of_pyarrow = pyarrow.compute.subtract(table["end"], table["begin"])
expect("pyarrow: the same", of_pyarrow.to_pylist(), [137])
of_duckdb = duckdb.sql('select "end" - "begin" from "table"').fetchall()
expect("duckdb: the same", of_duckdb, [(137,)])

times = numpy.array([BEGIN_NS, BEGIN_NS + 10, BEGIN_NS + 20], dtype=numpy.int64)
moments = pyarrow.table({"moment_ns": times})
medians = {
    "numpy": numpy.median(times),
    "pandas": pandas.Series(times).median(),
    "polars": polars.Series(times).median(),
    "pyarrow": pyarrow.compute.quantile(times, 0.5)[0].as_py(),
    "duckdb": duckdb.sql("select median(moment_ns) from moments").fetchall()[0][0],
}
wrong_ns = {name: int(median) - BEGIN_NS - 10 for name, median in medians.items()}
expect("error of the median in ns", wrong_ns, dict.fromkeys(medians, 106))
exact = duckdb.sql("select quantile_disc(moment_ns, 0.5) from moments").fetchall()[0][0]
expect("duckdb: error of quantile_disc", exact - BEGIN_NS - 10, 0)
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
