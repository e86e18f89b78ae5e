#!/bin/bash
# Guess: `py-spy record` of a rank that spends nearly all of its time waiting inside all_reduce
# shows just that.
# Truth: a thread that waits inside c10d sleeps, py-spy calls it idle, and `record` leaves idle
# threads out: hardly a sample names all_reduce, and the flame graph is of the little rest. With
# `--idle` nearly all samples of the main thread do.
# Seen with py-spy 0.4.3, torch 2.13.0, gloo, 2 ranks.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile torch==2.13.0 numpy==2.4.6 py-spy==0.4.3
fi
cat > "$work/job.py" <<'EOF'
import sys
import time

import torch
import torch.distributed as dist

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
dist.barrier()
for _ in range(12):
    if rank == 1:
        time.sleep(0.5)  # rank 0 waits for it in all_reduce
    dist.all_reduce(torch.ones(4))
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
spy=$(dirname "$python")/py-spy
for option in "" --idle; do
  "$python" job.py 1 "$work/store$option" &
  # shellcheck disable=SC2086 # no option is no word
  "$spy" record $option --format raw --rate 20 --output "raw$option" -- \
    "$python" job.py 0 "$work/store$option" > "log$option" 2>&1
  wait $!
done
"$python" - <<'EOF'
def waiting(path):
    """Number of samples inside all_reduce; at 20 a second, rank 0 waits through about 120."""
    rows = [line.rsplit(" ", 1) for line in open(path)]
    return sum(int(count) for stack, count in rows if "all_reduce" in stack)


default, with_idle = waiting("raw"), waiting("raw--idle")
print(f"samples inside all_reduce, of about 120: {default}, with --idle {with_idle}")
if not default < 30 < 60 < with_idle:
    raise SystemExit("changed: all_reduce had hardly a sample, and most of them with --idle")
EOF
