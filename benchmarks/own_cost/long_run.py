"""Tests that memory and trace do not grow over many collectives in always-on mode.

    PYTHONPATH=. python benchmarks/own_cost/long_run.py [COLLECTIVES] [--json FILE]

COLLECTIVES is 1,000,000 if not given. The fake backend does nothing, so one thread issues
collectives at the highest possible rate. After the first tenth of the run, the memory of this
process may grow by less than 1 MB. The trace must stay below 1 MB, and the summary may lack only
collectives whose records were dropped. The exit code is 1 if a demand is not met.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.judging.demands import Demand, judged
from benchmarks.judging.results_file import write_json

COLLECTIVES, STEPS = 1_000_000, 1000
#: Limit of the memory's growth, and of the trace's size.
MOST_BYTES = 1_000_000


def rss_bytes() -> int:
    """Returns the resident memory of this process, without mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


def measure(directory: Path, collectives: int) -> dict[str, Any]:
    """Runs collectives under capture; returns the figures."""
    import torch
    import torch.distributed as dist

    import commprof
    from commprof.trace.reader import read_trace

    tensor, per_step = torch.ones(4), max(1, collectives // STEPS)
    steps = max(1, collectives // per_step)
    rss = {}
    with commprof.profile(directory, mode="always-on") as profiler:
        begin = time.monotonic()
        for step in range(steps):
            for _ in range(per_step):
                dist.all_reduce(tensor)
            profiler.step()
            if step in (steps // 10, steps - 1):
                rss[step] = rss_bytes()
        duration_s = time.monotonic() - begin
        stats = profiler.stats()
    path = directory / "rank_0.trace"
    summary = read_trace(path).summary
    assert summary is not None
    return {
        "collectives": steps * per_step,
        "counted": sum(one.count for one in summary.operations),
        "completed": sum(one.duration.count for one in summary.operations),
        "dropped_records": summary.dropped,
        "collectives_per_s": round(steps * per_step / duration_s),
        "rss_at_10_percent_bytes": min(rss.items())[1],
        "rss_growth_bytes": max(rss.items())[1] - min(rss.items())[1],
        "trace_bytes": path.stat().st_size,
        "records_written": stats.records_written,
    }


def demands(figures: dict[str, Any], wanted: int = COLLECTIVES) -> list[Demand]:
    """Checks the demands on the figures of a run of ``wanted`` collectives."""
    # The summary counts the issue and the completion of each collective. Without the issue's
    # record, the summary counts neither of the two.
    lost = 2 * figures["collectives"] - figures["counted"] - figures["completed"]
    grown, trace = figures["rss_growth_bytes"], figures["trace_bytes"]
    done, limit = figures["collectives"], f"below {MOST_BYTES:,} bytes"
    return [
        Demand("collectives in always-on mode", f"{done:,}", f"{wanted:,}", done >= wanted),
        Demand(
            "growth of memory after the first tenth of the run",
            f"{grown:,} bytes",
            limit,
            grown < MOST_BYTES,
        ),
        Demand("size of the trace with its summary", f"{trace:,} bytes", limit, trace < MOST_BYTES),
        Demand(
            "records in the trace",
            f"{figures['records_written']:,}",
            "none",
            figures["records_written"] == 0,
        ),
        Demand(
            "issues and completions missing in the summary",
            f"{lost:,}",
            f"at most two for each of the {figures['dropped_records']} dropped records",
            0 <= lost <= 2 * figures["dropped_records"],
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collectives", type=int, nargs="?", default=COLLECTIVES)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()

    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from commprof import _native

    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    # The other rank does not exist, so its arrivals never come. Records that wait for arrivals take
    # only bounded memory.
    assert _native.native is not None
    _native.native.arrivals_create(1, 0, 2)
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(Path(directory), args.collectives)
    dist.destroy_process_group()
    print(json.dumps(figures, indent=1))
    write_json(args.json, figures)
    return judged(demands(figures, figures["collectives"]))


if __name__ == "__main__":
    sys.exit(main())
