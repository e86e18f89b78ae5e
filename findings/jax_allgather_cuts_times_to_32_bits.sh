#!/bin/bash
# Guess: multihost_utils.process_allgather and broadcast_one_to_all of a numpy array give its values
# back: they are for arrays of the host, and a time in ns is int64.
# Truth: unless jax_enable_x64 is set they give the lower 32 bits, without a word: times in ns of all
# processes, with which stragglers would be found or clocks compared, are small numbers, also where
# processes differ by 4.3 s. Seconds in float64 are rounded to 128 s. With jax_enable_x64 all are exact.
# Seen with jax 0.10.2, 2 processes on CPUs, collectives over gloo.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
fi
cat > "$work/job.py" <<'EOF'
import sys

import jax
import numpy
from jax.experimental import multihost_utils

rank, port, wide = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "wide"
jax.config.update("jax_enable_x64", wide)
jax.distributed.initialize(f"localhost:{port}", 2, rank)


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if rank == 0:
        print(f"jax {jax.__version__}, {sys.argv[3]}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def told(array):
    return str(array.dtype), numpy.ravel(array).tolist()


TIME_NS = 1_764_460_800_123_456_789
BEHIND_NS = 2**32 * rank  # 4.3 s: rank 1 is late by this
times_ns = numpy.array([TIME_NS + BEHIND_NS])
low = (TIME_NS + 2**31) % 2**32 - 2**31
gathered = told(multihost_utils.process_allgather(times_ns))
sent = told(multihost_utils.broadcast_one_to_all(times_ns))
seconds = told(multihost_utils.process_allgather(numpy.array([1_764_460_800.0 + 10 * rank])))
if wide:
    expect("times in ns of two processes", gathered, ("int64", [TIME_NS, TIME_NS + 2**32]))
    expect("a time in ns from process 0", sent, ("int64", [TIME_NS]))
    expect("seconds", seconds, ("float64", [1_764_460_800.0, 1_764_460_810.0]))
else:
    expect("times in ns of two processes", gathered, ("int32", [low, low]))
    expect("a time in ns from process 0", sent, ("int32", [low]))
    expect("seconds", seconds, ("float32", [1_764_460_800.0, 1_764_460_800.0]))
EOF
cd "$work"
for width in narrow wide; do
  port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("localhost", 0)); print(s.getsockname()[1])')
  "$python" job.py 1 "$port" $width &
  "$python" job.py 0 "$port" $width
  wait
done
