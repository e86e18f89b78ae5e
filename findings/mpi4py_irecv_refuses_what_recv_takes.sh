#!/bin/bash
# Guess: comm.irecv() of mpi4py receives what comm.recv() receives, at once or in wait().
# Truth: without a buffer it has room for 32 KiB of pickle. A larger object, such as a numpy array of
# 4,096 numbers or a step's times, ends in "Message truncated" on the receiver, and the message is
# gone; the sender sees nothing. recv() asks for the length first and takes any; irecv(bytearray(n))
# takes n bytes; improbe() and its recv() take any.
# Seen with mpi4py 4.1.2, MPICH 5.0.2, numpy 2.4.6, 2 ranks.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${FINDINGS_PYTHON:-}
if [ -z "$python" ]; then
  python3 -m venv "$work/venv"
  python=$work/venv/bin/python
  "$python" -m pip install -q --no-compile mpi4py==4.1.2 mpich==5.0.2 numpy==2.4.6
fi
cat > "$work/job.py" <<'EOF'
import mpi4py
import numpy
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Set_errhandler(MPI.ERRORS_RETURN)


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 1 sees something else than what this file states."""
    if comm.rank == 1:
        print(f"mpi4py {mpi4py.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            print(f"changed: {what} was {wanted} and is {seen}", flush=True)
            comm.Abort(1)


def received(length, receive):
    """Length of an array of rank 0 that rank 1 receives, or the error."""
    if comm.rank == 0:
        comm.send(numpy.zeros(length), 1)
        return None
    try:
        return len(receive())
    except MPI.Exception as error:
        return MPI.Get_error_string(error.Get_error_class()).partition(",")[0]


expect("recv of 100,000 numbers", received(100_000, comm.recv), 100_000)
expect("irecv of 4,000", received(4_000, lambda: comm.irecv().wait()), 4_000)
expect("irecv of 4,096", received(4_096, lambda: comm.irecv().wait()), "Message truncated")
expect("recv after it, of 10", received(10, comm.recv), 10)
room = bytearray(2**20)
expect("irecv with room for 1 MiB", received(100_000, lambda: comm.irecv(room).wait()), 100_000)


def matched():
    message = None
    while message is None:
        message = comm.improbe()
    return message.recv()


expect("improbe and recv", received(100_000, matched), 100_000)
EOF
cd "$work"
timeout 120 "$(dirname "$python")/mpiexec" -n 2 "$python" job.py
