#!/bin/bash
# Guess: numpy adds float32 pairwise, so that a mean over many rows is right to six digits or so.
# Truth: it does so only along the axis that is contiguous in memory. The columns of an array of
# rows, as in samples x metrics, are added one row after the other: a column of ones stops at 2**24,
# and its mean over 20,000,000 rows is 0.84; the mean of 4,000,000 steps of 5.1 ms is 5.18 ms. The
# same column alone, a transposed copy, dtype=float64 and pandas are right; so is torch.
# Seen with numpy 2.4.6, pandas 3.1.1, torch 2.13.0.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile numpy==2.4.6 pandas==3.1.1 torch==2.13.0
fi
cat > "$work/job.py" <<'EOF'
import numpy
import pandas
import torch


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def digits(numbers):
    return [round(float(number), 4) for number in numbers]


ones = numpy.ones((20_000_000, 2), numpy.float32)
expect("mean(axis=0) of ones", digits(ones.mean(axis=0)), [0.8389, 0.8389])
expect("sum(axis=0)", [int(total) for total in ones.sum(axis=0)], [2**24, 2**24])
expect("numpy.average(axis=0)", digits(numpy.average(ones, axis=0)), [0.8389, 0.8389])
expect("mean() of all", digits([ones.mean()]), [1.0])
expect("mean of a column alone", digits([ones[:, 0].mean()]), [1.0])
expect("mean of the transposed view", digits(ones.T.mean(axis=1)), [0.8389, 0.8389])
expect("mean of a transposed copy", digits(ones.T.copy().mean(axis=1)), [1.0, 1.0])
expect("mean(axis=0, dtype=float64)", digits(ones.mean(axis=0, dtype=numpy.float64)), [1.0, 1.0])
expect("pandas", digits(pandas.DataFrame(ones).mean()), [1.0, 1.0])
expect("torch", digits(torch.from_numpy(ones).mean(0)), [1.0, 1.0])
del ones
steps_ms = numpy.full((4_000_000, 2), 5.1, numpy.float32)
expect("steps of 5.1 ms, 4,000,000 rows", digits(steps_ms.mean(axis=0)), [5.1756] * 2)
expect("and one column alone", digits([steps_ms[:, 0].mean()]), [5.1])
EOF
cd "$work"
"$python" job.py
