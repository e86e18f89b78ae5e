from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: NCCL's busbw is its algbw times this factor for n ranks, as in nccl-tests.
_FACTORS = {
    "AllReduce": lambda n: 2 * (n - 1) / n,
    "AllGather": lambda n: (n - 1) / n,
    "ReduceScatter": lambda n: (n - 1) / n,
    "AllToAll": lambda n: (n - 1) / n,
    "Broadcast": lambda n: 1.0,
    "Reduce": lambda n: 1.0,
}
_OF_ALL_RANKS = ("AllGather", "ReduceScatter", "AllToAll")


@dataclass
class Group:
    id: str
    name: str
    members: Ints
    calls: dict[str, int] = field(default_factory=dict)
    waited_us: float = 0.0
    #: The keys are kind and bytes. A transfer lasts from the last arrival until the kernels end, as
    #: a mean over the ranks.
    transfers_us: dict[tuple[str, int], list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    process: int
    group: Group
    kind: str
    number: int
    size_bytes: int
    time_us: float
    peer: int = -1


class SimulatedJob:
    def __init__(
        self,
        tp: int = 1,
        dp: int = 1,
        pp: int = 1,
        *,
        experts: int = 1,
        per_host: int = 8,
        seed: int = 0,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.count, self.per_host = tp * dp * pp, per_host
        grid = np.arange(self.count).reshape(pp, dp, tp)
        self.tensor = [self._group("tp", row) for stage in grid for row in stage] if tp > 1 else []
        self.data = (
            [self._group("dp", grid[s, :, t]) for s in range(pp) for t in range(tp)]
            if dp > 1
            else []
        )
        self.expert = [
            self._group("ep", group.members[begin : begin + experts])
            for group in self.data
            for begin in range(0, len(group.members), experts)
            if experts > 1
        ]
        self.pipeline = (
            [self._group("pp", grid[:, d, t]) for d in range(dp) for t in range(tp)]
            if pp > 1
            else []
        )
        self.now_us: Floats = np.zeros(self.count)
        self.records: list[Written] = []
        self.dropped: dict[tuple[int, str], int] = {}
        self.late_by_us: dict[int, float] = {}
        self._messages = np.zeros(self.count, dtype=np.int64)
        self.time_us = np.zeros(self.count)

    def _group(self, name: str, members: Ints) -> Group:
        return Group(f"0x{int(self.rng.integers(2**62)):x}", name, members)

    def work(self, mean_us: float, noise: float = 0.03, extra_us: Floats | None = None) -> None:
        took = mean_us * (1 + noise * self.rng.standard_normal(self.count))
        self.now_us += np.maximum(1.0, took) + (0 if extra_us is None else extra_us)

    def collective(self, groups: list[Group], kind: str, size_bytes: int, us: float) -> None:
        for group in groups:
            arrived = self.now_us[group.members]
            transfer = us * float(self.rng.uniform(0.95, 1.05))
            # On a GPU, the kernels of one collective end up to 3 µs apart.
            end = arrived.max() + transfer + self.rng.uniform(0, 3, len(arrived))
            number = group.calls[kind] = group.calls.get(kind, -1) + 1
            group.waited_us += float((arrived.max() - arrived).sum())
            took = float(end.mean() - arrived.max())
            group.transfers_us.setdefault((kind, size_bytes), []).append(took)
            self._record(group, kind, number, size_bytes, end - arrived)
            self.now_us[group.members] = end

    def rooted(self, groups: list[Group], kind: str, size_bytes: int, us: float) -> None:
        """In a Broadcast the ranks wait only for rank 0; in a Reduce rank 0 waits for all ranks."""
        for group in groups:
            arrived = self.now_us[group.members]
            transfer = us * float(self.rng.uniform(0.95, 1.05))
            end = arrived + transfer
            if kind == "Broadcast":
                end[1:] = np.maximum(arrived[1:], arrived[0]) + transfer
            else:
                end[0] = arrived.max() + transfer
            number = group.calls[kind] = group.calls.get(kind, -1) + 1
            self._record(group, kind, number, size_bytes, end - arrived)
            self.now_us[group.members] = end

    def send(self, stage: int, to: int, size_bytes: int, us: float) -> None:
        for group in self.pipeline:
            pair = group.members[[stage, to]]
            arrived = self.now_us[pair]
            end = arrived.max() + us * float(self.rng.uniform(0.95, 1.05))
            group.waited_us += float((arrived.max() - arrived).sum())
            for place, (kind, peer) in enumerate((("Send", to), ("Recv", stage))):
                process = int(pair[place])
                self._messages[process] += 1
                self.records.append(
                    Written(
                        *(process, group, kind, int(self._messages[process]), size_bytes),
                        *(float(end - arrived[place]), peer),
                    )
                )
            self.now_us[pair] = end

    def _record(self, group: Group, kind: str, number: int, size_bytes: int, us: Floats) -> None:
        for process, took in zip(group.members.tolist(), us.tolist(), strict=True):
            self.records.append(Written(process, group, kind, number, size_bytes, took))

    def lose(self, fraction: float) -> None:
        kept = self.rng.random(len(self.records)) >= fraction
        self.records = [r for r, keep in zip(self.records, kept.tolist(), strict=True) if keep]

    def overflow(self, ring: int, per_dump: int) -> None:
        """Drops the oldest collectives of each dump.

        A process has a ring for each of its communicators. It dumps a ring after ``per_dump``
        collectives of the communicator, and the ring has room for ``ring`` collectives.
        """
        phase = self.rng.integers(0, per_dump, self.count)
        seen: dict[tuple[int, str], list[int]] = {}
        for place, record in enumerate(self.records):
            if record.peer < 0:
                seen.setdefault((record.process, record.group.id), []).append(place)
        lost: set[int] = set()
        for (process, name), places in seen.items():
            first = int(phase[process])
            for begin in range(first - per_dump, len(places), per_dump):
                dump = places[max(0, begin) : begin + per_dump]
                gone = dump[: max(0, len(dump) - ring)]
                lost.update(gone)
                if gone:
                    self.dropped[process, name] = self.dropped.get((process, name), 0) + len(gone)
        self.records = [r for place, r in enumerate(self.records) if place not in lost]

    def write(self, folder: Path, version: str = "v4.0", records_a_dump: int = 50) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        offsets = self.rng.integers(-(10**10), 10**10, self.count // self.per_host + 1)
        by_process: dict[int, list[Written]] = {}
        for record in self.records:
            by_process.setdefault(record.process, []).append(record)
        for process, records in by_process.items():
            host = process // self.per_host
            dropped = {name: lost for (of, name), lost in self.dropped.items() if of == process}
            lines = _lines(
                records, host, process, version, int(offsets[host]), records_a_dump, dropped
            )
            name = f"host{host:03d}-pid{1000 + process}.log"
            (folder / name).write_text("\n".join(lines) + "\n")


def _lines(
    records: list[Written],
    host: int,
    process: int,
    version: str,
    offset_us: int,
    a_dump: int,
    dropped: dict[str, int],
) -> Iterator[str]:
    packed = version >= "v4.3"
    for begin in range(0, len(records), a_dump):
        dump: dict[str, list[Written]] = {}
        for record in records[begin : begin + a_dump]:
            dump.setdefault(record.group.id, []).append(record)
        timestamp = 1_780_000_000_000_000 + offset_us + begin * 100
        for same in dump.values():
            about = _about(same[0].group, host, process, version, timestamp)
            if packed:
                lost = dropped.get(same[0].group.id, 0)
                stats = {"coll_records": len(same), "coll_dropped_total": lost}
                yield json.dumps({**about, "dump_stats": stats})
            # JSON written by hand takes a fifth of the time of json.dumps.
            begin_of_line = "{" if packed else json.dumps(about)[:-1] + ", "
            for record in same:
                yield f"{begin_of_line}{_operation(record)}}}"


def _about(
    group: Group, host: int, process: int, version: str, timestamp_us: int
) -> dict[str, object]:
    return {
        "header": {
            "id": group.id,
            "comm_name": group.name,
            "rank": int(np.flatnonzero(group.members == process)[0]),
            "n_ranks": len(group.members),
            "nnodes": 1,
        },
        "metadata": {
            "inspector_output_format_version": version,
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": timestamp_us,
            "hostname": f"host{host:03d}",
            "pid": 1000 + process,
        },
    }


def _operation(record: Written) -> str:
    ranks = len(record.group.members)
    time_us = int(record.time_us)  # the plugin cuts fractions off
    is_message = record.peer >= 0
    of_all = ranks if record.kind in _OF_ALL_RANKS else 1
    algbw = record.size_bytes * of_all / time_us / 1e3 if time_us else 0.0
    factor = 1.0 if is_message else _FACTORS[record.kind](ranks)
    what = "p2p" if is_message else "coll"
    peer = f'"p2p_peer": {record.peer}, ' if is_message else ""
    return (
        f'"{what}_perf": {{"{what}": "{record.kind}", "{what}_sn": {record.number}, {peer}'
        f'"{what}_msg_size_bytes": {record.size_bytes}, "{what}_exec_time_us": {time_us}, '
        f'"{what}_timing_source": "kernel_gpu", "{what}_algobw_gbs": {algbw:.6f}, '
        f'"{what}_busbw_gbs": {algbw * factor:.6f}}}'
    )


def simulate(
    tp: int,
    dp: int,
    pp: int,
    *,
    steps: int,
    late_us: dict[int, float] | None = None,
    late_part: float = 1.0,
    lost: float = 0.0,
    experts: int = 1,
    rooted: bool = False,
    seed: int = 0,
    slow_us: dict[int, float] | None = None,
    slow_in: range | None = None,
) -> SimulatedJob:
    """Simulates training steps of tensor, data and pipeline parallelism.

    Args:
        tp: number of ranks in a tensor-parallel group.
        dp: number of ranks in a data-parallel group.
        pp: number of pipeline stages.
        steps: number of steps.
        late_us: time in µs by which a process is late, by process. At most one process is late in a
            step.
        late_part: fraction of the steps in which a process is late.
        lost: fraction of the records that is lost.
        experts: number of ranks in an expert group, which exchanges tokens. If it is 1,
            data-parallel groups exchange the tokens.
        rooted: True if each step also has a broadcast and a reduce.
        seed: seed of all random numbers.
        slow_us: time in µs by which a process works longer in each step, by process.
        slow_in: the steps to which ``slow_us`` applies; None for all steps.
    """
    job = SimulatedJob(tp, dp, pp, experts=experts, seed=seed)
    layers = 3
    for step in range(steps):
        extra = np.zeros(job.count)
        if slow_in is None or step in slow_in:
            for process, longer_us in (slow_us or {}).items():
                extra[process] = longer_us / layers
        if late_us and job.rng.random() < late_part:
            process = int(job.rng.choice(list(late_us)))
            extra[process] = late_us[process] / layers
            job.late_by_us[process] = job.late_by_us.get(process, 0.0) + late_us[process]
        for stage in range(pp):
            if stage:
                job.send(stage - 1, stage, 1 << 20, 40.0)
        for _ in range(layers):
            job.work(900.0, extra_us=extra)
            job.collective(job.tensor, "AllReduce", 8 << 20, 120.0)
            job.work(300.0)
            job.collective(job.expert or job.data, "AllToAll", 1 << 18, 60.0)
        for stage in reversed(range(pp)):
            if stage:
                job.send(stage, stage - 1, 1 << 20, 40.0)
        if rooted:
            job.rooted(job.data, "Broadcast", 1 << 16, 20.0)
            job.rooted(job.data, "Reduce", 1 << 16, 20.0)
        job.collective(job.data, "ReduceScatter", 4 << 20, 400.0)
        job.work(200.0)
        job.collective(job.data, "AllGather", 4 << 20, 300.0)
    if lost:
        job.lose(lost)
    return job
