#!/bin/bash
# Guess: torchrun ends with the exit code of the rank that failed, as a shell does, so that a
# scheduler can tell "requeue me" (Slurm jobs use 99 and the like) from a crash; and a rank that was
# killed shows as 128 + the signal.
# Truth: it is 1 whatever the rank's code or signal was. The code stands in a table on stderr only.
# Seen with torch 2.13.0, 2 ranks.
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
import signal
import sys

if os.environ["RANK"] == "1":
    if os.environ["ENDS_BY"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(os.environ["ENDS_BY"]))
EOF
cd "$work"
export OMP_NUM_THREADS=1
expect() {
  echo "$1: $2"
  [ "$2" = "$3" ] || { echo "changed: $1 was $3 and is $2"; exit 1; }
}
of_torchrun() {
  code=0
  ENDS_BY=$1 "$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py \
    2> log || code=$?
  echo $code
}
for ends_by in 7 99 kill; do
  expect "torchrun's exit code, where rank 1 ends by $ends_by" "$(of_torchrun $ends_by)" 1
done
grep -q 'exitcode *: -9' log || { echo "changed: stderr has no table with the code"; exit 1; }
expect "torchrun's exit code, where rank 1 ends by 0" "$(of_torchrun 0)" 0
