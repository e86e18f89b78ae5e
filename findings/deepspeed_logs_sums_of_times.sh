#!/bin/bash
# Guess: DeepSpeed's communication logger tells each call's time, and algbw and busbw as nccl-tests
# defines them, to which its source refers.
# Truth: each time is the sum of the times of all calls of that name so far, so that bandwidths fall as
# a job runs: after one call that waited a second for a late rank, every later one takes a second. The
# algbw of an all-reduce is twice size / time; a reduce-scatter's size is its whole input, and is
# multiplied by the ranks once more, in both bandwidths. A call in a smaller group is counted with the
# ranks of the job. Bandwidths are in bits.
# Seen with deepspeed 0.19.8, torch 2.13.0, gloo, 4 ranks. Its own CPU kernels are left unbuilt.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile torch==2.13.0 numpy==2.4.6 setuptools wheel ninja
  DS_ACCELERATOR=cpu DS_BUILD_OPS=0 "$python" -m pip install -q --no-compile --no-build-isolation deepspeed==0.19.8
fi
cat > "$work/job.py" <<'EOF'
import time

import deepspeed.comm as dist
import deepspeed.ops
import torch


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 0 sees something else than what this file states."""
    if dist.get_rank() == 0:
        print(f"torch {torch.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled first
dist.init_distributed("gloo", verbose=False)
dist.configure(enabled=True, prof_all=True, verbose=False)
rank, ranks = dist.get_rank(), dist.get_world_size()
MEBIBYTE = 2**20
part, whole = torch.zeros(MEBIBYTE // 4), torch.zeros(ranks * MEBIBYTE // 4)
if rank == 1:
    time.sleep(1)
begin = time.monotonic()
for _ in range(20):
    dist.all_reduce(part)
loop_ms = (time.monotonic() - begin) * 1000
dist.all_gather_into_tensor(whole, part)
dist.reduce_scatter_tensor(part, whole)
pair = dist.new_group([0, 1])
if rank < 2:
    dist.all_reduce(torch.zeros(8), group=pair)
logged = dist.comms_logger.get_raw_data()


def row(name, size_bytes):
    """Logged times, and what size / time is multiplied by in the last call's algbw and busbw."""
    _, times_ms, *bandwidths_gbps = logged[name][size_bytes]
    size_by_time = size_bytes / times_ms[-1] / 1e6
    return times_ms, *(round(rates[-1] / size_by_time, 3) for rates in bandwidths_gbps)


if rank == 0:
    times_ms, algbw, busbw = row("all_reduce", MEBIBYTE)
    least_ms, total_ms = min(times_ms), sum(times_ms)
    print(f"20 calls in {loop_ms:.0f} ms; logged: {times_ms[0]:.0f} to {times_ms[-1]:.0f}, total {total_ms:.0f} ms")
    expect("no call is said to take less than 0.9 s", least_ms > 900, True)
    expect("each takes longer than the one before", times_ms == sorted(set(times_ms)), True)
    expect("the last one's time is that of all calls", 0.7 * loop_ms < times_ms[-1] <= loop_ms, True)
    expect("the total is many times that of the loop", total_ms > 5 * loop_ms, True)
    summary = dist.comms_logger.get_operation_summary("all_reduce")[MEBIBYTE]
    expect("the average is above 0.9 s", summary["avg_latency_ms"] > 900, True)
    # nccl-tests: 1 and 2 (n - 1) / n; here in bits
    expect("all-reduce, algbw and busbw", (algbw, busbw), (8 * 2.0, 8 * 1.5))
    expect("all-gather of 1 MiB each", row("all_gather_into_tensor", MEBIBYTE)[1:], (8 * 4.0, 8 * 3.0))
    # nccl-tests, of 4 MiB: 1 and (n - 1) / n
    expect("reduce-scatter of 4 MiB", row("reduce_scatter_tensor", 4 * MEBIBYTE)[1:], (8 * 4.0, 8 * 3.0))
    expect("all-reduce of 2 of 4 ranks, busbw", row("all_reduce", 32)[2], 8 * 1.5)
dist.barrier()
dist.destroy_process_group()
EOF
cd "$work"
export OMP_NUM_THREADS=1 DS_ACCELERATOR=cpu
"$python" -m torch.distributed.run --standalone --nproc-per-node 4 job.py
