#!/bin/bash
# Guess: nproc prints the cores that the process may use; --nproc-per-node "$(nproc)" starts a rank
# on each.
# Truth: it prints OMP_NUM_THREADS where that is set, and at most OMP_THREAD_LIMIT. In a shell
# with OMP_NUM_THREADS=1, as torchrun exports it to its ranks and many job scripts do themselves, it
# is 1: one rank starts on the whole machine. OMP_NUM_THREADS=64 gives 64 on any machine.
# nproc --all, getconf and Python's os.sched_getaffinity do not look there.
# Seen with coreutils 9.1 of Debian 12.
set -euo pipefail
expect() {
  echo "$1: $2"
  [ "$2" = "$3" ] || { echo "changed: $1 was $3 and is $2"; exit 1; }
}
unset OMP_NUM_THREADS OMP_THREAD_LIMIT
cores=$(python3 -c "import os; print(len(os.sched_getaffinity(0)))")
all=$(getconf _NPROCESSORS_CONF)
nproc --version | head -n 1
expect "nproc, without the variable" "$(nproc)" "$cores"
for threads in 1 64; do
  expect "nproc with OMP_NUM_THREADS=$threads" "$(OMP_NUM_THREADS=$threads nproc)" "$threads"
done
expect "nproc with OMP_NUM_THREADS=4,2" "$(OMP_NUM_THREADS=4,2 nproc)" 4
expect "nproc with OMP_THREAD_LIMIT=1" "$(OMP_THREAD_LIMIT=1 nproc)" 1
expect "nproc --all with OMP_NUM_THREADS=1" "$(OMP_NUM_THREADS=1 nproc --all)" "$all"
