from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.replay.engine import calls, replay
from commprof.analysis.replay.gains import Gain, gains
from commprof.analysis.replay.program import programs, replayed_steps
from commprof.analysis.run import analyse_in_detail
from commprof.analysis.step.measured import MeasuredWorld, measured_world
from commprof.trace import columns
from commprof.trace.schema import FLAG_DEVICE_ASYNC, NO_SEQ, Phase
from tests.support.builders.profiler_traces import all_reduce, annotation, document, kernel, write
from tests.support.builders.random_run import RandomRun
from tests.support.builders.traces import MS, THREAD, Rank, world_run

_DESCRIPTION = "Process Group Description"


def measured(ranks: list[Rank]) -> MeasuredWorld:
    seen = measured_world(world_run(ranks))
    assert seen is not None
    return seen


@pytest.mark.parametrize("seed", range(40))
def test_an_unchanged_replay_gives_the_recorded_step_lengths(seed: int) -> None:
    seen = measured(RandomRun(seed).ranks)
    (step,) = replayed_steps(seen)
    made = programs(seen, step)
    found = replay(made, *calls(seen, [made]))
    assert found is not None
    walls = []
    for trace in seen.traces:
        steps = columns.steps(trace)
        chosen = np.isin(steps.index, step)
        walls.append(steps.end_ns[chosen] - steps.begin_ns[chosen])
    assert found == pytest.approx(np.mean(walls, axis=0), abs=2)


class Job:
    def __init__(
        self,
        ranks: int = 4,
        steps: int = 30,
        late: int = -1,
        delay: int = 0,
        transfer: int = 2 * MS,
        earlier: int = 0,
        helpers_cpu: int = 0,
        every: int = 1,
        stall: int = 0,
        begins: int = 0,
        exchange_cpu: int = 0,
        late_transfer: int = 0,
        late_work: int = 0,
        next_transfer: int = 0,
    ) -> None:
        """All times are in ns; from step ``begins`` on, one of ``every`` steps is a late step.

        With ``late`` -1 no rank is late, and no step is a late step. A negative ``earlier`` is time
        without a core before each bucket of the late rank. ``exchange_cpu`` is the mean time for
        which a rank lacks a core in backward because of its own process; in late steps only the
        late rank does.
        """
        random = np.random.default_rng(7)
        self.ranks = [Rank(rank, ranks) for rank in range(ranks)]
        self.end = [0] * ranks
        seq, free = 0, 0
        for step in range(steps):
            begin = list(self.end)
            now = [at + int(10 * MS * random.normal(1, 0.02)) for at in begin]
            is_late = late >= 0 and step >= begins and step % every == 0
            follows_late = late >= 0 and step > begins and step % every == 1 % every
            more = is_late * late_transfer + follows_late * next_transfer
            if is_late:
                now = [at + late_work for at in now]
                now[late] += delay
            if step == steps // 2:
                now[-1] += stall
            for rank, since, at in zip(self.ranks, begin, now, strict=True):
                rank.phase(Phase.FORWARD, since, at)
            backward, ends = list(now), []
            lacked = random.integers(0, 2 * exchange_cpu + 1, size=ranks)
            if is_late:
                lacked[np.arange(ranks) != late] = 0
            now = [at + int(lack) for at, lack in zip(now, lacked, strict=True)]
            for _ in range(4):
                now = [at + int(3 * MS * random.normal(1, 0.02)) for at in now]
                if is_late:
                    now[late] -= earlier
                free = max(free, *now) + transfer + more
                ends.append(free)
                for rank, at in zip(self.ranks, now, strict=True):
                    rank.collective(seq, at, free, 1000, graph_task=step)
                seq += 1
            for place, rank in enumerate(self.ranks):
                done = max(now[place], ends[-1])
                rank.finalize(now[place], done, 0, graph_task=step)
                rank.phase(Phase.BACKWARD, backward[place], done)
                self.end[place] = done
                rank.step(begin[place], done)
                if is_late and place == late and earlier < 0:
                    rank.no_core(backward[place], now[place], -4 * earlier, helpers_cpu)
                if lacked[place]:
                    lacked_ns = int(lacked[place])
                    rank.no_core(backward[place], now[place], lacked_ns, lacked_ns)

    def step_ms(self) -> float:
        return measured_step_ms(self.ranks)


def measured_step_ms(ranks: list[Rank]) -> float:
    seen = measured(ranks)
    return float(np.mean([part.wall_ns for part in seen.measured])) / MS


def found(ranks: list[Rank], change: str) -> list[Gain]:
    result = gains(measured(ranks))
    assert result is not None
    return [gain for gain in result.gains if gain.change == change]


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("delay", [1 * MS, 8 * MS])
def test_replay_of_a_late_rank_made_as_fast_as_the_others_gives_the_undelayed_step(
    count: int, delay: int
) -> None:
    late = found(Job(count, late=count - 1, delay=delay).ranks, "rank")[0]
    assert late.rank == count - 1
    assert late.step_ms == pytest.approx(Job(count).step_ms(), rel=0.005)
    assert late.saved.low < late.saved.value < late.saved.high


@pytest.mark.parametrize("transfer", [1 * MS, 5 * MS])
def test_replay_with_free_transfers_gives_the_step_of_an_instant_link(transfer: int) -> None:
    free = found(Job(transfer=transfer).ranks, "communication")[0]
    assert free.step_ms == pytest.approx(Job(transfer=0).step_ms(), rel=1e-6)


def test_the_gain_of_the_delayed_phase_equals_that_of_the_rank() -> None:
    ranks = Job(late=1, delay=6 * MS).ranks
    rank, phases = found(ranks, "rank")[0], found(ranks, "phase")
    forward = [gain for gain in phases if gain.rank == 1 and gain.phase == "forward"]
    assert not phases or forward[0].saved.value == pytest.approx(rank.saved.value, abs=0.01)


def test_a_rank_replayed_as_fast_as_the_others_loses_its_faster_phases_too() -> None:
    ranks = Job(late=1, delay=6 * MS, earlier=1 * MS).ranks
    rank, phase = found(ranks, "rank")[0], found(ranks, "phase")[0]
    assert (rank.rank, phase.rank, phase.phase) == (1, 1, "forward")
    assert rank.step_ms == pytest.approx(Job().step_ms(), rel=0.005)
    # If only its forward becomes shorter, rank 1 is early in backward and waits there.
    assert phase.saved.value == pytest.approx(rank.saved.value, abs=0.01)


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_a_replayed_rank_keeps_the_run_delay_caused_by_its_own_process(kept: int) -> None:
    ranks = Job(late=1, delay=6 * MS, earlier=-1 * MS, helpers_cpu=kept * MS).ranks
    mended = Job(late=1, earlier=-kept * MS // 4) if kept else Job()
    assert found(ranks, "rank")[0].step_ms == pytest.approx(mended.step_ms(), rel=0.005)


def test_run_delay_of_late_steps_is_replaced_by_that_of_other_steps() -> None:
    delayed = {"delay": 6 * MS, "earlier": -1 * MS, "helpers_cpu": 4 * MS}
    late = found(Job(late=1, every=2, **delayed).ranks, "rank")[0]
    assert late.step_ms == pytest.approx(Job().step_ms(), rel=0.005)


def test_waiting_ranks_get_the_run_delay_of_steps_without_the_delay() -> None:
    job = Job(2, late=1, every=2, delay=8 * MS, exchange_cpu=2 * MS, steps=200)
    without = Job(2, exchange_cpu=2 * MS, steps=200)
    assert found(job.ranks, "rank")[0].step_ms == pytest.approx(without.step_ms(), rel=0.003)


@pytest.mark.parametrize("every", [2, 4])
def test_removing_a_delay_also_removes_the_longer_transfers_of_late_steps(every: int) -> None:
    job = Job(late=1, every=every, delay=8 * MS, late_transfer=2 * MS, steps=60)
    late = found(job.ranks, "rank")[0]
    assert late.step_ms == pytest.approx(Job(steps=60).step_ms(), rel=0.005)
    assert job.step_ms() > 1.1 * late.step_ms


def test_removing_a_delay_also_removes_the_longer_transfers_of_the_next_step() -> None:
    job = Job(late=1, every=4, delay=8 * MS, next_transfer=2 * MS, steps=60)
    late = found(job.ranks, "rank")[0]
    assert late.step_ms == pytest.approx(Job(steps=60).step_ms(), rel=0.005)


def test_late_steps_that_are_long_for_all_ranks_stay_long() -> None:
    long = {"late": 1, "every": 2, "late_work": 10 * MS, "steps": 60}
    late = found(Job(delay=8 * MS, **long).ranks, "rank")[0]
    assert late.step_ms == pytest.approx(Job(**long).step_ms(), rel=0.005)


def test_removing_a_delay_also_removes_slightly_longer_work_in_late_steps() -> None:
    job = Job(late=1, every=2, delay=8 * MS, late_work=int(0.8 * MS), steps=60)
    late = found(job.ranks, "rank")[0]
    assert late.step_ms == pytest.approx(Job(steps=60).step_ms(), rel=0.005)


@pytest.mark.parametrize("count", [2, 3])
def test_a_single_stall_of_another_rank_does_not_change_the_gain(count: int) -> None:
    plain, stalled = (Job(count, late=0, delay=8 * MS, stall=ns).ranks for ns in (0, 1000 * MS))
    assert found(stalled, "rank")[0].saved.value == pytest.approx(
        found(plain, "rank")[0].saved.value, abs=0.01
    )


def test_at_least_five_steps_are_replayed_if_steps_have_many_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("commprof.analysis.replay.program._MOST_EVENTS", 10)
    result = gains(measured(Job(late=1, delay=6 * MS).ranks))
    assert result is not None
    assert result.steps == 5


def test_replayed_steps_of_a_long_run_are_spread_over_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Job(late=1, delay=6 * MS, steps=400, begins=200).ranks
    everything = found(ranks, "rank")[0].saved.value
    monkeypatch.setattr("commprof.analysis.replay.program._MOST_EVENTS", 100 * 4 * 10)
    seen = measured(ranks)
    chosen = replayed_steps(seen)
    assert [len(each) for each in chosen] == [25] * 4
    middles = [float(np.median(each)) for each in chosen]
    assert middles == pytest.approx([50, 150, 250, 350], abs=2)
    (first, *_) = found(ranks, "rank")
    assert first.saved.value == pytest.approx(everything, abs=0.005)


def test_a_slow_phase_is_replayed_even_if_its_rank_is_not_slower_overall() -> None:
    ranks = Job(3, late=1, delay=6 * MS, earlier=int(1.6 * MS)).ranks
    assert not [gain for gain in found(ranks, "rank") if gain.rank == 1]
    forward = [gain for gain in found(ranks, "phase") if gain.rank == 1]
    assert [gain.phase for gain in forward] == ["forward"]
    assert forward[0].saved.low > 0


def test_efficiencies_follow_the_definitions_of_pop() -> None:
    job = Job(late=1, delay=6 * MS)
    result = gains(measured(job.ranks))
    assert result is not None
    # Forward takes 10 ms and four buckets take 3 ms each; rank 1's forward takes 6 ms longer.
    own = 22 + 6 * np.array([0, 1, 0, 0])
    assert result.load_balance == pytest.approx(own.mean() / own.max(), rel=0.01)
    efficiency = result.load_balance * result.serialisation * result.transfer
    assert efficiency == pytest.approx(own.mean() / result.step_ms, rel=0.01)
    assert result.serialisation == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("ranks", [Job(1).ranks, Job(steps=3).ranks], ids=["one", "few steps"])
def test_gains_are_none_for_one_rank_or_few_steps(ranks: list[Rank]) -> None:
    assert gains(measured(ranks)) is None


def test_gains_are_none_if_a_rank_is_missing() -> None:
    without_the_late_rank = Job(late=3, delay=20 * MS).ranks[:3]
    seen = measured_world(world_run(without_the_late_rank, 4))
    assert seen is not None
    assert seen.clocks_shared
    assert gains(seen) is None


@pytest.mark.parametrize(("any_source", "known"), [(8, True), (12, False)])
def test_gains_are_none_if_more_than_a_tenth_of_exposed_time_is_unsplit(
    any_source: int, known: bool
) -> None:
    ranks = [Rank(0, 2), Rank(1, 2)]
    for step in range(12):
        begin = 200 * step * MS
        for rank in ranks:
            at, end = begin + 50 * MS, begin + 100 * MS - any_source * MS // 2
            rank.wait(rank.collective(step, at, end), at, end)
        at, end = begin + 120 * MS, begin + (120 + any_source) * MS
        message = {"op": "recv_any_source", "aux": 0, "bytes": 8}
        ranks[0].wait(ranks[0].collective(NO_SEQ, at, end, **message), at, end)
        for rank in ranks:
            rank.step(begin, begin + 200 * MS)
    assert (gains(measured(ranks)) is not None) is known


def test_collectives_that_no_thread_waits_for_do_not_delay_replayed_steps() -> None:
    ranks = [Rank(rank, 2) for rank in range(2)]
    for rank in ranks:
        for step in range(20):
            at = 100 * step * MS
            rank.step(at, at + 100 * MS)
            rank.collective(step, at + 30 * MS, 0, bytes=4000, thread=THREAD + 2)
    result = gains(measured(ranks))
    assert result is not None
    assert result.step_ms == pytest.approx(100)


@pytest.mark.parametrize("waited", [True, False])
def test_a_collective_awaited_after_its_backward_pass_does_not_delay_that_pass(
    waited: bool,
) -> None:
    ranks = [Rank(rank, 2) for rank in range(2)]
    for rank in ranks:
        for step in range(20):
            at = 100 * step * MS
            rank.step(at, at + 100 * MS)
            done = rank.collective(step, at + 20 * MS, at + 70 * MS, 4000, step)
            rank.finalize(at + 30 * MS, at + 31 * MS, MS, graph_task=step)
            if waited:
                rank.wait(done, at + 60 * MS, at + 70 * MS)
    result = gains(measured(ranks))
    assert result is not None
    assert result.step_ms == pytest.approx(100)


def test_gains_are_none_if_no_device_event_timed_the_collectives_of_a_gpu() -> None:
    """With TORCH_NCCL_BLOCKING_WAIT=1 the host waits, and no device event times the collective."""
    ranks = [Rank(rank, 2) for rank in range(2)]
    for step in range(12):
        at = 100 * step * MS
        for rank in ranks:
            op = rank.collective(step, at + 50 * MS, 0, bytes=4000, flags=FLAG_DEVICE_ASYNC)
            rank.wait(op, at + 80 * MS, at + 95 * MS)
            rank.step(at, at + 100 * MS)
    assert gains(measured(ranks)) is None


def of_the_mesh(rank: int) -> str:
    row, column = divmod(rank, 2)
    events = []
    for step in range(12):
        base = 5e9 + 1000.0 * step
        events += [annotation(f"ProfilerStep#{step}", base, base + 1000)]
        events += [kernel("gemm", base, base + 200 + 20 * rank)]
        for begin, name, ranks, description in (
            (300, f"{1 + row}", [2 * row, 2 * row + 1], "undefined"),
            (400, f"{3 + column}", [column, column + 2], "mesh_dp"),
        ):
            event = all_reduce(base + begin + 5 * rank, base + begin + 90, step)
            event["args"] |= {"Process Group Name": name, "Process Group Ranks": str(ranks)}
            events.append({**event, "args": event["args"] | {_DESCRIPTION: description}})
    return document(events, rank, 4)


def test_gains_of_groups_with_the_same_name_are_named_with_their_ranks(tmp_path: Path) -> None:
    """A group without a description has the name that c10d gave it."""
    path = write(tmp_path / "job", [of_the_mesh(rank) for rank in range(4)])
    result = analyse_in_detail(path)[0].worlds[0].gains
    assert result is not None
    named = [gain.group for gain in result.gains if gain.change == "group"]
    assert named == ["1", "mesh_dp {0,2}", "mesh_dp {1,3}"]
