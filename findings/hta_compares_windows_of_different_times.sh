#!/bin/bash
# Guess: HolisticTraceAnalysis reads all windows that torch.profiler's schedule wrote of each rank, as it
# reads all ranks of a folder, or refuses two traces of one rank.
# Truth: it reads one per rank, the one that the file system happens to list last, and says so in a line of
# its log only. Which one it is can differ from rank to rank: rank 0's first window is then compared with
# rank 1's second. Given a dictionary of ranks and files it reads those.
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
import logging
import os
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


def kernel_us(analysis):
    """Time from the first to the last kernel of each rank, without the last step, as HTA leaves it out."""
    table = analysis.get_temporal_breakdown(visualize=False)
    return dict(zip(table["rank"].tolist(), table["kernel_time(us)"].tolist(), strict=True))


# The first window of each rank has 4 steps, the second 8.
OF_STEPS = {4: 2 * 10_000 + 6000, 8: 6 * 10_000 + 6000}
folder = Path("windows").resolve()
folder.mkdir()
for rank in range(2):
    for window, steps in enumerate(OF_STEPS):
        text = json.dumps(trace(rank, steps=steps, begin_us=1_000_000 * (1 + 9 * window)))
        (folder / f"rank{rank}.window{window}.json").write_text(text)
listed = [name for name in os.listdir(folder) if name.endswith(".json")]
last = {rank: [name for name in listed if name.startswith(f"rank{rank}.")][-1] for rank in range(2)}
steps_of = {rank: 8 if "window1" in name else 4 for rank, name in last.items()}
print(f"listed last: {last}")
lines = []


class Noted(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())


logging.getLogger("hta").addHandler(Noted())
seen = kernel_us(TraceAnalysis(trace_dir=str(folder)))
expect("us of the window that is listed last", seen, {rank: OF_STEPS[steps_of[rank]] for rank in range(2)})
expect("lines of the log about it", sum("same rank" in line for line in lines), 2)
files = {rank: str(folder / f"rank{rank}.window1.json") for rank in range(2)}
named = kernel_us(TraceAnalysis(trace_files=files))
expect("files by rank", named, {0: OF_STEPS[8], 1: OF_STEPS[8]})
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
