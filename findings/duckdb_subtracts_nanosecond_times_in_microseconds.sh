#!/bin/bash
# Guess: the difference of two TIMESTAMP_NS in duckdb is exact, or is at least not 0 where one is
# larger.
# Truth: both are rounded to microseconds first: 137 ns are 0 and 900 ns can be 1 us, so a - b is 0
# where a > b is true, and 1,000 calls of 400 ns take 0. date_trunc and time_bucket round to the
# nearest microsecond before they cut, so that a time can be put into a later second. Differences of
# epoch_ns() are exact; polars, pyarrow and pandas subtract in ns.
# Seen with duckdb 2.0.1, polars 2.1.0, pyarrow 26.0.1, pandas 3.1.1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile duckdb==2.0.1 polars==2.1.0 pyarrow==26.0.1 pandas==3.1.1 numpy==2.4.6
fi
cat > "$work/job.py" <<'EOF'
import duckdb
import polars
import pyarrow
import pyarrow.compute


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def row(query):
    return duckdb.sql(query).fetchall()[0]


BEGIN_NS = 1_764_460_800_123_456_652  # in November 2025
times = pyarrow.timestamp("ns")
calls = pyarrow.table({
    "began": pyarrow.array([BEGIN_NS], times), "ended": pyarrow.array([BEGIN_NS + 137], times),
})
expect("duckdb reads them as", [str(kind) for kind in duckdb.sql("from calls").types], ["TIMESTAMP_NS"] * 2)
us = "epoch_us(ended - began)"
expect("duckdb: difference in us, whether later", row(f"select {us}, ended > began from calls"), (0, True))
exact = row("select epoch_ns(ended) - epoch_ns(began) from calls")
expect("duckdb: difference of epoch_ns", exact, (137,))
of_polars = polars.from_arrow(calls).select((polars.col("ended") - polars.col("began")).dt.total_nanoseconds())
expect("polars", of_polars.to_series().to_list(), [137])
of_pyarrow = pyarrow.compute.subtract(calls["ended"], calls["began"]).cast("int64").to_pylist()
expect("pyarrow", of_pyarrow, [137])
of_pandas = calls.to_pandas()
expect("pandas", [int(ns) for ns in (of_pandas["ended"] - of_pandas["began"]).astype("int64")], [137])

start_ns = BEGIN_NS // 1000 * 1000
begins = [start_ns + number * 1000 for number in range(1000)]
short = pyarrow.table({
    "began": pyarrow.array(begins, times), "ended": pyarrow.array([ns + 400 for ns in begins], times),
})
expect("duckdb: us of 1,000 calls of 400 ns", row(f"select sum({us}) from short"), (0,))
short = short.set_column(1, "ended", pyarrow.array([ns + 600 for ns in begins], times))
expect("duckdb: us of 1,000 calls of 600 ns", row(f"select sum({us}) from short"), (1000,))

last_ns = BEGIN_NS // 1_000_000_000 * 1_000_000_000 + 999_999_900
late = pyarrow.table({"moment": pyarrow.array([last_ns], times)})
for cut in ("date_trunc('second', moment)", "time_bucket(interval 1 second, moment)"):
    later_ns = row(f"select epoch_ns({cut}) - epoch_ns(moment) from late")
    expect(f"duckdb: ns by which {cut} is later than its moment", later_ns, (100,))
of_polars = polars.from_arrow(late).select(polars.col("moment").dt.truncate("1s").dt.timestamp("ns"))
expect("polars: truncated by ns", last_ns - of_polars.item(), 999_999_900)
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
