#!/bin/bash
# Guess: with GLOO_SOCKET_IFNAME=eth0 the traffic of gloo is in eth0's counters, so that a graph of
# eth0 shows what the ranks exchange.
# Truth: between ranks of one host Linux delivers to the host's own address over lo, whatever
# interface gloo was told to use: eth0 counts nothing of it, lo all, and each byte once as sent and
# once as received. Of a job on several hosts eth0 counts the part that leaves the host.
# Seen with torch 2.13.0, gloo, 2 ranks, Linux 6.18.
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
import pathlib

import torch
import torch.distributed as dist


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def sent_bytes(interface):
    """Bytes that the kernel has counted as sent by an interface."""
    rows = pathlib.Path("/proc/net/dev").read_text().splitlines()
    row = next(row for row in rows if row.strip().startswith(f"{interface}:"))
    return int(row.partition(":")[2].split()[8])


MIB = 1 << 20
interface = os.environ["GLOO_SOCKET_IFNAME"]
dist.init_process_group("gloo")
dist.barrier()
before = {name: sent_bytes(name) for name in (interface, "lo")}
for _ in range(8):
    dist.all_reduce(torch.ones(MIB))
dist.barrier()
sent = {name: sent_bytes(name) - before[name] for name in before}
expect("less than 1 MiB of 64 MiB is counted on gloo's interface", sent[interface] < MIB, True)
expect("64 MiB or more are counted on lo", sent["lo"] >= 64 * MIB, True)
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
GLOO_SOCKET_IFNAME=$(ip -o -4 route show default | sed 's/.* dev \([^ ]*\).*/\1/' | head -n 1)
[ -n "$GLOO_SOCKET_IFNAME" ] || { echo "this machine has no interface but lo"; exit 1; }
export GLOO_SOCKET_IFNAME
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
