#!/bin/bash
# Guess: HolisticTraceAnalysis counts the communication of any library of GPUs: NCCL's, RCCL's generic
# kernels, PyTorch's symmetric memory, DeepEP's; or says which kernels it does not know.
# Truth: communication is what has "nccl" in its name. All else is computation: 3 ms of a one-shot or
# multimem all-reduce per step make a job compute 69 % in place of 46, communicate 0 %, and overlap NaN %.
# NCCL's own kernels for symmetric memory are known.
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
import math
from pathlib import Path

from hta.trace_analysis import TraceAnalysis


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def trace(rank, kernel="ncclDevKernel_AllReduce_Sum_f32_RING_LL(void)", steps=4, begin_us=1_000_000):
    """Steps of 10 ms in torch.profiler's format: 4 ms of a product, 3 ms of a collective, 1 ms of both."""
    events = []

    def add(cat, name, tid, begin, dur, **args):
        event = {"ph": "X", "cat": cat, "name": name, "pid": rank, "tid": tid}
        events.append({**event, "ts": begin, "dur": dur, "args": args})

    def launch(name, stream, begin, dur):
        number = len(events) + 1
        ids = {"correlation": number, "External id": number}
        add("cuda_runtime", "cudaLaunchKernel", 1, begin - 50, 5, **ids)
        add("kernel", name, stream, begin, dur, device=rank, stream=stream, **ids)

    for step in range(steps):
        base_us = begin_us + step * 10_000
        add("user_annotation", f"ProfilerStep#{step}", 1, base_us, 9990)
        launch("gemm", 7, base_us + 100, 4000)
        launch(kernel, 20, base_us + 3100, 3000)
    about = {"backend": "nccl", "rank": rank, "world_size": 2}
    device = [{"id": rank, "name": "GPU"}]
    return {"distributedInfo": about, "deviceProperties": device, "traceEvents": events}


def shares(number, kernel):
    """Percent of computation and of other kernels, and of communication that overlaps computation."""
    folder = Path(f"job{number}").resolve()
    folder.mkdir()
    (folder / "rank0.json").write_text(json.dumps(trace(0, kernel)))
    analysis = TraceAnalysis(trace_dir=str(folder))
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    overlap = float(analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0])
    overlap = "NaN" if math.isnan(overlap) else round(overlap)
    return round(row["compute_time_pctg"]), round(row["non_compute_time_pctg"]), overlap


KNOWN, UNKNOWN = (46, 23, 33), (69, 0, "NaN")
KERNELS = {
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(void)": KNOWN,
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32(void)": KNOWN,
    "void one_shot_all_reduce_kernel<float, 4>(void)": UNKNOWN,
    "void multimem_all_reduce_kernel<float, 16>(void)": UNKNOWN,
    "rcclGenericKernel<0>(void)": UNKNOWN,
    "void deep_ep::intranode::dispatch<8, 768>(void)": UNKNOWN,
}
for number, (kernel, wanted) in enumerate(KERNELS.items()):
    expect(kernel, shares(number, kernel), wanted)
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
