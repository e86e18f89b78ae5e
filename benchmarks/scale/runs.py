"""Writes traces of a simulated DDP job of many ranks.

    PYTHONPATH=. python benchmarks/scale/runs.py FOLDER 1024 100 --per-host 8
    PYTHONPATH=. python benchmarks/scale/runs.py FOLDER 1024 24 --plain

Each step has phases, all-reduces in backward and DDP's finalisation. An all-reduce begins when all
ranks have issued it. The traces also hold run delays and Linux's counts of a thread, such as page
faults. With ``--plain`` a step has only collectives, their waits, and the end of the step. The rank
at a third of the world size is late in forward. Each host has a clock of its own, which is compared
with rank 0's clock.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commprof.trace.schema import OPS, RECORD_DTYPE, Kind, Phase
from tests.support.builders import trace_bytes

Ints = npt.NDArray[np.int64]
_MS = 1_000_000
_MAIN, _HELPER, _CLOCK = 100, 101, 102
#: Bytes of a bucket, and records in a block of a trace.
_BUCKET, _IN_BLOCK = 1 << 18, 320
_BETWEEN_HOSTS_NS = 137_000 * _MS


@dataclass(frozen=True)
class Times:
    """Times of all events on one clock.

    ``issue`` and ``complete`` have the indices ``[step, rank, call]``, all others ``[step, rank]``.
    """

    begin: Ints
    data: Ints
    forward: Ints
    backward: Ints
    finalize: Ints
    finalized: Ints
    optimizer: Ints
    end: Ints
    issue: Ints
    complete: Ints


def drawn(ranks: int, steps: int, calls: int, late_ms: float, seed: int) -> Times:
    """Draws the times of a job."""
    random = np.random.default_rng(seed)

    def about(mean_ms: float, *shape: int, spread: float = 0.05) -> Ints:
        drawn_ns = mean_ms * (1 + spread * random.standard_normal(shape)) * _MS
        return np.maximum(1000, drawn_ns).astype(np.int64)

    rows = [np.zeros((steps, ranks), dtype=np.int64) for _ in range(8)]
    begin, data, forward, backward, finalize, finalized, optimizer, end = rows
    issue, complete = (np.zeros((steps, ranks, calls), dtype=np.int64) for _ in range(2))
    now = 10_000 * _MS + random.integers(0, 2 * _MS, ranks)
    for step in range(steps):
        begin[step] = now
        data[step] = now + about(0.6, ranks)
        forward[step] = data[step] + about(5.0, ranks)
        forward[step, ranks // 3] += int(late_ms * _MS)
        backward[step] = forward[step] + 50_000
        gaps = about(0.45, ranks, calls, spread=0.1)
        issue[step] = backward[step][:, np.newaxis] + np.cumsum(gaps, axis=1)
        finalize[step] = issue[step, :, -1] + 40_000
        # Calls run one at a time; each call begins when its last rank has arrived.
        last, length, busy = issue[step].max(axis=0), about(0.3, calls, spread=0.2), 0
        for call in range(calls):
            busy = max(int(last[call]), busy) + int(length[call])
            complete[step, :, call] = busy + random.integers(1000, 20_000, ranks)
        complete[step] = np.maximum.accumulate(complete[step], axis=1)
        waited = np.maximum(finalize[step] + 5000, complete[step, :, -1])
        finalized[step] = waited + 15_000
        optimizer[step] = finalized[step] + 30_000 + about(2.0, ranks)
        now = end[step] = optimizer[step] + about(0.8, ranks)
    return Times(*rows, issue, complete)


def write_run(
    folder: Path,
    ranks: int,
    steps: int,
    calls: int = 25,
    per_host: int = 0,
    plain: bool = False,
    late_ms: float = 4.0,
    seed: int = 1,
) -> int:
    """Writes the traces of a job into a new folder; returns their size in bytes."""
    folder.mkdir(parents=True)
    times, total = drawn(ranks, steps, calls, late_ms, seed), 0
    for rank in range(ranks):
        host = rank // per_host if per_host else 0
        offset = host * _BETWEEN_HOSTS_NS
        records = job_records(times, rank, plain)
        records["timestamp_ns"] += offset
        timed = np.isin(records["kind"], (Kind.PHASE, Kind.WAIT, Kind.RUN_DELAY, Kind.HOST_COUNTS))
        records["value"][timed] += offset
        if host:
            records = np.concatenate([_compared(times, rank, offset), records])
        records = records[np.argsort(records["timestamp_ns"], kind="stable")]
        data = _file(records, rank, ranks, host, rank - host * per_host)
        (folder / f"rank_{rank}.trace").write_bytes(data)
        total += len(data)
    return total


def job_records(times: Times, rank: int, plain: bool) -> npt.NDArray[np.void]:
    """Returns the unsorted records of one rank, with times on the job's common clock."""
    steps, _, calls = times.issue.shape
    number = np.arange(steps)
    rows: list[npt.NDArray[np.void]] = []

    def add(kind: Kind, at: Ints, **fields: Ints | int) -> None:
        part = np.zeros(at.size, dtype=RECORD_DTYPE)
        part["kind"], part["timestamp_ns"], part["thread"] = kind, at.ravel(), _MAIN
        for name, values in fields.items():
            part[name] = np.asarray(values).ravel()
        rows.append(part)

    issue, complete = times.issue[:, rank], times.complete[:, rank]
    seq = np.arange(steps * calls)
    size = {"op": OPS.index("all_reduce"), "group": 1, "bytes_in": _BUCKET, "bytes_out": _BUCKET}
    of_pass = 0 if plain else np.repeat(number + 2, calls)
    add(Kind.ISSUE, issue, op_id=seq + 1, seq=seq, dtype=6, value=of_pass, **size)
    add(Kind.END, complete, op_id=seq + 1, op=size["op"], thread=_HELPER)
    add(Kind.STEP, times.begin[:1, rank], seq=1)
    add(Kind.STEP, times.end[:, rank], op_id=number, aux=1, seq=1)
    if plain:
        begin = np.maximum.accumulate(complete, axis=1)
        begin[:, 1:] = np.maximum(begin[:, :-1], issue[:, -1:])
        begin[:, 0] = issue[:, -1]
        add(Kind.WAIT, begin, op_id=seq + 1, value=np.maximum(begin + 500, complete))
        return np.concatenate(rows)
    phase = [times.data, times.forward, times.finalized + 30_000, times.optimizer]
    starts = [times.begin + 60_000, times.data, times.backward, times.finalized + 30_000]
    codes = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    for code, first, last in zip(codes, starts, phase, strict=True):
        samples = 16 if code == Phase.DATA else 0
        add(Kind.PHASE, first[:, rank], aux=int(code), value=last[:, rank], seq=samples)
    cpu = number * 10 * _MS
    read = {"op_id": number + 1, "flags": trace_bytes.RUN_DELAY_READ}
    add(Kind.FINALIZE_BEGIN, times.finalize[:, rank], value=cpu, **read)
    add(Kind.FINALIZE_END, times.finalized[:, rank], value=cpu + 60_000, **read)
    backward, done = times.backward[:, rank], times.finalized[:, rank] + 30_000
    add(Kind.RUN_DELAY, backward, bytes_in=50_000, bytes_out=900_000, value=done)
    add(Kind.HOST_COUNTS, backward, aux=3, value=done)
    return np.concatenate(rows)


def _compared(times: Times, rank: int, offset: int) -> npt.NDArray[np.void]:
    """Returns records that compare the host's clock with rank 0's clock."""
    begin, end = int(times.begin[0, rank]), int(times.end[-1, rank])
    at = begin + np.array([0, 1, 2, 4, 8, *range(10, 10_000, 10)]) * 1000 * _MS
    at = at[at <= end]
    random = np.random.default_rng(rank)
    found = np.zeros(len(at), dtype=RECORD_DTYPE)
    found["kind"], found["timestamp_ns"], found["thread"] = Kind.CLOCK, at + offset, _CLOCK
    error = random.integers(6000, 15_000, len(at))
    found["bytes_in"], found["bytes_out"] = error, 2 * error
    found["value"] = (random.integers(-4000, 4000, len(at)) - offset).astype(np.uint64)
    return found


def _file(records: npt.NDArray[np.void], rank: int, ranks: int, host: int, local: int) -> bytes:
    about = trace_bytes.metadata(rank=rank, world_size=ranks, local_rank=local)
    cores = {"cpu_count": 4 * ranks, "usable_cpu_count": 4 * ranks, "boot_id": f"boot {host}"}
    about["machine"].update(cores, hostname=f"host{host}")
    group = trace_bytes.group(1, name="0", rank=rank, size=ranks, backend="gloo")
    raw = records.tobytes()
    length = _IN_BLOCK * RECORD_DTYPE.itemsize
    blocks = [trace_bytes.document(trace_bytes.GROUP_BLOCK, group)]
    for at in range(0, len(raw), length):
        blocks.append(trace_bytes.block(trace_bytes.RECORDS_BLOCK, raw[at : at + length]))
    return trace_bytes.trace(*blocks, trace_bytes.end(0), **about)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("ranks", type=int)
    parser.add_argument("steps", type=int)
    parser.add_argument("--calls", type=int, default=25, help="collectives of a step")
    parser.add_argument(
        "--per-host", type=int, default=0, help="ranks per host; 0 puts all ranks on one host"
    )
    parser.add_argument("--plain", action="store_true", help="no phases and no finalisations")
    args = parser.parse_args()
    size = write_run(args.folder, args.ranks, args.steps, args.calls, args.per_host, args.plain)
    print(f"{args.folder}: {args.ranks} ranks, {args.steps} steps, {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
