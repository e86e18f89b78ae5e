#!/bin/bash
# Guess: without a GPU and its driver every call of NCCL that does something fails, so that
# ncclGetUniqueId is a way to find out whether NCCL can work on a machine.
# Truth: it succeeds where there is no driver at all. It opens the socket at which the ranks of a
# new communicator would meet, in this process, and returns its address. What needs a GPU fails only
# in ncclCommInitRank.
# Seen with NCCL 2.30.7 (nvidia-nccl-cu13), on a machine without a GPU.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile --no-deps nvidia-nccl-cu13==2.30.7
fi
cat > "$work/job.py" <<'EOF'
import ctypes
import importlib.metadata
import os
import pathlib
import socket
import struct

AF_INET, BYTES = socket.AF_INET, 128


def expect(what, seen, wanted):
    """Ends the run with a sentence where something else is seen than what this file states."""
    print(f"NCCL {version}: {what}: {seen}")
    if seen != wanted:
        raise SystemExit(f"changed: {what} was {wanted} and is {seen}")


def listening():
    """Returns the ports at which this process listens."""
    own = {os.readlink(link) for link in pathlib.Path("/proc/self/fd").iterdir() if link.exists()}
    rows = [row.split() for row in pathlib.Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    is_own = (row for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own)
    return {int(row[1].partition(":")[2], 16) for row in is_own}


version = importlib.metadata.version("nvidia-nccl-cu13")
files = importlib.metadata.files("nvidia-nccl-cu13")
path = next(file.locate() for file in files if file.name.startswith("libnccl.so"))
try:
    ctypes.CDLL("libcuda.so.1")
    raise SystemExit("this machine has a driver of GPUs: there is nothing to see here")
except OSError:
    pass
os.environ["NCCL_SOCKET_IFNAME"] = "lo"
nccl = ctypes.CDLL(str(path))
identity = ctypes.create_string_buffer(BYTES)
before = listening()
expect("ncclGetUniqueId without a driver", nccl.ncclGetUniqueId(identity), 0)
opened = listening() - before
family = struct.unpack_from("=H", identity.raw, 8)[0]
port = struct.unpack_from("!H", identity.raw, 10)[0]
expect("the id holds an IPv4 address", family == AF_INET, True)
expect("this process listens at its port", opened == {port}, True)


class Identity(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * BYTES)]


communicator = ctypes.c_void_p()
made = nccl.ncclCommInitRank(ctypes.byref(communicator), 1, Identity.from_buffer(identity), 0)
expect("ncclCommInitRank of one rank fails", made != 0, True)
EOF
"$python" "$work/job.py"
