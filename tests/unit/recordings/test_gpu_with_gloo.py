from __future__ import annotations

import json
from pathlib import Path

import pytest

from commprof.analysis.evidence import Figure
from commprof.analysis.run import analyse_in_detail
from tests.support.builders.profiler_traces import Event, annotation, kernel, write

_STEPS = 12


def events(rank: int, backend: str = "gloo", thread: int = 3) -> list[Event]:
    made = list[Event]()
    dims = {"Input Dims": [[1000]], "Input type": ["float"]}
    issue = {"Input Dims": [[[1000]]], "Input type": ["TensorList"]}
    for step in range(_STEPS):
        at, own = 5e9 + 1000.0 * step, 300 if rank == 0 else 500
        begin, end = (at + own + 5, at + 600) if thread != 1 else (at + own + 1, at + own + 4)
        operator = annotation("c10d::allreduce_", at + own, at + own + 5)
        made += [
            annotation(f"ProfilerStep#{step}", at, at + 1000),
            kernel("gemm", at, at + own),
            {**operator, "cat": "cpu_op", "args": issue},
            {**annotation(f"{backend}:all_reduce", begin, end, tid=thread), "args": dims},
            kernel("relu", at + 600, at + 900),
        ]
    return made


def job(folder: Path, backend: str = "gloo", thread: int = 3) -> Path:
    config = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}
    config["backend_config"] = f"cpu:{backend},cuda:{backend}"
    documents = []
    for rank in range(2):
        about = {"backend": backend, "rank": rank, "world_size": 2, "pg_config": [config]}
        document = {"schemaVersion": 1, "distributedInfo": about}
        documents.append(json.dumps({**document, "traceEvents": events(rank, backend, thread)}))
    return write(folder, documents)


def test_times_that_the_host_knows_are_known(tmp_path: Path) -> None:
    result, _ = analyse_in_detail(job(tmp_path / "job"))
    (world,) = result.worlds
    assert world.evidence.not_known.keys() <= {Figure.OTHER.value, Figure.NOBODY_LATE.value}
    first, second = (rank.parts for rank in world.ranks)
    assert (first.exposed_ms, second.exposed_ms) == pytest.approx((0.3, 0.1))
    assert (first.wait_ms, first.transfer_ms) == pytest.approx((0.2, 0.1))
    assert (first.unphased_compute_ms, second.unphased_compute_ms) == pytest.approx((0.6, 0.8))
    for parts in (first, second):
        whole = parts.unphased_compute_ms + parts.exposed_ms + parts.copies_ms + parts.idle_ms
        assert whole == pytest.approx(parts.step_ms)
    assert world.lateness.late_rank is not None
    assert world.lateness.late_rank.rank == 1
    (row,) = world.communication.collectives
    assert (row.kind.op, row.calls) == ("all_reduce", 2 * _STEPS)
    assert row.kind.size_bytes == (4000, 4000)
    assert row.times.algbw_gb_per_s == pytest.approx(4000 / 100e-6 / 1e9)
    assert world.recording.device_collectives == 0
    assert result.context["backend"] == "gloo"


@pytest.mark.parametrize("backend", ["nccl", "other"])
def test_a_range_within_the_call_shows_no_transfer(tmp_path: Path, backend: str) -> None:
    """The call of a backend that runs on a device returns when the collective is queued."""
    result, _ = analyse_in_detail(job(tmp_path / "job", backend, thread=1))
    (world,) = result.worlds
    assert not world.evidence.supports(Figure.EXPOSED)
    assert not world.evidence.supports(Figure.CALLS)
    assert world.lateness.late_rank is None
