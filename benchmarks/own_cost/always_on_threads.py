"""Measures what a collective costs in always-on mode: the training thread's time, and commprof's.

Two ranks on gloo issue small all-reduces without waiting in between, recorded in always-on mode and
not recorded. A figure is processor time per collective: of the training thread (recorded less not
recorded), and of commprof's own threads, which sum the records up and exchange arrivals. With
``--before`` another version runs in turns with this one.

    python benchmarks/own_cost/always_on_threads.py [--rounds 7] [--before CHECKOUT]
"""

from __future__ import annotations

import argparse
import json
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
_CALLS: Final = 20_000
_PER_STEP: Final = 50


def rank_main(directory: str, mode: str) -> None:
    """Trains nothing: issues all-reduces, and writes the processor time of each thread."""
    import torch
    import torch.distributed as dist

    import commprof

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    value = torch.ones(1)

    def steps(calls: int) -> int:
        begin = time.thread_time_ns()
        for call in range(calls):
            dist.all_reduce(value)
            if mode and call % _PER_STEP == 0:
                commprof.step()
        return time.thread_time_ns() - begin

    if mode:
        with commprof.profile(directory, mode=mode):
            steps(_CALLS // 10)
            helpers = _helpers_ns()
            own = steps(_CALLS)
            time.sleep(0.5)  # so that the helper thread has taken all records
            helpers = _helpers_ns() - helpers
    else:
        steps(_CALLS // 10)
        own, helpers = steps(_CALLS), 0
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps({"own_us": own / _CALLS / 1e3, "helpers_us": helpers / _CALLS / 1e3}))
    dist.destroy_process_group()


def _helpers_ns() -> int:
    tasks = Path("/proc/self/task").iterdir()
    return sum(
        int((task / "schedstat").read_text().split()[0])
        for task in tasks
        if (task / "comm").read_text().startswith("commprof-")
    )


def measured(checkout: Path, mode: str) -> dict[str, float]:
    """Runs two ranks with the commprof of a checkout; returns the figures of rank 0."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as directory:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        free.close()
        ranks = [
            subprocess.Popen(
                [str(checkout / ".venv/bin/python"), __file__, "--rank", directory, "--mode", mode],
                env={
                    **os.environ,
                    **address,
                    "PYTHONPATH": str(checkout),
                    "OMP_NUM_THREADS": "1",
                    "WORLD_SIZE": "2",
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                },
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        output = [rank.communicate()[0] for rank in ranks]
    found: dict[str, float] = json.loads(output[0].splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--before", type=Path, help="checkout of another version, built")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--mode", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank_main(args.rank, args.mode)
        return 0
    checkouts = {"now": ROOT} | ({"before": args.before.resolve()} if args.before else {})
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for _ in range(args.rounds):
        for name, checkout in checkouts.items():
            plain, recorded = (measured(checkout, mode) for mode in ("", "always-on"))
            more_us = recorded["own_us"] - plain["own_us"]
            rows[name].append({"training_us": more_us, "helpers_us": recorded["helpers_us"]})
    for name, found in rows.items():
        medians = {key: statistics.median(row[key] for row in found) for key in found[0]}
        spread = {key: sorted(round(row[key], 3) for row in found) for key in found[0]}
        print(name, {key: round(value, 3) for key, value in medians.items()}, spread)
    return 0


if __name__ == "__main__":
    sys.exit(main())
