#!/bin/bash
# Guess: torchfrtrace, which is installed with torch, analyses Flight Recorder's dumps of gloo that
# the same torch has written, as it does NCCL's.
# Truth: it ends with KeyError ('0', 0): the entries call the default group "0", the dump's own
# table of groups calls it "".
# Seen with torch 2.13.0, gloo, 2 ranks, three finished all-reduces.
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
import pickle

import torch
import torch.distributed as dist


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


dist.init_process_group("gloo")
rank = dist.get_rank()
for _ in range(3):
    dist.all_reduce(torch.ones(4))
dist.barrier()
dump = torch._C._distributed_c10d._dump_fr_trace()
with open(f"dumps/rank_{rank}", "wb") as file:
    file.write(dump)
content = pickle.loads(dump)
expect("names in the table of groups", list(content["pg_config"]), [""])
expect("name in an entry", content["entries"][0]["process_group"][0], "0")
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
mkdir dumps
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
if "$(dirname "$python")/torchfrtrace" dumps -p rank_ > analysis 2>&1; then
  echo "changed: torchfrtrace analysed the dumps"
  exit 1
fi
tail -1 analysis
grep -q "KeyError: ('0', 0)" analysis || { echo "changed: torchfrtrace failed otherwise"; exit 1; }
