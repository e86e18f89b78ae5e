from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commprof.analysis.align.arrivals import backward_of
from commprof.analysis.align.device_timeline import (
    clock_error_ns,
    copying_ns,
    on_device_timeline,
    timed_collectives,
)
from commprof.analysis.collectives.calls import start_times
from commprof.analysis.replay.gains import gains
from commprof.analysis.step.breakdown import breakdown
from commprof.analysis.step.exposure import exposures_of
from commprof.analysis.step.measured import measured_world
from commprof.trace import columns, schema
from commprof.trace.schema import Kind, Phase
from tests.support.analysed import analyse_world
from tests.support.builders.exact.always_on import summarised
from tests.support.builders.traces import THREAD, Rank, world_run
from tests.support.machines.core_tests import build

ASYNC = schema.FLAG_DEVICE_ASYNC


class DeviceRank(Rank):
    """In each method, ``at`` holds two times on the device, in ns."""

    def device_step(self, begin: int, end: int, at: tuple[int, int]) -> None:
        first = not self.steps
        index = len(self.steps)
        self.step(begin, end)
        if first:
            self._add(Kind.DEVICE_STEP, at[0], op_id=index, bytes_in=begin)
        self._add(Kind.DEVICE_STEP, at[1], op_id=index, aux=1, bytes_in=end)

    def device_phase(self, phase: Phase, begin: int, end: int, at: tuple[int, int]) -> None:
        self.phase(phase, begin, end)
        self._add(Kind.DEVICE_PHASE, at[0], aux=phase, value=at[1], bytes_in=begin)

    def device_collective(self, seq: int, issue: int, at: tuple[int, int], **fields: int) -> int:
        """``at`` is (ready, complete); 0 stands for a time that was not recorded."""
        op_id = self.collective(seq, issue, 0, flags=ASYNC, **fields)
        if at[0]:
            self._add(Kind.DEVICE_READY, at[0], op_id=op_id, bytes_in=issue + 1)
        if at[1]:
            self._add(Kind.END, at[1], op_id=op_id, op=1, flags=schema.FLAG_DEVICE_TIME)
        return op_id

    def device_wait(self, op_id: int, host: int, at: tuple[int, int], **fields: int) -> None:
        self.wait(op_id, host, host + 2)
        self._add(Kind.DEVICE_WAIT, at[0], op_id=op_id, value=at[1], bytes_in=host, **fields)

    def device_finalize(self, host: int, at: tuple[int, int], graph_task: int = 0) -> None:
        self.finalize(host, host + 5, cpu=4, graph_task=graph_task)
        values = {"op_id": graph_task, "value": at[1], "bytes_in": host + 5}
        self._add(Kind.DEVICE_FINALIZE, at[0], **values)


def moved(rank: Rank) -> tuple[Any, columns.Collectives]:
    trace = on_device_timeline(rank.trace())
    return trace, columns.collectives(trace)


def two_steps() -> DeviceRank:
    rank = DeviceRank()
    for step in range(2):
        host, device = 1 + 50 * step, 2000 + 1000 * step
        rank.device_step(host, host + 50, (device, device + 1000))
        rank.device_phase(Phase.FORWARD, host + 1, host + 10, (device, device + 300))
        rank.device_phase(Phase.BACKWARD, host + 11, host + 40, (device + 300, device + 900))
        op = rank.device_collective(step, host + 12, (device + 400, device + 850), bytes=64)
        rank.device_wait(op, host + 20, (device + 600, device + 850))
    return rank


def test_a_trace_without_device_events_is_unchanged() -> None:
    rank = Rank()
    rank.step(0, 100)
    rank.collective(0, 10, 0, flags=ASYNC)
    trace = rank.trace()
    assert on_device_timeline(trace) is trace
    assert timed_collectives(trace) == 0
    assert np.isnan(clock_error_ns(trace))


def test_a_timed_collective_whose_issue_was_dropped_is_not_counted() -> None:
    rank = two_steps()
    rank.device_wait(77, 40, (2700, 2800))
    assert timed_collectives(rank.trace()) == 2


def test_steps_and_phases_get_the_times_of_the_device_stream() -> None:
    trace, table = moved(two_steps())
    parts = breakdown(trace, table, None, 1)
    assert parts.step.tolist() == [0, 1]
    assert parts.wall_ns.tolist() == [1000, 1000]
    assert parts.work.forward_ns.tolist() == [300, 300]
    assert parts.work.backward_ns.tolist() == [350, 350]
    assert parts.exposed_ns.tolist() == [250, 250]
    assert parts.work.other_ns.tolist() == [100, 100]
    assert parts.hidden_ns.tolist() == [200, 200]
    assert table.issue_ns.tolist() == [2400, 3400]
    assert table.end_ns.tolist() == [2850, 3850]
    assert (np.diff(trace.records["timestamp_ns"].astype(np.int64)) >= 0).all()


def test_waits_of_the_host_are_not_exposed_time_on_the_device_timeline() -> None:
    rank = two_steps()
    rank.wait(rank.collective(5, 30, 45), 31, 45)  # this collective has CPU tensors
    trace, _ = moved(rank)
    assert exposures_of(trace).waited_ns.tolist() == [250.0, 250.0]
    assert columns.waits(trace).thread.tolist() == [THREAD, THREAD]


def test_ends_that_only_the_hosts_waits_show_stay_on_the_device_timeline() -> None:
    rank = two_steps()
    blocked = rank.collective(0, 2050, 0, op="send")
    rank.wait(blocked, 2060, 2060 + 5 * schema.BLOCKED_NS)
    rank.wait(blocked, 9000, 9000 + schema.BLOCKED_NS)  # the first wait shows the end
    rank.wait(rank.collective(1, 2070, 0, op="send"), 2080, 2090)
    rank.collective(2, 2095, 0, op="send")
    # The clock was set back during this wait.
    rank.wait(rank.collective(3, 2096, 0, op="send"), 2099, 2098)
    rank.wait(rank.collective(7, 2100, 2200), 2150, 2150 + 5 * schema.BLOCKED_NS)
    on_host = columns.collectives(rank.trace())
    trace, table = moved(rank)
    row_of = {op_id: row for row, op_id in enumerate(table.op_id.tolist())}
    for row in range(2, len(on_host.op_id)):
        moved_row = row_of[int(on_host.op_id[row])]
        assert table.end_ns[moved_row] == on_host.end_ns[row]
        assert table.end_is_exact[moved_row] == on_host.end_is_exact[row]
    assert on_host.end_ns[2:].tolist() == [2060 + 5 * schema.BLOCKED_NS, 2090, 0, 2098, 2200]
    waited_ns = exposures_of(trace).waited_ns.tolist()
    assert [ns for ns in waited_ns if ns] == [250.0, 250.0]


def test_waits_are_exposed_time_if_another_thread_than_the_training_thread_began_capture() -> None:
    rank = two_steps()
    for record in rank._records:
        if record["kind"] in (Kind.STEP, Kind.DEVICE_STEP) and not record.get("aux"):
            record["thread"] = THREAD + 5
    trace, _ = moved(rank)
    assert exposures_of(trace).waited_ns.tolist() == [250.0, 250.0]


def test_waits_of_streams_that_do_not_compute_are_not_exposed_time() -> None:
    rank = two_steps()
    rank.device_wait(1, 40, (2600, 2700), bytes_out=9)
    trace, _ = moved(rank)
    assert exposures_of(trace).waited_ns.tolist() == [250.0, 250.0]


def test_waits_of_another_device_with_the_same_stream_id_are_not_exposed_time() -> None:
    rank = two_steps()
    rank.device_wait(1, 40, (2600, 2700), seq=1)
    trace, _ = moved(rank)
    assert exposures_of(trace).waited_ns.tolist() == [250.0, 250.0]


def test_a_collective_on_the_compute_stream_is_issued_when_its_wait_begins() -> None:
    rank = two_steps()
    op = rank.device_collective(2, 95, (0, 3990))
    rank.device_wait(op, 95, (3900, 3990))
    rank.device_wait(op, 97, (3990, 3990))
    trace, table = moved(rank)
    assert table.issue_ns.tolist()[-1] == 3900
    assert exposures_of(trace).waited_ns.tolist() == [250.0, 250.0, 90.0, 0.0]


def test_a_step_whose_end_event_was_lost_is_left_out() -> None:
    rank = two_steps()
    rank.step(101, 151)
    trace, _ = moved(rank)
    assert columns.steps(trace).index.tolist() == [0, 1]


def test_a_collective_without_device_events_keeps_its_host_times() -> None:
    rank = two_steps()
    rank.device_collective(2, 98, (0, 0))
    _, table = moved(rank)
    assert sorted(table.issue_ns.tolist()) == [98, 2400, 3400]
    assert timed_collectives(rank.trace()) == 2
    assert table.end_ns[table.issue_ns == 98].tolist() == [0]


@pytest.mark.parametrize(
    ("window", "buckets", "copying"),
    [
        (100, [(60, 10)], 40.0),
        # The buckets are views: nothing is copied, and the last bucket ends the window.
        (90, [(30, 10), (90, 20)], 0.0),
        (80, [(-50, 10), (-5, 30)], 80.0),
        # A copy takes 2 ns per byte: the copies are from 30 to 50 ns and from 70 to 90 ns.
        (90, [(30, 10), (70, 10)], 40.0),
        (60, [(10, 40), (45, 10)], 50.0),
        (60, [], 0.0),
        (60, [(10, 0)], 0.0),
    ],
)
def test_copying_time_in_a_finalisation_is_separated_from_waiting(
    window: int, buckets: list[tuple[int, int]], copying: float
) -> None:
    assert copying_ns(window, buckets) == pytest.approx(copying)


def test_a_finalisation_s_waiting_is_divided_among_its_buckets() -> None:
    rank = two_steps()
    # A copy takes 2 ns per byte, so 20 ns for each of the two buckets.
    rank.device_collective(2, 80, (3880, 3930), bytes=10, graph_task=4)
    rank.device_collective(3, 81, (3881, 3970), bytes=10, graph_task=4)
    rank.device_finalize(85, (3900, 3990), graph_task=4)
    trace, _ = moved(rank)
    found = columns.finalizations(trace)
    assert found.span.begin_ns.tolist() == [3900]
    assert found.span.end_ns.tolist() == [3990]
    assert found.blocked_ns.tolist() == [50]
    assert np.isnan(found.no_core_ns).all()
    exposed = exposures_of(trace)
    in_finalize = exposed.graph_task == 4
    assert exposed.waited_ns[in_finalize].tolist() == [30.0, 20.0]
    assert exposed.collective[in_finalize].tolist() == [2, 3]


def test_each_finalisation_waits_for_the_buckets_of_its_own_pass() -> None:
    rank = two_steps()
    rank.device_collective(2, 80, (3880, 3930), bytes=10, graph_task=4)
    rank.device_collective(3, 81, (4100, 4200), bytes=10, graph_task=5)
    rank.device_collective(4, 82, (3881, 3970), bytes=10, graph_task=4)
    rank.device_collective(5, 83, (4110, 0), bytes=10, graph_task=5)
    rank.device_finalize(85, (3900, 3990), graph_task=4)
    rank.device_finalize(95, (4190, 4230), graph_task=5)
    rank.device_finalize(105, (4300, 4310), graph_task=6)
    found = columns.finalizations(moved(rank)[0])
    assert found.span.key.tolist() == [4, 5, 6]
    assert found.blocked_ns.tolist() == [50, 10, 10]


def test_nccl_collectives_of_a_group_start_only_after_the_previous_one_ended() -> None:
    rank = DeviceRank()
    rank.backend = "nccl"
    rank.device_collective(0, 1, (100, 300))
    rank.device_collective(1, 2, (120, 400))
    rank.device_collective(2, 3, (500, 600))
    trace, table = moved(rank)
    assert start_times(trace, table).tolist() == [100, 300, 500]


def test_collectives_of_cpu_tensors_do_not_queue_behind_the_device_s_of_their_group() -> None:
    """The group has the backends ``cpu:gloo,cuda:nccl``."""
    rank = DeviceRank()
    rank.backend = "nccl"
    rank.metadata["gloo_threads"] = {"0": 2}
    rank.device_collective(0, 1, (100, 300))
    rank.collective(1, 110, 120)
    rank.device_collective(2, 3, (150, 400))
    rank.collective(3, 310, 330)
    trace, table = moved(rank)
    assert table.issue_ns.tolist() == [100, 110, 150, 310]
    assert start_times(trace, table).tolist() == [100, 110, 300, 310]


def test_a_collective_without_an_end_hides_only_the_next_start_on_a_device() -> None:
    rank = DeviceRank()
    rank.backend = "nccl"
    rank.device_collective(0, 1, (100, 0))
    rank.device_collective(1, 2, (120, 400))
    rank.device_collective(2, 3, (150, 500))
    rank.device_collective(3, 4, (700, 800))
    trace, table = moved(rank)
    assert start_times(trace, table).tolist() == [100, 0, 400, 700]


def test_world_analysis_uses_the_device_timeline() -> None:
    rank = two_steps()
    rank._add(Kind.DEVICE_CLOCK, 1990, bytes_in=7000, value=5)
    result = analyse_world(world_run([rank]))
    assert result is not None
    assert (result.recording.device_collectives, result.recording.device_timed) == (2, 2)
    assert result.recording.device_clock_error_us == 7.0
    assert result.timing.step_median_ms == 0.001
    assert result.parts.exposed_ms == 0.00025


def test_the_clock_error_bound_is_that_of_the_comparisons_used() -> None:
    rank = two_steps()
    for at, bound, used in ((1000, 8, 0), (2000, 90_000, 12), (3000, 7, 11)):
        rank._add(Kind.DEVICE_CLOCK, at, bytes_in=bound, bytes_out=used)
    assert clock_error_ns(rank.trace()) == 12
    old = two_steps()
    for at, bound in ((1000, 8), (2000, 90_000)):
        old._add(Kind.DEVICE_CLOCK, at, bytes_in=bound)
    assert clock_error_ns(old.trace()) == 90_000


def test_device_collectives_of_the_autograd_thread_belong_to_the_training_thread() -> None:
    rank = two_steps()
    rank.device_collective(2, 60, (3500, 3600), thread=THREAD + 2, graph_task=4)
    rank.device_collective(3, 61, (3600, 3700), thread=THREAD + 3)
    rank.collective(4, 62, 63, thread=THREAD + 2, graph_task=4)
    _, table = moved(rank)
    by_seq = dict(zip(table.seq.tolist(), table.thread.tolist(), strict=True))
    assert [by_seq[seq] for seq in (2, 3, 4)] == [THREAD, THREAD + 3, THREAD + 2]


def test_buckets_get_the_device_time_and_the_backward_pass_of_their_collectives() -> None:
    """On a GPU, a thread of autograd runs DDP's hook and finalisation."""
    rank = two_steps()
    own = {"thread": THREAD + 2, "group": 1, "bytes_in": 10}
    rank._add(Kind.BUCKET, 79, op_id=98, value=84, **own)
    rank.device_collective(2, 80, (3880, 3930), bytes=10, graph_task=4, thread=THREAD + 2)
    rank._add(Kind.BUCKET, 85, op_id=99, aux=1, value=86, **own)
    rank.device_finalize(95, (3900, 3990), graph_task=4)
    trace, _ = moved(rank)
    found = columns.buckets(trace)
    by_index = dict(zip(found.index.tolist(), found.ready_ns.tolist(), strict=True))
    assert by_index == {0: 3880, 1: 85}
    assert found.launch_ns[found.index == 0].tolist() == [3885]
    task = backward_of(found, columns.finalizations(trace))
    assert task[found.index == 0].tolist() == [4]


def test_host_run_delay_is_not_counted_on_the_device_timeline() -> None:
    rank = two_steps()
    rank.no_core(2100, 2300, delay=150)
    trace, table = moved(rank)
    assert not breakdown(trace, table, None, 1).host.run_delay_ns.any()


def test_a_collective_issued_in_backward_counts_as_backward_even_if_ready_in_forward() -> None:
    rank = two_steps()
    for step in range(2):
        at = (2100 + 1000 * step, 2400 + 1000 * step)
        rank.device_collective(2 + step, 60 + step, at, graph_task=4, bytes=128)
    result = analyse_world(world_run([rank]))
    assert result is not None
    assert [row.phases for row in result.communication.collectives] == [(("backward", 1),)] * 2


def test_a_wait_for_a_completed_collective_does_not_delay_replayed_steps() -> None:
    ranks = [DeviceRank(rank, 2) for rank in range(2)]
    us = 1000
    for step in range(20):
        host, device = 1 + 50 * step, 10_000_000 + 1000 * us * step
        for rank in ranks:
            until = device + (900 if rank.rank == 0 else 100) * us
            rank.device_step(host, host + 50, (device, device + 1000 * us))
            rank.device_phase(Phase.FORWARD, host + 1, host + 10, (device, until))
            early = (device + 10 * us, device + 90 * us)
            op = rank.device_collective(2 * step, host + 2, early, bytes=64)
            rank.device_wait(op, host + 11, (until, until))
            late = rank.device_collective(
                2 * step + 1, host + 12, (until, device + 950 * us), bytes=64
            )
            rank.device_wait(late, host + 13, (until, device + 950 * us))
    seen = measured_world(world_run(ranks))
    assert seen is not None
    result = gains(seen)
    assert result is not None
    assert result.step_ms == pytest.approx(1.0, rel=0.01)
    (faster,) = [each for each in result.gains if (each.change, each.rank) == ("rank", 0)]
    assert faster.step_ms == pytest.approx(0.2, rel=0.05)


def random_job(random: np.random.Generator) -> DeviceRank:
    rank = DeviceRank()
    host = 1
    for step in range(6):
        device, length = host + 50_000, int(random.integers(900_000, 1_100_000))
        at = (np.sort(random.integers(0, length, 8)) + device).tolist()
        rank.device_step(host, host + length, (device, device + length))
        rank.device_phase(Phase.FORWARD, host + 1000, host + 10_000, (device, at[1]))
        rank.device_phase(Phase.BACKWARD, host + 11_000, host + 60_000, (at[1], at[6]))
        for bucket in range(3):
            ready = at[2] + 1000 * bucket
            rank.device_collective(
                4 * step + bucket,
                host + 12_000 + 1000 * bucket,
                (ready, ready + int(random.integers(1, 500_000))),
                bytes=int(random.integers(1, 1 << 20)),
                graph_task=step,
            )
        rank.device_finalize(host + 40_000, (at[3], at[5]), graph_task=step)
        gathered = rank.device_collective(4 * step + 3, host + 50_000, (at[5], at[7]), bytes=64)
        rank.device_wait(gathered, host + 60_000, (at[6], at[7]))
        host += length
    return rank


@pytest.mark.timeout(1800)  # the first test builds the core's tests
@pytest.mark.parametrize("seed", range(5))
def test_always_on_mode_in_cpp_sees_the_same_steps_of_the_device(seed: int, tmp_path: Path) -> None:
    rank = random_job(np.random.default_rng(seed))
    _, (summary,) = summarised(build("") / "test_recorded_ranks", [rank], tmp_path)
    trace, table = moved(rank)
    whole = breakdown(trace, table, None, 1)
    parts = whole.rows(whole.step >= 1)  # always-on mode leaves out the first step, as reports do
    assert (summary.steps.count, summary.exposed.count) == (5, 5)
    assert summary.steps.sum_ns == parts.wall_ns.sum()
    assert summary.exposed.sum_ns == pytest.approx(parts.exposed_ns.sum(), abs=5)
    assert summary.phases[Phase.FORWARD].sum_ns == pytest.approx(parts.work.forward_ns.sum(), abs=5)
    assert summary.phases[Phase.BACKWARD].sum_ns == pytest.approx(
        parts.work.backward_ns.sum(), abs=5
    )
    assert summary.exposed.sum_ns > 100_000
