#!/bin/bash
# Guess: a value of 64 MiB can be set in a TCPStore, or set() refuses it and names the limit.
# Truth: the server takes values of up to 8 MiB. Beyond that it closes the connection, set() says
# that the connection was reset, naming no limit, and the client cannot be used again: its next calls fail
# too, whatever their size. The server and other clients go on. With use_libuv=False, in a FileStore and in
# a HashStore the same value is kept.
# Seen with torch 2.13.0.
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
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def expect(what, seen, wanted):
    """Ends the run with a sentence where it sees something else than what this file states."""
    print(f"{what}: {seen}", flush=True)
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


MEBIBYTE = 2**20


def connected():
    limit = timedelta(seconds=20)
    return dist.TCPStore("127.0.0.1", server.port, None, False, limit, wait_for_workers=False)


def outcome(call, *arguments):
    """What a call gives, or the kind of error."""
    try:
        got = call(*arguments)
    except dist.DistNetworkError as error:
        said = str(error).partition("Exception raised")[0]
        return "DistNetworkError", any(word in said for word in ("MiB", "8388608", "limit", "too large"))
    return len(got) if isinstance(got, bytes) else got


print(f"torch {torch.__version__}")
server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
client, other = connected(), connected()
client.set("eight", bytes(8 * MEBIBYTE))
expect("8 MiB are there", outcome(other.get, "eight"), 8 * MEBIBYTE)
refused = ("DistNetworkError", False)  # and whether the message names a limit
expect("64 MiB", outcome(client.set, "large", bytes(64 * MEBIBYTE)), refused)
expect("then one byte", outcome(client.set, "one", b"1"), refused)
expect("another client", outcome(other.get, "eight"), 8 * MEBIBYTE)
expect("was the value kept", outcome(other.check, ["large"]), False)
old = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv=False)
for store in (old, dist.HashStore(), dist.FileStore(str(Path("store").resolve()), 1)):
    store.set("large", bytes(64 * MEBIBYTE))
    expect(type(store).__name__, outcome(store.get, "large"), 64 * MEBIBYTE)
EOF
cd "$work"
export OMP_NUM_THREADS=1
"$python" job.py
