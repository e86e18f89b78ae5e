"""Compares commprof's and torch.profiler's recordings of the same jobs.

    PYTHONPATH=. python benchmarks/attribution/two_instruments.py [--backend nccl]
        [--results two_instruments.jsonl]

Seven workloads run over gloo, on 2 and on 4 ranks. Both recordings of a job go through the same
analysis. Exposed time may differ by 1 % of the step. Both recordings must have the same collectives
on each rank, and groups and sizes must be equal or unknown. The script prints for each rank how the
recordings differ, and how long the rank's thread lacked a core. Then it prints a line per demand.
It exits with 1 if a demand is not met.

If a rank lacks a core when its collective is done, its wait returns late. commprof records this
delay, but torch.profiler often does not. So with more ranks than cores, operators sleep, and
tensors are small. With ``--crowded`` operators always compute. With ``--rested`` operators always
sleep, which suits a machine that others use.

With ``--results`` each measurement is added to a file. Of several measurements of a job, only the
one with the shortest time without a core counts.

With ``--backend nccl`` the ranks share the first GPU, and NCCL connects the ranks by sockets, as if
they were on two hosts. torch.profiler measures each kernel of NCCL, so the ends of the kernels are
compared too.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.judging.demands import Demand, at_most, judged
from benchmarks.judging.results_file import Lines, read_rows
from benchmarks.ranks.rank_launch import on_this_host
from commprof.analysis.align.alike_ranks import sizes_of_groups
from commprof.analysis.align.device_timeline import on_device_timeline
from commprof.analysis.collectives.calls import start_times
from commprof.analysis.collectives.traffic import sizes_bytes
from commprof.analysis.detail import WorldDetail
from commprof.analysis.run import analyse_in_detail
from commprof.analysis.step.exposure import exposures_of
from commprof.recordings.profiler import read_recording
from commprof.trace import columns
from commprof.trace.reader import Trace, read_trace
from commprof.trace.schema import OPS

#: The figures of a measurement, by name.
Row = dict[str, Any]

RANK_SCRIPT = Path(__file__).parents[1] / "ranks/two_instruments_rank.py"
WORKLOADS = (*("alone", "beside", "ddp", "fsdp2", "tensor_parallel", "pipeline_data", "powersgd"),)
#: Workloads that need a certain number of ranks, and workloads that need gloo.
_ONLY = {"pipeline_data": 4}
_ON_GLOO = WORKLOADS[3:]
#: Largest allowed difference, in percent of the step.
MOST_PERCENT = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--crowded", action="store_true", help="operators always compute")
    parser.add_argument("--rested", action="store_true", help="operators always sleep")
    parser.add_argument("--results", type=Path, help="a JSON line is added per measurement")
    args = parser.parse_args()
    rows, kept = read_rows(args.results), Lines(args.results)
    for workload in args.workloads:
        for ranks in args.ranks:
            if _ONLY.get(workload, ranks) != ranks:
                continue
            if args.backend == "nccl" and workload in _ON_GLOO:
                continue
            rests = args.rested or (ranks > len(os.sched_getaffinity(0)) and not args.crowded)
            rows.append(_compared(workload, ranks, rests, args.backend))
            kept.append(rows[-1])
    return judged(demands(rows))


def demands(rows: list[Row]) -> list[Demand]:
    """Checks the demands on each combination of workload, ranks, backend and torch.

    Of several measurements, only the one with the shortest time without a core counts.
    """
    of_row: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = row["workload"], str(row["ranks"]), row["backend"], _minor(row["torch"])
        best = of_row.setdefault(key, row)
        if row["lacked_percent"] < best["lacked_percent"]:
            of_row[key] = row
    judgements = []
    for (workload, ranks, backend, torch_version), row in of_row.items():
        name = f"{workload}, {ranks} ranks of {backend}, torch {torch_version}"
        most = max(map(abs, row["exposed_percent"]))
        judgements += [
            at_most(f"{name}: collectives that one recording lacks", row["lacking"], 0),
            at_most(f"{name}: collectives with another group or size", row["differing"], 0),
            at_most(f"{name}: difference in exposed time", most, MOST_PERCENT, " %"),
        ]
    return judgements


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _compared(workload: str, ranks: int, rests: bool, backend: str) -> Row:
    name = f"{workload}, {ranks} ranks of {backend}"
    with tempfile.TemporaryDirectory() as place:
        asked = {"workload": workload, "directory": place, "rests": rests, "backend": backend}
        lacked_ms = np.array(on_this_host(RANK_SCRIPT, ranks, asked)) / 1e6
        ours, theirs = (_read(Path(place) / folder) for folder in ("run", "torch"))
        recorded = sorted((Path(place) / "run").rglob("*.trace"))
        stood = np.array([_stood_still_ms(path) for path in recorded])
        lacking, differing = _calls_apart(name, recorded, Path(place) / "torch")
        if backend == "nccl":
            for path in recorded:
                trace = Path(place) / f"torch/{path.stem.replace('_', '')}.json.gz"
                print(f"{name}: {path.stem}: {_kernels_apart(path, trace)}")
    steps = min(len(ours.steps), len(theirs.steps))
    step_ms = ours.parts_ms["step"][:, -steps:].mean(axis=1)
    stood, lacked_ms = stood[:, -steps:], lacked_ms[:, -steps:]
    more = {}
    for part in ("exposed", "wait"):
        ours_ms, theirs_ms = (of.parts_ms[part][:, -steps:] for of in (ours, theirs))
        more[part] = 100 * np.median(theirs_ms - ours_ms, axis=1) / step_ms
    lacked = 100 * np.median(lacked_ms, axis=1) / step_ms
    for rank in range(ranks):
        print(
            f"{name}: rank {rank}: step {step_ms[rank]:.2f} ms; in percent of the step: "
            f"torch.profiler has {more['exposed'][rank]:+.2f} % exposed time and "
            f"{more['wait'][rank]:+.2f} % waiting, compared with commprof; waits continue for "
            f"{100 * np.median(stood[rank]) / step_ms[rank]:.2f} % after the end of a collective; "
            f"the thread lacks a core for {lacked[rank]:.2f} %"
        )
    return {
        **{"workload": workload, "ranks": ranks, "backend": backend, "torch": torch.__version__},
        "rests": rests,
        "step_ms": [round(value, 3) for value in step_ms.tolist()],
        "exposed_percent": [round(value, 3) for value in more["exposed"].tolist()],
        "lacked_percent": round(float(lacked.max()), 2),
        **{"lacking": lacking, "differing": differing},
    }


def _read(recorded: Path) -> WorldDetail:
    _, details = analyse_in_detail(recorded)
    return details[0]


def _calls_apart(name: str, ours: Sequence[Path], theirs: Path) -> tuple[int, int]:
    """Returns the number of calls that one recording lacks, and the number of calls that differ.

    A call of torch.profiler differs if commprof has no call of the operation with the same group,
    or no call with the same size. Unknown groups and sizes do not count.
    """
    recording = read_recording(theirs)
    assert recording is not None
    lacking = differing = 0
    for path in ours:
        own_calls = _calls(read_trace(path))
        other_calls = _calls(recording.traces[read_trace(path).rank])
        ops = Counter(op for op, _, _ in own_calls)
        other_ops = Counter(op for op, _, _ in other_calls)
        for op, count in ((ops - other_ops) + (other_ops - ops)).items():
            print(f"{name}: {path.stem}: only one of the recordings has {count} calls of {op}")
            lacking += count
        for what, of_both in (
            (
                "group",
                [[(op, group) for op, group, _ in calls] for calls in (own_calls, other_calls)],
            ),
            ("size", [[(op, size) for op, _, size in calls] for calls in (own_calls, other_calls)]),
        ):
            known = Counter(call for call in of_both[1] if call[1] is not None)
            for call, count in (known - Counter(of_both[0])).items():
                print(f"{name}: {path.stem}: {count} calls have another {what}: {call}")
                differing += count
    return lacking, differing


def _calls(trace: Trace) -> list[tuple[str, str | None, int | None]]:
    """Returns operation, group and size of each call; an unknown group or size is None."""
    table = columns.collectives(trace)
    size = sizes_bytes(table.op, table.bytes_in, table.bytes_out, sizes_of_groups([trace], [table]))
    held = trace.recorded
    return [
        (
            OPS[op],
            trace.groups[group].name if held is None or held.group[op_id - 1] else None,
            nbytes if held is None or held.size[op_id - 1] else None,
        )
        for op, group, nbytes, op_id in zip(
            *(table.op.tolist(), table.group.tolist(), size.tolist(), table.op_id.tolist()),
            strict=True,
        )
    ]


def _kernels_apart(ours: Path, theirs: Path) -> str:
    """Returns a sentence about how NCCL's kernels differ between the recordings.

    The clocks differ, so the median difference of the kernels' ends is subtracted.
    """
    with gzip.open(theirs) as file:
        events = json.load(file)["traceEvents"]
    kernels = sorted(
        (event["ts"], event["dur"])
        for event in events
        if event.get("cat") == "kernel" and event["name"].startswith("nccl")
    )
    moved = on_device_timeline(read_trace(ours))
    table = columns.collectives(moved)
    if len(table) != len(kernels):
        return f"{len(table)} collectives, but {len(kernels)} kernels"
    their_start, length = np.array(kernels).T
    order = np.argsort(table.end_ns)
    start_us = start_times(moved, table)[order] / 1e3
    end_us = table.end_ns[order] / 1e3
    end_apart = end_us - (their_start + length)
    end_apart -= np.median(end_apart)
    length_apart = (end_us - start_us) - length
    return "; ".join(
        f"{what} by {np.median(values):+.1f} us in the median, by at most "
        f"{np.quantile(np.abs(values), 0.99):.1f} us for 99 % of them"
        for what, values in (
            (f"ends of {len(kernels)} kernels differ", end_apart),
            (f"their lengths ({np.median(length):.0f} us) differ", length_apart),
        )
    )


def _stood_still_ms(trace: Path) -> npt.NDArray[np.float64]:
    """Returns, for each step, how long waits lasted after their collective was done."""
    recorded = read_trace(trace)
    steps, waited = columns.steps(recorded), exposures_of(recorded)
    done_ns = columns.collectives(recorded).end_ns[waited.collective]
    until = np.where(waited.collective < 0, waited.begin_ns, done_ns)
    late_ns = np.maximum(0, waited.end_ns - np.maximum(waited.begin_ns, until))
    step = np.searchsorted(steps.begin_ns, waited.begin_ns, side="right") - 1
    inside = step >= 0
    late: npt.NDArray[np.float64] = np.bincount(
        step[inside], weights=late_ns[inside], minlength=len(steps)
    )
    return late / 1e6


if __name__ == "__main__":
    raise SystemExit(main())
