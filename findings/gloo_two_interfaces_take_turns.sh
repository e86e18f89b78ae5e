#!/bin/bash
# Guess: GLOO_SOCKET_IFNAME=a,b spreads a large collective over both interfaces, and the group has
# as many threads as over one.
# Truth: each collective runs over one of them, whole, and the next over the other: a single large
# all-reduce is no faster, the barriers between all-reduces take every second turn, and so all
# all-reduces can end up on the same interface. Each interface adds three threads to each group.
# Seen with torch 2.13.0, gloo, 2 ranks, two virtual interfaces in a network namespace of its own
# (unshare, ip and ss, as root).
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
import re
import subprocess
import time
from collections import Counter

import torch
import torch.distributed as dist


def sent_bytes():
    """Bytes sent so far by connections of this namespace, by their local address."""
    command = ["ss", "--tcp", "--numeric", "--info", "--no-header", "--oneline"]
    sent = Counter()
    for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines():
        address = re.search(r" (10[.]1[12][.]0[.]1):", line)
        number = re.search(r"bytes_sent:(\d+)", line)
        if address and number:
            sent[address.group(1)] += int(number.group(1))
    return sent


def interfaces(calls):
    """Addresses that carry more than a megabyte of each call."""
    used = []
    for call in calls:
        before = sent_bytes()
        dist.barrier(ends)
        call()
        time.sleep(0.2)
        dist.barrier(ends)
        after = sent_bytes()
        used.append([name for name in sorted(after) if after[name] - before[name] > 1_000_000])
    return used


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def threads():
    return len(os.listdir("/proc/self/task"))


dist.init_process_group("gloo")
tensor = torch.ones(1 << 22)
interfaces_of_job = os.environ["GLOO_SOCKET_IFNAME"]
os.environ["GLOO_SOCKET_IFNAME"] = "a0"
before = threads()
ends = dist.new_group()  # takes the barriers around the calls
expect("threads of a group on one interface", threads() - before, 3)
os.environ["GLOO_SOCKET_IFNAME"] = interfaces_of_job
before = threads()
both = dist.new_group()
expect("threads of a group on two interfaces", threads() - before, 6)


def all_reduce():
    dist.all_reduce(tensor, group=both)


def all_reduce_and_barrier():
    all_reduce()
    dist.barrier(both)


first, second = "10.11.0.1", "10.12.0.1"
all_reduce()
expect("all-reduces", interfaces([all_reduce] * 4), [[second], [first]] * 2)
expect("with barriers", interfaces([all_reduce_and_barrier] * 4), [[second]] * 4)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1
export python
unshare --net bash -euo pipefail <<'EOF'
ip link set lo up
for name in a b; do ip link add "${name}0" type veth peer name "${name}1"; done
ip address add 10.11.0.1/24 dev a0
ip address add 10.12.0.1/24 dev b0
for name in a0 a1 b0 b1; do ip link set "$name" up; done
export GLOO_SOCKET_IFNAME=a0,b0
"$python" -m torch.distributed.run --standalone --nproc-per-node 2 job.py
EOF
