#!/bin/bash
# Guess: an array in Fortran order is sent by mpi4py as its values, or is refused, as a slice is
# ("buffer is not contiguous").
# Truth: it is taken as contiguous and its memory is sent as it lies: the receiver's array has the
# values in another order, without an error. An Allreduce of arrays of equal values and shape of which
# one is transposed adds elements that do not belong together; so it is with the array that receives.
# The lower-case calls, which pickle, are right.
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


def expect(what, seen, wanted):
    """Ends the run with a sentence where rank 1 sees something else than what this file states."""
    if comm.rank == 1:
        print(f"mpi4py {mpi4py.__version__}: {what}: {seen}", flush=True)
        if seen != wanted:
            print(f"changed: {what} was {wanted} and is {seen}", flush=True)
            comm.Abort(1)


rows = numpy.arange(6.0).reshape(2, 3)  # [[0, 1, 2], [3, 4, 5]]
columns = numpy.asfortranarray(rows)  # equal values
expect("the arrays are equal", numpy.array_equal(rows, columns), True)
got = numpy.empty((2, 3))
if comm.rank == 0:
    comm.Send(columns, 1)
else:
    comm.Recv(got, 0)
expect("Send and Recv", got.tolist(), [[0, 3, 1], [4, 2, 5]])
comm.Allreduce(columns if comm.rank == 0 else rows, got)
expect("Allreduce, of which rank 0's is in columns", got.tolist(), [[0, 4, 3], [7, 6, 10]])
into_columns = numpy.empty((2, 3), order="F")
comm.Allreduce(rows, into_columns)
expect("Allreduce into columns", into_columns.tolist(), [[0, 4, 8], [2, 6, 10]])
comm.Bcast(columns if comm.rank == 0 else got)
expect("Bcast", got.tolist(), [[0, 3, 1], [4, 2, 5]])
expect("allreduce", comm.allreduce(columns if comm.rank == 0 else rows).tolist(), [[0, 2, 4], [6, 8, 10]])
try:
    comm.Allreduce(rows[:, :2], numpy.empty((2, 2)))
    told = "works"
except BufferError as error:
    told = "not contiguous" in str(error)
expect("a slice is refused", told, True)
EOF
cd "$work"
timeout 120 "$(dirname "$python")/mpiexec" -n 2 "$python" job.py
