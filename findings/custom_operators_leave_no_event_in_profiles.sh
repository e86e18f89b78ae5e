#!/bin/bash
# Guess: an operator that a script registers with torch.library.custom_op is in torch.profiler's trace
# whenever it runs, as every operator of the dispatcher.
# Truth: since torch 2.14 a call of the decorated function itself leaves no event: the time of a kernel
# that is called so belongs to nothing, and a tool that takes gaps between operators for waiting or for
# Python is wrong by it. A call of the same operator as torch.ops.NAMESPACE.NAME has its event.
# With torch 2.13 both calls have one.
# Seen with torch 2.13.0 and 2.14.1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat > "$work/job.py" <<'END'
import sys

import torch
from torch.profiler import ProfilerActivity, profile


@torch.library.custom_op("mine::halve", mutates_args=("values",))
def halve(values: torch.Tensor) -> None:
    values.mul_(0.5)


@torch.library.custom_op("mine::plus", mutates_args=())
def plus(values: torch.Tensor) -> torch.Tensor:
    return values + 1


def events(function, name):
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        function(torch.zeros(4))
    return [event.name for event in profiled.events()].count(name)


seen = {
    "halve(x)": events(halve, "mine::halve"),
    "torch.ops.mine.halve(x)": events(torch.ops.mine.halve, "mine::halve"),
    "plus(x)": events(plus, "mine::plus"),
    "torch.ops.mine.plus(x)": events(torch.ops.mine.plus, "mine::plus"),
}
print(f"torch {torch.__version__}: events of the operator by call: {seen}")
by_function = int(sys.argv[1])
wanted = dict(zip(seen, (by_function, 1, by_function, 1)))
if seen != wanted:
    raise SystemExit(f"changed: {wanted} are {seen}")
END
for version in 2.13.0:1 2.14.1:0; do
  python3 -m venv "$work/venv"
  "$work/venv/bin/python" -m pip install -q --no-compile "torch==${version%:*}" numpy==2.4.6
  "$work/venv/bin/python" "$work/job.py" "${version#*:}"
  rm -rf "$work/venv"
done
