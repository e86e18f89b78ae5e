#!/bin/bash
# Guess: HolisticTraceAnalysis keeps a trace's nanoseconds, or rounds to the nearest microsecond.
# Truth: begins are rounded up and ends down to whole microseconds, so every kernel loses one on
# average, and those below a microsecond lose all: 1,500 kernels of 0.9 us, 450 us a step, count as
# 0 us and their time as idle.
# Seen with HolisticTraceAnalysis 0.5.0.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile HolisticTraceAnalysis==0.5.0 pandas==3.1.1 numpy==2.4.6
fi
cat > "$work/job.py" <<'EOF'
import json
import os
import tempfile

from hta.trace_analysis import TraceAnalysis


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def trace(rank, kernel, short):
    """A trace of four steps in torch.profiler's format: a product, a collective, short kernels."""
    events = []

    def add(cat, name, tid, begin_us, dur_us, **args):
        event = {"ph": "X", "cat": cat, "name": name, "pid": rank, "tid": tid, "args": args}
        events.append({**event, "ts": round(begin_us, 3), "dur": round(dur_us, 3)})

    def launch(name, stream, begin_us, dur_us):
        number = len(events)
        ids = {"correlation": number, "External id": number}
        add("cuda_runtime", "cudaLaunchKernel", 1, begin_us - 50, 5, **ids)
        add("kernel", name, stream, begin_us, dur_us, device=rank, stream=stream, **ids)

    for step in range(4):
        base_us = 1_000_000 + step * 10_000
        add("user_annotation", f"ProfilerStep#{step}", 1, base_us, 9990)
        launch("gemm", 7, base_us + 100.25, 4000)
        begin_us = base_us + 4200.5 + 3000 * rank
        dur_us = base_us + 8000 - begin_us
        launch(f"{kernel}_AllReduce_RING_LL_Sum_float(void)", 20, begin_us, dur_us)
        for number in range(short):
            launch("elementwise", 7, base_us + 8100.25 + number * 1.5, 0.9)
    about = {"backend": "nccl", "rank": rank, "world_size": 2}
    device = [{"id": rank, "name": "GPU"}]
    return {"distributedInfo": about, "deviceProperties": device, "traceEvents": events}


def analysed(kernel, short=0):
    folder = tempfile.mkdtemp(dir=".")
    for rank in range(2):
        with open(f"{folder}/rank{rank}.json", "w") as file:
            json.dump(trace(rank, kernel, short), file)
    return TraceAnalysis(trace_dir=os.path.abspath(folder))



breakdown = analysed("ncclDevKernel", short=500).get_gpu_kernel_breakdown(
    visualize=False, num_kernels=9, duration_ratio=1.0
)[1]
row = breakdown[(breakdown["name"] == "elementwise") & (breakdown["rank"] == 0)]
expect("us of 1,500 kernels of 0.9 us", int(row["sum (us)"].iloc[0]), 0)
row = breakdown[(breakdown["name"] == "gemm") & (breakdown["rank"] == 0)]
expect("us of three kernels of 4,000 us", int(row["sum (us)"].iloc[0]), 3 * 3999)
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
