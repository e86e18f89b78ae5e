from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.step.breakdown import mean_of_known
from commprof.analysis.step.measured import measured_world
from commprof.forecast.costs.cost_model import OTHER_HOST, SAME_HOST
from commprof.forecast.costs.machine_profile import MachineProfile
from commprof.monitor.figures import steps as live_steps
from commprof.monitor.figures.recent import RecentSteps
from commprof.monitor.figures.steps import SETTLED_NS, StepFollower
from commprof.monitor.follow import JobTail
from commprof.monitor.observer import Observer
from commprof.monitor.state import RECENT_STEPS
from commprof.trace.schema import BlockType, Phase
from tests.support.builders import trace_bytes as made
from tests.support.builders.random_run import RandomRun
from tests.support.builders.run_directories import ranks_of
from tests.support.builders.schedules import profile
from tests.support.builders.traces import MS, GrowingRun, Rank, world_run
from tests.unit.analysis.align.test_device_timeline import DeviceRank


class Followed:
    def __init__(self, directory: Path, ranks: list[Rank], settled_ns: int = SETTLED_NS) -> None:
        self.run = GrowingRun(directory, ranks)
        self.tail = JobTail(directory)
        self.steps = StepFollower(len(ranks), settled_ns)
        self.recent = RecentSteps(len(ranks))
        self.numbers: list[int] = []

    def poll(self) -> None:
        for rank, records in self.tail.poll().items():
            self.steps.add(rank, records)
        new = self.steps.advance(self.tail.tails)
        if new is not None:
            self.numbers += new.numbers.tolist()
            self.recent.add(new)


def test_every_live_step_is_counted_once_with_its_times(tmp_path: Path) -> None:
    ranks = ranks_of(2, 60, late_ms=20)
    followed = Followed(tmp_path, ranks)
    followed.run.begin()
    generator, now = random.Random(1), 0
    while now < 6_100 * MS:
        now += generator.randint(1, 300) * MS
        followed.run.until(now)
        followed.poll()
    seen = len(followed.numbers)
    # The newest steps may still be incomplete.
    assert 50 < seen < 60
    followed.run.end()
    followed.poll()

    assert followed.numbers == list(range(60))
    first, late = followed.recent.total(0), followed.recent.total(1)
    assert first is not None
    assert late is not None
    assert first.steps == late.steps == 60
    assert first.step_s == pytest.approx(sum(100 + step % 4 for step in range(60)) / 1e3)
    assert first.data_s == pytest.approx(60 * 0.010)
    assert first.forward_s == pytest.approx(60 * 0.020)
    assert (first.exposed_s, late.exposed_s) == pytest.approx((60 * 0.040, 60 * 0.020))
    assert (first.wait_s, late.wait_s) == pytest.approx((60 * 0.020, 0))
    assert (first.transfer_s, late.transfer_s) == pytest.approx((60 * 0.020, 60 * 0.020))
    assert first.hidden_s == pytest.approx(60 * 0.010)
    assert followed.recent.waited_for_s(1) == pytest.approx(60 * 0.020)
    recent = followed.recent.recent(0)
    assert recent is not None
    assert (recent.steps, recent.exposed_s) == (60, pytest.approx(0.040))


def test_live_steps_of_a_device_that_falls_behind_its_host_are_counted_once(tmp_path: Path) -> None:
    rank = DeviceRank()
    for step in range(30):
        host, device = 1 + 100 * MS * step, (50 + 150 * step) * MS
        rank.device_step(host, host + 100 * MS, (device, device + 150 * MS))
        op = rank.device_collective(step, host + 12, (device + 10 * MS, device + 80 * MS), bytes=64)
        rank.device_wait(op, host + 20, (device + 60 * MS, device + 80 * MS))
    followed = Followed(tmp_path, [rank])
    followed.run.begin()
    for now in range(0, 4_700, 150):
        followed.run.until(now * MS)
        followed.poll()
    followed.run.end()
    followed.poll()
    assert followed.numbers == list(range(30))
    total = followed.recent.total(0)
    assert total is not None
    assert (total.step_s, total.exposed_s) == pytest.approx((30 * 0.150, 30 * 0.020))


def test_the_live_late_rank_is_named_by_the_rules_of_the_report(tmp_path: Path) -> None:
    followed = Followed(tmp_path, ranks_of(3, 30, late_ms=20))
    followed.run.begin()
    followed.run.until(500 * MS)
    followed.poll()
    assert followed.recent.late is None
    followed.run.end()
    followed.poll()
    late = followed.recent.late
    assert late is not None
    assert (late.rank, late.phase, late.waiting_ranks) == (2, "backward", 2)
    assert late.wait_s == pytest.approx(0.020)


def test_no_late_rank_is_named_if_none_is_late(tmp_path: Path) -> None:
    followed = Followed(tmp_path, ranks_of(3, 30))
    followed.run.begin()
    followed.run.end()
    followed.poll()
    assert followed.recent.ranks == (0, 1, 2)
    assert followed.recent.late is None


@pytest.mark.parametrize("seed", range(30))
def test_live_totals_equal_those_of_the_whole_run(tmp_path: Path, seed: int) -> None:
    run = RandomRun(seed)
    followed = Followed(tmp_path, run.ranks, settled_ns=20_000)
    followed.run.begin()
    last = max(int(rank.records()["timestamp_ns"][-1]) for rank in run.ranks)
    for now in sorted(random.Random(seed).sample(range(last), 6)):
        followed.run.until(now)
        followed.poll()
    followed.run.end()
    followed.poll()

    whole = measured_world(world_run(run.ranks))
    assert whole is not None
    assert followed.numbers == whole.parts[0].step.tolist()
    for rank, part in zip(whole.ranks, whole.parts, strict=True):
        total = followed.recent.total(rank)
        assert total is not None
        for name in ("data", "forward", "backward", "optimizer", "other", "exposed", "hidden"):
            expected = np.nan_to_num(part.part_ns(name)).sum() / 1e9
            assert getattr(total, f"{name}_s") == pytest.approx(expected, abs=1e-12), name


def with_few_pending(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Followed:
    monkeypatch.setattr(live_steps, "_MOST_RECORDS", 200)
    followed = Followed(directory, ranks_of(2, 60))
    followed.run.begin()
    return followed


def test_pending_records_of_a_rank_far_ahead_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = with_few_pending(tmp_path, monkeypatch)
    for now in range(0, 6_200, 100):
        followed.run.until(now * MS, 0)
        followed.poll()
        assert len(followed.steps._pending[0].records()) <= 300
    assert followed.steps.left_out > 0
    followed.run.end()
    followed.poll()
    assert followed.numbers[-1] == 59
    assert 5 < len(followed.numbers) < 60


def test_all_complete_steps_count_although_many_arrive_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = with_few_pending(tmp_path, monkeypatch)
    for now in (1_000 * MS, 6_000 * MS):
        followed.run.until(now)
        followed.poll()
        assert len(followed.steps._pending[0].records()) <= 200
    followed.run.end()
    followed.poll()
    assert followed.numbers == list(range(60))
    assert followed.steps.left_out == 0


def test_live_steps_without_marks_are_counted_by_backward_passes(tmp_path: Path) -> None:
    rank = Rank(0, 1)
    at = 0
    rank.step_begin(0)
    for step in range(50):
        rank.phase(Phase.BACKWARD, at + 2 * MS, at + 8 * MS)
        rank.collective(step, at + 3 * MS, at + 4 * MS, bytes=8, graph_task=step)
        at += 10 * MS
    followed = Followed(tmp_path, [rank])
    followed.run.begin()
    for now in range(0, 500, 70):
        followed.run.until(now * MS)
        followed.poll()
    followed.run.end()
    followed.poll()
    total = followed.recent.total(0)
    assert total is not None
    assert (total.steps, total.step_s) == (50, pytest.approx(0.498))


def test_steps_without_marks_are_found_in_a_long_trace_whose_begin_is_not_read(
    tmp_path: Path,
) -> None:
    ranks = [Rank(0, 2), Rank(1, 2)]
    for rank in ranks:
        rank.step_begin(0)
        for step in range(200):
            at = 10 * step * MS
            issue, end = at + (3 + 2 * rank.rank) * MS, at + 6 * MS
            rank.phase(Phase.BACKWARD, at + 2 * MS, at + 8 * MS)
            rank.wait(rank.collective(step, issue, end, bytes=8, graph_task=step), issue, end)
            for _ in range(3 * rank.rank):  # The kept part of rank 1's trace then begins later.
                rank.phase(Phase.DATA, at, at + MS)
    followed = Followed(tmp_path, ranks)
    followed.run.begin()
    for now in range(50, 1_950, 50):
        followed.run.until(now * MS)
    followed.tail = JobTail(tmp_path, recent_bytes=16_384)
    followed.poll()
    followed.run.end()
    followed.poll()
    steps = len(followed.numbers)
    assert 30 < steps < 60
    assert followed.numbers == list(range(steps))
    for rank, wait_ms in ((0, 2), (1, 0)):
        total = followed.recent.total(rank)
        assert total is not None
        figures = total.steps, total.step_s, total.wait_s
        assert figures == pytest.approx((steps, steps * 0.010, steps * wait_ms / 1e3))


def test_recent_figures_cover_only_the_last_steps(tmp_path: Path) -> None:
    rank = Rank(0, 1)
    for step in range(RECENT_STEPS + 50):
        length = 100 if step < 50 else 10
        begin = min(step, 50) * 100 * MS + max(0, step - 50) * 10 * MS
        rank.step(begin, begin + length * MS)
    followed = Followed(tmp_path, [rank])
    followed.run.begin()
    followed.run.end()
    followed.poll()
    total, recent = followed.recent.total(0), followed.recent.recent(0)
    assert total is not None
    assert recent is not None
    assert (total.steps, total.step_s) == (RECENT_STEPS + 50, pytest.approx(6.0))
    assert (recent.steps, recent.step_s) == (RECENT_STEPS, pytest.approx(0.010))


def test_a_rank_ended_by_an_exception_has_failed(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "world_2", ranks_of(2, 3, late_ms=5))
    run.begin()
    ending = {"ending": {"error": "LookupError: none"}}
    with run.paths[1].open("ab") as file:
        file.write(made.document(BlockType.METADATA, ending))
    run.until(1_000 * MS)
    state = Observer(tmp_path).poll()
    assert state is not None
    assert [rank.failed for rank in state.ranks] == [rank.status == "gone" for rank in state.ranks]
    run.end()
    state = Observer(tmp_path).poll()
    assert state is not None
    assert [(rank.status, rank.failed) for rank in state.ranks] == [
        ("ended", False),
        ("ended", True),
    ]


def test_ranks_that_begin_one_after_the_other_are_all_observed(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path / "world_2", ranks_of(2, 30, late_ms=5))
    observer = Observer(tmp_path)
    assert observer.poll() is None
    run.begin(0)
    run.until(1_000 * MS, 0)
    state = observer.poll()
    assert state is not None
    assert (len(state.ranks), state.world_size, state.ranks[0].step) == (1, 2, -1)
    run.begin(1)
    run.end()
    state = observer.poll()
    assert state is not None
    assert [rank.step for rank in state.ranks] == [29, 29]
    assert [rank.status for rank in state.ranks] == ["ended", "ended"]
    assert state.finished
    first = state.ranks[0]
    assert first.total is not None
    assert first.total.steps == 30
    reduce = first.operations["all_reduce"]
    assert (reduce.calls, reduce.bytes) == (60, 60 * 4_000_000)
    assert reduce.timed_s == pytest.approx(30 * (0.010 + 0.025))
    # From the last issue on, bucket 0 takes 10 ms and bucket 1 takes 20 ms. The bus factor is 1.
    expected = 2 * 4_000_000 / 0.030
    assert state.bandwidth["all_reduce"].busbw_bytes_per_s == pytest.approx(expected)
    assert np.isnan(state.bandwidth["all_reduce"].of_profile)
    observer.close()


def test_live_bandwidth_counts_each_transfer_of_every_group_once(tmp_path: Path) -> None:
    ranks = [Rank(rank, 4, groups={1: (f"pair {rank // 2}", 2)}) for rank in range(4)]
    for rank in ranks:
        rank.group_ranks = {1: rank.rank % 2}
        took = (10 if rank.rank < 2 else 30) * MS
        for step in range(20):
            at = 100 * step * MS
            rank.step(at, at + 100 * MS)
            rank.collective(step, at + 40 * MS, at + 40 * MS + took, bytes=4_000_000)
    run = GrowingRun(tmp_path / "world_4", ranks)
    run.begin()
    run.end()
    state = Observer(tmp_path).poll()
    assert state is not None
    assert state.bandwidth["all_reduce"].busbw_bytes_per_s == pytest.approx(2 * 4_000_000 / 0.040)


_INSIDE = profile(SAME_HOST, beta_s_per_byte=2.5e-9)
_BETWEEN = profile(OTHER_HOST, beta_s_per_byte=1e-8)
_BOTH = MachineProfile({**_INSIDE.links, **_BETWEEN.links}, {}, ("by hand",))


@pytest.mark.parametrize(
    ("inside_ms", "between_ms", "measured", "of_profile"),
    [
        (10, 40, _BOTH, 1.0),
        (20, 40, _BOTH, 50 / 60),
        (20, 40, _BETWEEN, 1.0),
        (20, 40, _INSIDE, 0.5),
        (20, 40, profile("none"), None),
    ],
)
def test_bandwidth_of_each_group_is_compared_with_that_of_its_link(
    tmp_path: Path, inside_ms: int, between_ms: int, measured: MachineProfile, of_profile: float
) -> None:
    ranks = []
    for rank in range(4):
        host, place = divmod(rank, 2)
        groups = {1: (f"host {host}", 2), 2: (f"place {place}", 2)}
        where = {"network_namespace": f"net {host}"}
        ranks.append(Rank(rank, 4, groups=groups, cross_check_sources=where))
        ranks[-1].group_ranks = {1: place, 2: host}
        for step in range(20):
            at = 100 * step * MS
            ranks[-1].step(at, at + 100 * MS)
            for group, delay, took in ((1, 5, inside_ms), (2, 50, between_ms)):
                begin, end = at + delay * MS, at + (delay + took) * MS
                ranks[-1].collective(step, begin, end, bytes=4_000_000, group=group)
    run = GrowingRun(tmp_path / "world_4", ranks)
    run.begin()
    run.end()
    state = Observer(tmp_path, measured.expected_s).poll()
    assert state is not None
    found = state.bandwidth["all_reduce"]
    assert found.busbw_bytes_per_s == pytest.approx(8e9 / (inside_ms + between_ms))
    assert found.of_profile == pytest.approx(of_profile or np.nan, nan_ok=True)


def test_the_observed_job_is_the_one_written_to_last(tmp_path: Path) -> None:
    for size in (1, 2):
        run = GrowingRun(tmp_path / f"world_{size}", ranks_of(size, 12))
        run.begin()
        run.end()
    observer = Observer(tmp_path)
    state = observer.poll()
    assert state is not None
    assert state.world_size == 2
    alone = Observer(tmp_path, nested=False)
    assert alone.poll() is None


def test_steps_of_a_restarted_rank_are_counted_from_zero(tmp_path: Path) -> None:
    first = GrowingRun(tmp_path, ranks_of(1, 12))
    first.begin()
    first.until(2**62)
    observer = Observer(tmp_path)
    state = observer.poll()
    again = GrowingRun(tmp_path, ranks_of(1, 15))
    again.paths[0] = tmp_path / "rank_0.attempt_1.trace"
    again.begin()
    again.end()
    state = observer.poll()
    assert state is not None
    total = state.ranks[0].total
    assert total is not None
    assert total.steps == 15


def test_only_steps_that_cannot_be_analysed_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = GrowingRun(tmp_path, ranks_of(2, 40))
    run.begin()
    run.until(1_000 * MS)
    observer = Observer(tmp_path)

    def fail(*_: object) -> None:
        raise ValueError("no sense in it")

    with monkeypatch.context() as failing:
        failing.setattr(live_steps, "measured_world", fail)
        state = observer.poll()
    assert state is not None
    assert state.monitor.problems == ("some steps are left out: ValueError: no sense in it",)
    run.end()
    state = observer.poll()
    assert state is not None
    total = state.ranks[0].total
    assert total is not None
    assert 25 < total.steps < 40


def test_a_trace_of_another_job_is_ignored(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path, ranks_of(2, 12))
    run.begin()
    run.end()
    Rank(7, 8).write(tmp_path / "rank_7.trace")
    state = Observer(tmp_path).poll()
    assert state is not None
    assert [rank.rank for rank in state.ranks] == [0, 1]
    assert state.monitor.problems == ()


def test_live_wait_known_for_some_steps_equals_that_of_the_report(tmp_path: Path) -> None:
    # Rank 1 waits for a collective that rank 0 did not record, and then arrives last at another.
    ranks = [Rank(0, 2), Rank(1, 2)]
    for rank in ranks:
        rank.step(0, 100 * MS)
        rank.step(100 * MS, 200 * MS)
        issue = (110 + 20 * rank.rank) * MS
        rank.wait(rank.collective(1, issue, 150 * MS), issue, 150 * MS)
    ranks[1].wait(ranks[1].collective(0, 10 * MS, 40 * MS), 10 * MS, 40 * MS)
    followed = Followed(tmp_path, ranks)
    followed.run.begin()
    followed.run.end()
    followed.poll()
    recent = followed.recent.recent(1)
    assert recent is not None
    figures = (recent.wait_s, recent.transfer_s, recent.unsplit_s)
    assert figures == pytest.approx((0.0, 0.010, 0.015))
    seen = measured_world(world_run(ranks))
    assert seen is not None
    part = seen.parts[1]
    assert mean_of_known(part.wait_ns, part.exposed_ns) == 0
    assert np.isnan(part.wait_ns).tolist() == [True, False]


def test_nothing_is_analysed_while_a_rank_is_within_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    analysed = []
    trace = live_steps._trace
    monkeypatch.setattr(live_steps, "_trace", lambda *of: analysed.append(1) or trace(*of))
    followed = Followed(tmp_path, ranks_of(2, 10), settled_ns=0)
    followed.run.begin()
    followed.run.until(550 * MS)
    followed.poll()
    before = len(analysed)
    followed.poll()
    assert followed.numbers
    assert before == len(analysed)
