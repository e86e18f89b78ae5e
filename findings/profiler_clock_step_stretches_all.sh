#!/bin/bash
# Guess: where the host's wall clock is stepped by two seconds in the middle of a torch.profiler
# window, later events move by two seconds, and durations stay what they were.
# Truth: every duration of the window is stretched, before the step and after it, all by the same
# factor: the profiler reads the processor's counter, compares it with the wall clock at the
# window's begin and end, and takes the counter for slow. Ranks of a host whose clock was not
# stepped look faster.
# Seen with torch 2.13.0: ranges of 0.1 s in a window of about a second are 0.3 s long. The step is
# simulated for the one process by a small preloaded library; it needs a C compiler.
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
import json
import os
import statistics
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function


def stretches(stepped):
    """Durations in the trace of ten ranges of 0.1 s, as multiples of what a steady clock shows.

    stepped: whether the wall clock is stepped after five of them.
    """
    mark = Path(os.environ["CLOCK_STEPPED"])
    steady = []
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for number in range(10):
            if stepped and number == 5:
                mark.touch()
            with record_function(f"range {number}"):
                begin = time.monotonic()
                while time.monotonic() < begin + 0.1:
                    pass
                steady.append(time.monotonic() - begin)
    recorded.export_chrome_trace("trace.json")
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    ranges = {event["name"]: event["dur"] / 1e6 for event in events if "dur" in event}
    return [ranges[f"range {number}"] / steady[number] for number in range(10)]


def expect(what, values, low, high):
    """Ends the run with a sentence where the values' median is not between low and high."""
    median = statistics.median(values)
    print(f"torch {torch.__version__}: {what}: {median:.3f} times as long", flush=True)
    if not low < median < high:
        raise SystemExit(f"changed: {what} were {low} to {high} times as long, now {median:.3f}")


stretches(stepped=False)  # the first window starts slowly
before = time.time() - time.monotonic()
expect("ranges with a steady clock", stretches(stepped=False), 0.95, 1.1)
stepped = stretches(stepped=True)
print(f"the wall clock moved by {time.time() - time.monotonic() - before:.1f} s", flush=True)
expect("ranges before the clock was stepped", stepped[:5], 1.3, 3.5)
expect("ranges after it was stepped", stepped[5:], 1.3, 3.5)
EOF
cat > "$work/clock.c" <<'EOF'
// Moves the wall clock of one process by CLOCK_STEP_S seconds once the file CLOCK_STEPPED is there.
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long step(void) {
  const char *file = getenv("CLOCK_STEPPED"), *seconds = getenv("CLOCK_STEP_S");
  return file && seconds && access(file, F_OK) == 0 ? atol(seconds) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  const int result = (int)syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += step();
  return result;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec exact;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *seconds) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (seconds) *seconds = exact.tv_sec;
  return exact.tv_sec;
}
EOF
cc -shared -fPIC -O2 -o "$work/clock.so" "$work/clock.c"
cd "$work"
export OMP_NUM_THREADS=1
CLOCK_STEPPED=$work/stepped CLOCK_STEP_S=2 LD_PRELOAD=$work/clock.so "$python" job.py
