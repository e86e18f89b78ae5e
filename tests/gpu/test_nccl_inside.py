from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commprof.trace import columns
from commprof.trace.nccl import NcclOps, nccl_ops, sends
from commprof.trace.reader import Trace, read_trace
from tests.support.machines.commands import RUN, call

pytestmark = pytest.mark.needs_gpu

SCRIPT = str(Path(__file__).parents[1] / "support/scripts/nccl_inside.py")
REPLAYS = 10
#: Of the differences from torch.profiler's times, 99 % must be below this.
MOST_NS = 3000


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Trace], list[Any]]:
    """Returns the job's output, and for each rank its trace and torch.profiler's kernels."""
    folder = tmp_path_factory.mktemp("inside")
    run = folder / "run"
    done = call(
        *(*RUN, "--nproc", "2", "--output", str(run), SCRIPT, str(folder)),
        timeout_s=300,
        COMMPROF_NCCL="network",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    traces = [read_trace(run / f"world_2/rank_{rank}.trace") for rank in range(2)]
    kernels = [json.loads((folder / f"kernels_{rank}.json").read_text()) for rank in range(2)]
    return done.stdout + done.stderr, traces, kernels


def test_it_is_set_up_by_itself_and_says_so_once(job: tuple[str, list[Trace], list[Any]]) -> None:
    assert job[0].count("NCCL's own operations are recorded too") == 1


def test_every_kernel_belongs_to_a_call(job: tuple[str, list[Trace], list[Any]]) -> None:
    for trace in job[1]:
        ops = nccl_ops(trace)
        calls = columns.collectives(trace)
        assert len(ops) > 0
        assert np.isin(ops.op_id, calls.op_id).all()
        assert ops.timed.mean() > 0.99
        buckets = columns.buckets(trace)
        assert np.isin(buckets.op_id, ops.op_id).mean() > 0.99


def test_replays_belong_to_the_captured_call(job: tuple[str, list[Trace], list[Any]]) -> None:
    for trace in job[1]:
        ops = nccl_ops(trace)
        assert ops.replay[ops.replay > 0].tolist() == list(range(1, REPLAYS + 1))
        assert len(set(ops.op_id[ops.replay > 0].tolist())) == 1


@pytest.mark.parametrize("part", ["eager", "replayed"])
def test_times_are_those_of_torch_profiler(
    job: tuple[str, list[Trace], list[Any]], part: str
) -> None:
    for trace, kernels in zip(job[1], job[2], strict=True):
        truth = np.array(kernels[part], dtype=np.int64)
        begin, duration = _nearest(nccl_ops(trace), truth)
        assert np.quantile(np.abs(duration - truth[:, 1]), 0.99) < MOST_NS
        # The plugin and the profiler convert the GPU's clock differently, so a constant offset
        # between their times is allowed.
        offset = np.median(begin - truth[:, 0])
        assert np.quantile(np.abs(begin - truth[:, 0] - offset), 0.99) < MOST_NS


def _nearest(
    ops: NcclOps, truth: np.ndarray[Any, np.dtype[np.int64]]
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]:
    rows = np.flatnonzero(ops.timed)
    at = np.abs(ops.begin_ns[rows][None, :] - truth[:, :1]).argmin(axis=1)
    return ops.begin_ns[rows][at], (ops.end_ns - ops.begin_ns)[rows][at]


def test_the_proxy_sends_over_the_socket(job: tuple[str, list[Trace], list[Any]]) -> None:
    for trace in job[1]:
        table = sends(trace)
        assert len(table) > 0
        assert set(table.peer.tolist()) == {1 - trace.rank}
        assert (table.transfer_ns > 0).any()
        assert (table.size_bytes > 0).all()
