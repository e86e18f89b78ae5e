#!/bin/bash
# Guess: TensorBoard follows all event files of a folder, so that a monitor may write beside the
# training script, or each rank its own file.
# Truth: it reads the files in the order of their names and stays with the last one: a file before
# it that goes on growing is not read again, and its curves stop where they were, with one line in
# the log. All is there only when the folder is opened anew.
# Seen with tensorboard 2.21.0, its event reader as the server uses it by default.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile tensorboard==2.21.0
fi
cat > "$work/job.py" <<'EOF'
import time
from importlib.metadata import version

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def add(writer, name, step):
    """Writes one scalar so that readers see it."""
    value = Summary.Value(tag=name, simple_value=float(step))
    event = Event(wall_time=time.time(), step=step, summary=Summary(value=[value]))
    writer.add_event(event)
    writer.flush()


def steps(reader):
    """Steps of each curve that the reader knows."""
    reader.Reload()
    names = sorted(reader.Tags()["scalars"])
    return {name: [event.step for event in reader.Scalars(name)] for name in names}


first = EventFileWriter("folder", filename_suffix=".training")
time.sleep(1.1)  # names have whole seconds
second = EventFileWriter("folder", filename_suffix=".monitor")
live = EventAccumulator("folder")
seen = []
for step in range(4):
    add(first, "loss", step)
    add(second, "wait", step)
    seen.append(steps(live))
print(f"tensorboard {version('tensorboard')}")
expect("first look", seen[0], {"loss": [0], "wait": [0]})
expect("fourth look", seen[3], {"loss": [0], "wait": [0, 1, 2, 3]})
whole = steps(EventAccumulator("folder"))
expect("opened anew", whole, {"loss": [0, 1, 2, 3], "wait": [0, 1, 2, 3]})
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
