#!/bin/bash
# Guess: prometheus_client's multiprocess mode keeps the ranks of several containers apart that share
# PROMETHEUS_MULTIPROC_DIR, and a counter of a restarted rank begins at 0.
# Truth: a file's name holds the kind and the pid, and in a container each rank may be pid 1. Two such
# ranks write one file: of 100 steps of one and 5 of the other, then one more of the first, the sum is
# 101. A rank that starts later with the same pid goes on from the old count. No message.
# Seen with prometheus_client 0.26.0, two PID namespaces.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile prometheus_client==0.26.0
fi
cat > "$work/job.py" <<'EOF'
import os
import sys
import time

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.multiprocess import MultiProcessCollector


def total():
    """Returns the number of steps that a scrape of the directory shows."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    return int(registry.get_sample_value("steps_total"))


assert os.getpid() == 1
steps = Counter("steps", "Steps.")
steps.inc(int(sys.argv[1]))
print(total(), flush=True)
if len(sys.argv) > 2:  # this rank takes one more step after the other one came
    end_s = time.monotonic() + 60
    while not os.path.exists("other_came"):
        if time.monotonic() > end_s:
            raise SystemExit("the other rank did not come")
        time.sleep(0.01)
    steps.inc()
    print(total(), flush=True)
EOF
cd "$work"
expect() {
  echo "$1: $2"
  [ "$2" = "$3" ] || { echo "changed: $1 was $3 and is $2"; exit 1; }
}
in_container() { unshare --user --map-root-user --pid --fork "$python" job.py "$@"; }
export PROMETHEUS_MULTIPROC_DIR=$work/metrics
mkdir metrics
in_container 100 then > first &
first=$!
until [ -s first ]; do
  kill -0 $first 2> /dev/null || { echo "no rank could start in a PID namespace of its own"; exit 1; }
  sleep 0.1
done
expect "steps after 100 by one container and 5 by another" "$(in_container 5)" 105
touch other_came
wait $first
expect "steps after one more by the first" "$(tail -n 1 first)" 101
expect "files of the two containers" "$(ls metrics)" counter_1.db
expect "steps after a later rank's 5" "$(in_container 5)" 106
