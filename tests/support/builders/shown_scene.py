from __future__ import annotations

import gzip
import shutil
import tarfile
from pathlib import Path

from commprof.analysis.sweeps.sweep_file import write_sweep
from commprof.forecast.costs.machine_profile import save_profile
from tests.support.builders import profiler_traces
from tests.support.builders.flight_dumps import dump, entry, write_dumps
from tests.support.builders.inspector_logs import SimulatedJob
from tests.support.builders.run_directories import ranks_of, write_run, write_strategies
from tests.support.builders.schedules import hook, profile
from tests.support.builders.sharded_job import fsdp_ranks
from tests.support.builders.sweeps import key, row, sweep_result
from tests.support.builders.traces import MS, Rank

_TESTS = Path(__file__).parents[2]
SIZES = (1_000, 100_000, 1_000_000, 8_000_000)
_NCCL_TESTS = """\
# nccl-tests version 2.17.6 nccl-headers=22800 nccl-library=22800
# Collective test starting: {op}_perf
#  Rank  0 Group  0 Pid   77 on host0    device  0 [0x0a] A GPU
#  Rank  1 Group  0 Pid   77 on host0    device  1 [0x0a] A GPU
# size count type redop root time algbw busbw #wrong time algbw busbw #wrong
"""


def write_scene(here: Path) -> None:
    shutil.copy(_TESTS / "data/audit/simulated_transformer.md", here / "SCALING.md")
    (here / "table.csv").write_text("ranks,samples/s\n1,100\n2,190\n")
    (here / "run.yaml").write_text("world-sizes: [1, 2]\nstrategy: [ddp, fsdp]\n")
    (here / "package").mkdir()
    for name, script in {
        "train": "plain",
        "package/train": "plain",
        "train_fsdp2": "fsdp2",
    }.items():
        shutil.copy(_TESTS / f"support/scripts/{script}.py", here / f"{name}.py")
    _write_runs(here)
    _write_results(here)
    _write_recordings(here)


def write_profile(path: Path) -> None:
    save_profile(profile(link="same_host", hooks=(hook("fp16"),)), path)


def _write_runs(here: Path) -> None:
    write_run(here / "ONE", ranks_of(1, 20))
    for name in ("BEFORE", "AFTER"):
        write_run(here / name, ranks_of(1, 40), ranks_of(2, 40))
    write_run(here / "WIRE_BOUND", ranks_of(2, 20, slower_ms=200), workload="timed")
    write_run(here / "TRIAL", ranks_of(2, 20), trial={})
    write_run(here / "FSDP_RUN", fsdp_ranks(8), strategy="fsdp", workload="transformer")
    alone = [Rank(rank, 2, capture="python") for rank in range(2)]
    for rank in alone:
        for at in range(20):
            rank.step(100 * at * MS, 100 * (at + 1) * MS)
    write_run(here / "UNSEEN", alone, capture="python")
    write_strategies(here / "STRATEGIES")
    ranks, at = [Rank(0, 2), Rank(1, 2)], MS
    for seq, size in enumerate(SIZES * 5):
        end = at + 100_000 + 2 * size
        for rank in ranks:
            rank.collective(seq, at, end, bytes=size)
        at = end + MS
    write_run(here / "RUN_WITHOUT_STEPS", ranks)


def _write_results(here: Path) -> None:
    cost_us = {size: (50 + size / 1e3) * 1.0 for size in SIZES}
    rows = [
        row(
            key=key(size_bytes=size, count=size // 4, placement="out_of_place"),
            time_us=us,
            samples_us=(us,) * 10,
            round_iterations=(1,) * 10,
        )
        for size, us in cost_us.items()
    ]
    for name in ("A", "B", "BEFORE", "AFTER", "bench"):
        write_sweep(here / f"{name}.json", sweep_result(*rows))
    write_sweep(here / "ONE_SIZE.json", sweep_result(rows[0]))
    (here / "EMPTY.json").write_text('{"rows": []}')
    for folder in ("before", "after"):
        (here / folder).mkdir()
    for name, op in {
        **dict.fromkeys(("allreduce", "BEFORE", "AFTER"), "all_reduce"),
        **dict.fromkeys(("before/allreduce", "after/allreduce"), "all_reduce"),
        "allgather": "all_gather",
    }.items():
        text = _NCCL_TESTS.format(op=op)
        for size, us in cost_us.items():
            times = f"{us:.2f} 1.00 1.00 0"
            text += f"  {size} {size // 4} float sum -1 {times} {times}\n"
        (here / f"{name}.log").write_text(text)


def _write_recordings(here: Path) -> None:
    traces = profiler_traces.both(here / "traces")
    for rank in range(2):
        events = profiler_traces.rank_events(rank)
        text = profiler_traces.document(events, rank, baseTimeNanoseconds=0)
        (here / f"rank{rank}.pt.trace.json.gz").write_bytes(gzip.compress(text.encode()))
    shutil.copy(traces / "rank0.pt.trace.json", here / "trace.pt.trace.json")
    with tarfile.open(here / "traces.tar.gz", "w:gz") as archive:
        archive.add(traces, "traces")
    arrived = [dump({"0": [0, 1]}, entry("0", 1, state="completed"), entry("0", 2))]
    late = [dump({"0": [0, 1]}, entry("0", 1, state="completed"))]
    write_dumps(here / "dumps", *arrived, *late)
    shutil.make_archive(str(here / "dumps"), "zip", here / "dumps")
    for name in ("LOGS", "LOGS_AFTER"):
        job = SimulatedJob(dp=2)
        for _ in range(5):
            for size_bytes in SIZES:
                job.work(300.0)
                job.collective(job.data, "AllReduce", size_bytes, 50 + size_bytes / 1e3)
        job.write(here / name)
