#!/bin/bash
# Guess: torchrun sets OMP_NUM_THREADS=1, so that a run with one rank is the baseline for runs with
# several: each rank computes with one thread.
# Truth: it does so from two ranks per host on. A single rank has as many threads as the machine has
# cores, and the speed-up from one to two ranks looks far too small: the one rank had all cores.
# Seen with torch 2.13.0, on 2 cores.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile torch==2.13.0 numpy==2.4.6
fi
cat > "$work/job.py" <<'EOF'
import os

import torch

if os.environ.get("RANK", "0") == "0":
    print(torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS", "unset"))
EOF
cd "$work"
unset OMP_NUM_THREADS
expect() {
  echo "$1: $2"
  [ "$2" = "$3" ] || { echo "changed: $1 was $3 and is $2"; exit 1; }
}
plain=$("$python" job.py)
[ "$plain" != "1 unset" ] || { echo "this machine has one core: there is nothing to see here"; exit 1; }
for ranks in 1 2; do
  found=$("$python" -m torch.distributed.run --standalone --nproc-per-node $ranks job.py 2> log)
  wanted=$([ $ranks = 1 ] && echo "$plain" || echo "1 1")
  expect "threads of a rank and OMP_NUM_THREADS under torchrun, $ranks rank(s)" "$found" "$wanted"
done
