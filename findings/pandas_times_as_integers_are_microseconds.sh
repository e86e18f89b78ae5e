#!/bin/bash
# Guess: astype("int64") of a pandas column of times is ns since 1970, as it was for ten years, so
# that / 1e9 gives seconds.
# Truth: since pandas 3 it is in the column's own unit: times that were read from text, CSV or JSON
# or are datetime objects are in microseconds, those of Parquet and integers in ns. One program so
# reads the same times from a CSV and from a Parquet file 1,000 times apart, and 1970 in place of
# 2025. Timestamp.value stays in ns; of durations the same is true. as_unit("ns") makes them equal.
# Seen with pandas 3.1.1, pyarrow 26.0.1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile pandas==3.1.1 numpy==2.4.6 pyarrow==26.0.1
fi
cat > "$work/job.py" <<'EOF'
import datetime
import io

import pandas


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


BEGIN_NS = 1_764_460_800_123_456_789
text = str(pandas.Timestamp(BEGIN_NS))
table = pandas.DataFrame({"began": pandas.to_datetime([BEGIN_NS])})
table.to_parquet("calls.parquet")
short = pandas.DataFrame({"began": pandas.to_datetime([BEGIN_NS // 1000 * 1000])})
csv = pandas.read_csv(io.StringIO(short.to_csv(index=False)), parse_dates=["began"])["began"]
parquet = pandas.read_parquet("calls.parquet")["began"]


def as_integers(column):
    return str(column.dtype), int(column.astype("int64").iloc[0])


expect("of integers in ns", as_integers(table["began"]), ("datetime64[ns]", BEGIN_NS))
expect("of a Parquet file", as_integers(parquet), ("datetime64[ns]", BEGIN_NS))
expect("of a CSV", as_integers(csv), ("datetime64[us]", BEGIN_NS // 1000))
seconds = csv.astype("int64") / 1e9
expect("the CSV's / 1e9, as a year", pandas.to_datetime(seconds, unit="s").dt.year.tolist(), [1970])
now = pandas.Series([datetime.datetime(2025, 11, 30)])
expect("of a datetime", as_integers(now), ("datetime64[us]", 1_764_460_800_000_000))
expect("its .value", now.iloc[0].value, 1_764_460_800_000_000_000)
expect("of a date as text", as_integers(pandas.to_datetime(pandas.Series(["2025-11-30"])))[0], "datetime64[us]")
expect("of a text with ns", as_integers(pandas.to_datetime(pandas.Series([text]))), ("datetime64[ns]", BEGIN_NS))
lengths = pandas.Series(pandas.to_timedelta(["1ms"]))
expect("of a duration as text", as_integers(lengths), ("timedelta64[us]", 1000))
expect("after as_unit", as_integers(csv.dt.as_unit("ns")), ("datetime64[ns]", BEGIN_NS // 1000 * 1000))
EOF
cd "$work"
"$python" job.py
