from __future__ import annotations

import numpy as np
import pytest

from commprof.trace import columns, schema
from commprof.trace.reader import Trace, read_trace
from tests.support.machines.faults.victims import Ended, run_module
from tests.support.ranks.capture.python_capture import BUCKETS

WORLD_SIZE = 2
STEPS = len(BUCKETS)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Ended], list[Trace]]:
    directory = tmp_path_factory.mktemp("python_capture")
    ended = run_module(
        "tests.support.ranks.capture.python_capture", [str(directory)], WORLD_SIZE, native=False
    )
    for one in ended:
        assert one.returncode == 0, one.stderr
    return ended, [read_trace(directory / f"rank_{rank}.trace") for rank in range(WORLD_SIZE)]


def test_python_capture_leaves_gradients_bit_identical(
    job: tuple[list[Ended], list[Trace]],
) -> None:
    digests = [one.said[0] for one in job[0]]
    for by_variant in digests:
        assert len(by_variant) == 3
        assert len(set(by_variant.values())) == 1, by_variant
    assert digests[0] == digests[1]


def test_each_rank_prints_once_that_python_capture_is_used(
    job: tuple[list[Ended], list[Trace]],
) -> None:
    for one in job[0]:
        about = [line for line in one.stderr.splitlines() if line.startswith("commprof:")]
        assert about == [
            "commprof: COMMPROF_NATIVE=0 is set. Using the Python capture (fewer facts, more "
            "overhead)."
        ]


def test_traces_of_python_capture_are_complete(job: tuple[list[Ended], list[Trace]]) -> None:
    for rank, trace in enumerate(job[1]):
        assert (trace.rank, trace.world_size) == (rank, WORLD_SIZE)
        assert (trace.complete, trace.dropped, trace.problems) == (True, 0, ())
        assert (trace.metadata["capture"], trace.metadata["ring_prefix"]) == ("python", "")
        (group,) = trace.groups.values()
        assert (group.id, group.backend, group.rank, group.size) == (1, "gloo", rank, WORLD_SIZE)


def test_python_capture_records_steps_and_phases(job: tuple[list[Ended], list[Trace]]) -> None:
    for trace in job[1]:
        steps, phases = columns.steps(trace), columns.phases(trace)
        assert steps.index.tolist() == list(range(STEPS))
        assert (steps.begin_ns[1:] == steps.end_ns[:-1]).all()
        wanted = (schema.Phase.FORWARD, schema.Phase.BACKWARD, schema.Phase.OPTIMIZER)
        assert phases.key.tolist() == [*wanted] * STEPS
        assert (phases.end_ns[:-1] <= phases.begin_ns[1:]).all()
        assert set(phases.thread.tolist()) == {trace.metadata["main_thread"]}


def test_python_capture_records_buckets_and_collectives(
    job: tuple[list[Ended], list[Trace]],
) -> None:
    for trace in job[1]:
        buckets, table = columns.buckets(trace), columns.collectives(trace)
        assert len(buckets) == len(table) == sum(BUCKETS)
        # DDP numbers the buckets of a backward pass from 0.
        assert buckets.index.tolist() == [i for count in BUCKETS for i in range(count)]
        assert (table.op == schema.OPS.index("all_reduce")).all()
        assert table.seq.tolist() == list(range(sum(BUCKETS)))
        assert table.bytes_in.tolist() == buckets.bytes.tolist()
        assert buckets.bytes.sum() == STEPS * 4 * (64 * 64 + 64) * 4
        assert (buckets.ready_ns <= buckets.launch_ns).all()
        assert (table.issue_ns <= table.end_ns).all()
        assert np.unique(table.graph_task, return_counts=True)[1].tolist() == [*BUCKETS]
    assert columns.buckets(job[1][0]).signature.tolist() == (
        columns.buckets(job[1][1]).signature.tolist()
    )


def test_python_capture_records_finalizations(job: tuple[list[Ended], list[Trace]]) -> None:
    for trace in job[1]:
        found, table = columns.finalizations(trace), columns.collectives(trace)
        last = np.cumsum(BUCKETS) - 1
        assert found.span.key.tolist() == table.graph_task[last].tolist()
        assert (found.blocked_ns <= found.span.end_ns - found.span.begin_ns).all()
        # DDP continues when its last bucket is complete.
        assert (found.span.end_ns >= table.end_ns[last]).all()
