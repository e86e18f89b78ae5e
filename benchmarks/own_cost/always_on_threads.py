"""Measures the processor time of commprof's own threads per collective in always-on mode.

Two ranks on gloo issue small all-reduces, which commprof records. The figure is the processor time
of commprof's threads, divided by the number of collectives. ``calls.py`` measures the training
thread instead. With ``--before``, two versions of commprof take turns, and the ratio of their
figures is printed.

    python benchmarks/own_cost/always_on_threads.py [--rounds 8] [--before CHECKOUT]
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_CALLS: Final = 50_000
_PER_STEP: Final = 50


def rank_main(directory: str) -> None:
    """Issues all-reduces; rank 0 prints the CPU time of commprof's threads per call, in us."""
    import torch
    import torch.distributed as dist

    import commprof

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    value = torch.ones(1)

    def steps(calls: int) -> None:
        for call in range(calls):
            dist.all_reduce(value)
            if call % _PER_STEP == 0:
                commprof.step()

    with commprof.profile(directory, mode="always-on"):
        steps(_CALLS // 10)
        before_ns = _helpers_ns()
        steps(_CALLS)
        time.sleep(0.5)  # so that the helper thread has taken all records
        helpers_ns = _helpers_ns() - before_ns
    dist.barrier()
    if dist.get_rank() == 0:
        print(helpers_ns / _CALLS / 1e3)
    dist.destroy_process_group()


def _helpers_ns() -> int:
    tasks = Path("/proc/self/task").iterdir()
    return sum(
        int((task / "schedstat").read_text().split()[0])
        for task in tasks
        if (task / "comm").read_text().startswith("commprof-")
    )


def measured(checkout: Path) -> float:
    """Runs two ranks with a checkout's commprof; returns the figure that rank 0 prints."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as directory:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        free.close()
        common = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
        ranks = [
            subprocess.Popen(
                [str(checkout / ".venv/bin/python"), __file__, "--rank", directory],
                env={**os.environ, **address, **common, "RANK": rank, "LOCAL_RANK": rank},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in ("0", "1")
        ]
        output = [rank.communicate()[0] for rank in ranks]
    return float(output[0].splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--before", type=Path, help="built checkout of another version")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank_main(args.rank)
        return 0
    checkouts = {"now": ROOT} | ({"before": args.before.resolve()} if args.before else {})
    costs: dict[str, list[float]] = {name: [] for name in checkouts}
    for number in range(args.rounds):
        order = list(checkouts) if number % 2 else list(reversed(checkouts))
        for name in order:
            costs[name].append(measured(checkouts[name]))
    for name, us in costs.items():
        shown = ", ".join(f"{value:.3f}" for value in sorted(us))
        print(f"{name}: {statistics.median(us):.3f} us per collective (all: {shown})")
    if args.before:
        ratios = [now / before for now, before in zip(*costs.values(), strict=True)]
        print(f"now / before: {statistics.median(ratios):.3f}, {min(ratios):.3f}-{max(ratios):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
