#!/bin/bash
# Guess: psutil's num_ctx_switches() of a process counts the context switches of all its threads, as
# its cpu_times() counts the processor time of all.
# Truth: it reads /proc/PID/status, whose counts are those of the process's first thread alone. What
# another thread does, such as gloo's or a data loader's, is missing; the sum over
# /proc/PID/task/*/status has it. /proc/PID/schedstat, the time that a thread waited for a core, is
# the first thread's alone too, while /proc/PID/stat is of all.
# Seen with psutil 7.2.2, Linux 6.18.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile psutil==7.2.2
fi
cat > "$work/job.py" <<'EOF'
import pathlib
import platform
import re
import threading
import time

import psutil

SLEEPS = 2000


def expect(what, seen, wanted):
    """Ends the run with a sentence where something else is seen than what this file states."""
    print(f"psutil {psutil.__version__}, Linux {platform.release()}: {what}: {seen}")
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def of_all_threads():
    """Returns the voluntary context switches of all threads of this process."""
    statuses = pathlib.Path("/proc/self/task").glob("*/status")
    texts = [status.read_text() for status in statuses]
    return sum(int(re.search(r"\nvoluntary_ctxt_switches:\s+(\d+)", text)[1]) for text in texts)


def ran_ns(path):
    """Returns the time on a core from a schedstat file."""
    return int(pathlib.Path(path).read_text().split()[0])


def work():
    for _ in range(SLEEPS):
        time.sleep(0.0001)
    end = time.thread_time() + 0.3
    while time.thread_time() < end:
        pass
    done.set()
    leave.wait()


process = psutil.Process()
done, leave = threading.Event(), threading.Event()
switches, of_threads = process.num_ctx_switches().voluntary, of_all_threads()
cpu_s, schedstat_ns = sum(process.cpu_times()[:2]), ran_ns("/proc/self/schedstat")
thread = threading.Thread(target=work)
thread.start()
done.wait()
seen = process.num_ctx_switches().voluntary - switches
summed = of_all_threads() - of_threads
cpu_s = sum(process.cpu_times()[:2]) - cpu_s
schedstat_s = (ran_ns("/proc/self/schedstat") - schedstat_ns) / 1e9
leave.set()
thread.join()
print(f"{SLEEPS} sleeps of another thread: psutil counts {seen} switches, the threads' sum {summed}")
print(f"0.3 s of work of another thread: cpu_times {cpu_s:.2f} s, schedstat {schedstat_s:.2f} s")
expect("switches of the other thread that psutil counts, of ten", round(10 * seen / SLEEPS), 0)
expect("all of them are in the sum over the threads", summed >= SLEEPS, True)
expect("the other thread's work is in cpu_times", cpu_s >= 0.25, True)
expect("it is in /proc/PID/schedstat", schedstat_s >= 0.25, False)
EOF
"$python" "$work/job.py"
