from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.detail import OF_OTHER
from commprof.analysis.mean_step import mean_step
from commprof.analysis.run import analyse_in_detail
from commprof.analysis.step.timing import Repeats, repeats
from commprof.errors import CommprofError
from commprof.trace.schema import Phase
from tests.support.analysed import analyse_run, analyse_world
from tests.support.builders.results import context, with_fields
from tests.support.builders.traces import MS, Rank, world_run

BUCKETS = 3


def rank_of(rank: int, world_size: int, steps: int, late_ms: int = 0, **metadata: object) -> Rank:
    """``late_ms`` delays the last bucket and the finalisation of each step."""
    made = Rank(rank, world_size, steps=steps, **metadata)
    for step in range(steps):
        at = 100 * MS * step
        made.step(at, at + 100 * MS)
        made.phase(Phase.DATA, at, at + 10 * MS)
        made.phase(Phase.FORWARD, at + 10 * MS, at + 30 * MS)
        made.phase(Phase.BACKWARD, at + 30 * MS, at + 90 * MS)
        for bucket, (issue, end) in enumerate(((40, 45), (50, 55), (60, 80))):
            late = late_ms if bucket == 2 else 0
            made.collective(
                BUCKETS * step + bucket,
                at + (issue + late) * MS,
                at + end * MS,
                bytes=1000,
                graph_task=step,
            )
        begin = at + (60 + late_ms) * MS
        made.finalize(begin, at + 80 * MS, cpu=0, run_delay=2 * MS, graph_task=step)
    return made


def test_figures_of_a_world_of_two_ranks_with_a_late_one() -> None:
    run = world_run([rank_of(0, 2, 12), rank_of(1, 2, 12, late_ms=15)])
    result = analyse_world(run)
    assert result is not None
    assert (result.timing.steps, result.timing.warmup_steps, result.timing.measured_steps) == (
        12,
        1,
        11,
    )
    assert (result.timing.step_median_ms, result.timing.step_p95_ms) == (100.0, 100.0)
    assert result.timing.step_quartiles_ms == (100.0, 100.0)
    # Each of 2 ranks has 10 samples in each step of 0.1 s.
    assert result.training.samples_per_s == pytest.approx(200.0)
    first, second = (rank.parts for rank in result.ranks)
    assert (first.exposed_ms, first.wait_ms, first.transfer_ms) == pytest.approx((20, 15, 5))
    assert (second.exposed_ms, second.wait_ms, second.transfer_ms) == pytest.approx((5, 0, 5))
    assert (first.backward_ms, second.backward_ms) == pytest.approx((40, 55))
    # Rank 0 has 5 + 5 + 20 ms in flight, 20 ms of it exposed; rank 1 has 5 + 5 + 5 ms, 5 ms
    # exposed.
    assert (first.hidden_ms, second.hidden_ms) == pytest.approx((10, 10))
    assert result.parts.exposed_ms == pytest.approx(12.5)
    assert result.parts.no_core_ms == pytest.approx(2.0)
    assert result.parts.other_ms == pytest.approx(10.0)
    # The ranks' own work takes 80 and 95 ms.
    assert result.imbalance == pytest.approx(95 / 87.5 - 1)
    assert result.lateness.late_rank is not None
    assert (result.lateness.late_rank.rank, result.lateness.late_rank.wait_ns) == (
        1,
        pytest.approx(15 * MS),
    )
    # A step has 1 step mark, 3 phases, 3 issues, 3 ends and 2 records of the finalisation.
    assert result.profiler_cost.records_per_step == 12
    assert result.profiler_cost.record_cost_ns == 50.0
    assert result.recording.missing_ranks == result.recording.problems == ()
    assert result.recording.clocks_shared


def test_parts_of_each_rank_and_of_the_mean_add_up_to_the_step() -> None:
    result = analyse_world(world_run([rank_of(rank, 3, 7, late_ms=3 * rank) for rank in range(3)]))
    assert result is not None
    for part in (result.parts, *(rank.parts for rank in result.ranks)):
        values = dataclasses.asdict(part)
        names = ("data", "forward", "backward", "exposed", "optimizer", "other")
        assert sum(values[f"{name}_ms"] for name in names) == pytest.approx(part.step_ms, abs=1e-6)
        assert part.wait_ms + part.transfer_ms == pytest.approx(part.exposed_ms, abs=1e-6)


def test_steps_are_as_long_as_on_the_slowest_rank() -> None:
    first, second = Rank(0, 2, steps=5), Rank(1, 2, steps=5)
    for step in range(5):
        first.step(100 * MS * step, 100 * MS * (step + 1))
    for begin, end in ((0, 95), (95, 204), (204, 295), (295, 404), (404, 500)):
        second.step(begin * MS, end * MS)
    result = analyse_world(world_run([first, second]))
    assert result is not None
    # After the first step, the slowest rank's steps take 109, 100, 109 and 100 ms. On rank 1 these
    # four steps take 405 ms together.
    assert result.timing.step_median_ms == 104.5
    assert result.training.samples_per_s == pytest.approx(2 * 4 * 10 / 0.405)


def test_a_world_of_one_rank_has_no_late_rank_imbalance_or_wait() -> None:
    result = analyse_world(world_run([rank_of(0, 1, 6)]))
    assert result is not None
    assert (result.lateness.late_rank, result.imbalance) == (None, 0.0)
    assert (result.parts.wait_ms, result.parts.transfer_ms) == pytest.approx((0.0, 20.0))


def test_steps_of_the_overhead_block_are_left_out_of_the_figures() -> None:
    rank = rank_of(0, 1, 6)
    rank.metadata["job"] = {"steps": 6}
    rank.step(600 * MS, 2000 * MS)
    samples = [["off_a", 100.0], ["on", 110.0], ["off_b", 100.0], ["on", 110.0]] * 2
    cpu_ns = [60, 63, 60, 63] * 2
    result = analyse_world(world_run([rank], overhead=samples, overhead_cpu_ns=cpu_ns))
    assert result is not None
    assert (result.timing.steps, result.timing.step_p95_ms) == (6, 100.0)
    assert result.profiler_cost.overhead is not None
    assert result.profiler_cost.overhead.wall.on_over_off.value == pytest.approx(1.1)
    assert result.profiler_cost.overhead.best.on_over_off.value == pytest.approx(1.05)


def test_overhead_samples_take_the_slowest_rank_s_time_and_the_sum_of_cpu_times() -> None:
    run = world_run([rank_of(rank, 2, 3) for rank in range(2)])
    run.results[0]["overhead"] = [["on", 1.0], ["off_a", 5.0]]
    run.results[1]["overhead"] = [["on", 3.0], ["off_a", 4.0]]
    run.results[0]["overhead_cpu_ns"] = [0.5, 2.0]
    result = analyse_world(run)
    assert result is not None
    assert [one[:2] for one in result.profiler_cost.overhead_samples] == [
        ("on", 3.0),
        ("off_a", 5.0),
    ]
    assert all(math.isnan(cpu_ns) for _, _, cpu_ns in result.profiler_cost.overhead_samples)
    run.results[1]["overhead_cpu_ns"] = [0.75, 1.0]
    result = analyse_world(run)
    assert result is not None
    assert result.profiler_cost.overhead_samples == (("on", 3.0, 1.25), ("off_a", 5.0, 3.0))


def test_with_a_missing_rank_wait_and_transfer_are_unknown_but_exposed_time_is_known() -> None:
    result = analyse_world(world_run([rank_of(0, 3, 6), rank_of(2, 3, 6)], world_size=3))
    assert result is not None
    assert result.recording.missing_ranks == (1,)
    assert math.isnan(result.parts.wait_ms)
    assert math.isnan(result.parts.transfer_ms)
    assert math.isnan(result.training.samples_per_s)
    assert result.parts.exposed_ms == pytest.approx(20.0)
    assert result.lateness.late_rank is None


def test_a_late_rank_is_named_by_its_own_work_if_another_rank_is_missing() -> None:
    ranks = []
    for rank in (1, 2, 3):
        made = Rank(rank, 4, groups={1: ("of 1 to 3", 3)}, steps=24)
        made.group_ranks = {1: rank - 1}
        for step in range(24):
            at = 100 * MS * step
            forward = at + (26 if rank == 3 else 20) * MS
            issue = forward + (40 if step % 6 == rank else 1) * MS
            made.step(at, at + 100 * MS)
            made.phase(Phase.FORWARD, at, forward)
            made.phase(Phase.BACKWARD, forward, issue)
            done = at + (61 if step % 6 in (1, 2) else 28) * MS
            made.wait(made.collective(step, issue, done, bytes=1000), issue, done)
        ranks.append(made)
    result = analyse_world(world_run(ranks, world_size=4))
    assert result is not None
    assert result.lateness.late_rank is not None
    assert (result.lateness.late_rank.rank, result.lateness.late_rank.phase) == (3, "forward")


def test_samples_of_a_rank_without_a_trace_come_from_its_result_file() -> None:
    run = world_run([rank_of(rank, 4, 6) for rank in range(4)])
    whole = analyse_world(run)
    del run.traces[1], run.traces[3]
    damaged = analyse_world(run)
    assert whole is not None
    assert damaged is not None
    assert damaged.recording.missing_ranks == (1, 3)
    assert (
        damaged.training.samples_per_s
        == pytest.approx(whole.training.samples_per_s)
        == pytest.approx(400)
    )
    del run.results[3]
    lost = analyse_world(run)
    assert lost is not None
    assert math.isnan(lost.training.samples_per_s)
    assert lost.training.samples_source == ""


def test_samples_of_a_rank_with_a_damaged_trace_still_count(tmp_path: Path) -> None:
    ranks = [rank_of(rank, 2, 6) for rank in range(2)]
    write_run(tmp_path, ranks, world_sizes=[2])
    (tmp_path / "world_2" / "rank_1.trace").write_bytes(b"nonsense")
    (damaged,) = analyse_run(tmp_path).worlds
    assert damaged.recording.missing_ranks == (1,)
    assert damaged.training.samples_per_s == pytest.approx(200)


def test_samples_and_loss_are_unknown_if_a_rank_left_no_results() -> None:
    run = world_run([rank_of(rank, 2, 6) for rank in range(2)])
    del run.results[1]
    result = analyse_world(run)
    assert result is not None
    assert math.isnan(result.training.samples_per_s)
    assert math.isnan(result.training.average_loss)
    assert result.parts.exposed_ms == pytest.approx(20.0)


def test_a_rank_that_ended_early_limits_the_steps() -> None:
    ranks = [rank_of(0, 2, 12), rank_of(1, 2, 8)]
    ranks[1].metadata["job"] = {"steps": 12}
    run = world_run(ranks)
    del run.results[1]
    result = analyse_world(run)
    assert result is not None
    assert result.timing.steps == 8


def test_without_comparable_clocks_wait_and_late_rank_are_unknown() -> None:
    ranks = [rank_of(rank, 2, 12, boot_id=f"boot {rank}") for rank in range(2)]
    result = analyse_world(world_run(ranks))
    assert result is not None
    assert not result.recording.clocks_shared
    assert math.isnan(result.recording.clock_error_us)
    assert result.lateness.late_rank is None
    assert math.isnan(result.parts.wait_ms)
    assert result.parts.exposed_ms == pytest.approx(20.0)


def test_compared_clocks_give_the_figures_of_one_clock_and_the_clock_error() -> None:
    ranks = [rank_of(rank, 2, 12) for rank in range(2)]
    one_clock = analyse_world(world_run(ranks))
    ranks = [rank_of(rank, 2, 12, boot_id=f"boot {rank}") for rank in range(2)]
    for at in (0, 3600_000 * MS):
        ranks[1].clock(at, 0, 7_000)
    compared = analyse_world(world_run(ranks))
    assert one_clock is not None
    assert compared is not None
    assert compared.recording.clocks_shared
    assert (one_clock.recording.clock_error_us, compared.recording.clock_error_us) == (
        0.0,
        pytest.approx(7.0),
    )
    assert [rank.machine for rank in compared.ranks] == ["boot 0", "boot 1"]
    same = tuple(dataclasses.replace(rank, machine="boot") for rank in compared.ranks)
    compared = with_fields(compared, clock_error_us=0.0, host_links=None, ranks=same)
    assert dataclasses.astuple(compared) == dataclasses.astuple(one_clock)


def test_communication_that_python_capture_cannot_see_is_nan_and_not_zero() -> None:
    ranks = [Rank(rank, 2, capture="python") for rank in range(2)]
    for rank in ranks:
        for step in range(12):
            rank.step(100 * MS * step, 100 * MS * (step + 1))
    result = analyse_world(world_run(ranks))
    assert result is not None
    for parts in (result.parts, *(rank.parts for rank in result.ranks)):
        assert (parts.step_ms, parts.other_ms) == (100.0, 100.0)
        assert math.isnan(parts.exposed_ms + parts.wait_ms + parts.transfer_ms)
        assert math.isnan(parts.hidden_ms + parts.own_work_ms)
    assert math.isnan(result.imbalance)
    alone = Rank(0, 1, capture="python")
    for step in range(12):
        alone.step(100 * MS * step, 100 * MS * (step + 1))
    of_one = analyse_world(world_run([alone]))
    assert of_one is not None
    assert of_one.parts.exposed_ms == 0.0


def test_communication_that_python_capture_cannot_see_is_nan_in_each_step(tmp_path: Path) -> None:
    ranks = [Rank(rank, 2, capture="python") for rank in range(2)]
    for rank in ranks:
        for step in range(12):
            rank.step(100 * MS * step, 100 * MS * (step + 1))
    write_run(tmp_path, ranks, world_sizes=[2])
    result, (detail,) = analyse_in_detail(tmp_path)
    assert result.worlds[0].gains is None
    for name in ("exposed", "wait", "transfer", "hidden"):
        assert np.isnan(detail.parts_ms[name]).all(), name
    assert np.isnan(detail.waited_for_ms).all()
    found = mean_step(detail)
    assert (found.step_ms, found.exposed_ms, found.split_ms) == (100.0, 0.0, {})


def test_dropped_records_of_all_ranks_are_added_up() -> None:
    result = analyse_world(world_run([Rank(rank, 2, steps=1, dropped=3) for rank in range(2)]))
    assert result is not None
    assert result.recording.dropped_records == 6


def test_the_loop_s_clock_is_compared_with_the_trace_s_measured_steps() -> None:
    run = world_run([rank_of(0, 1, 6)])
    run.results[0]["step_ns"] = [99 * MS] * 6
    result = analyse_world(run)
    assert result is not None
    (check,) = (check for check in result.cross_checks if check.name == "loop_clock")
    assert (check.ours, check.other, check.agrees) == (0.5, pytest.approx(0.495), False)


def test_a_world_without_traces_has_no_result() -> None:
    assert analyse_world(world_run([], world_size=2)) is None


def test_a_world_without_a_completed_step_has_nan_figures() -> None:
    result = analyse_world(world_run([Rank(rank, 2, steps=4) for rank in range(2)]))
    assert result is not None
    assert result.timing.measured_steps == 0
    assert math.isnan(result.timing.step_median_ms)


@pytest.mark.measures
def test_eight_ranks_are_analysed_within_the_time_limit() -> None:
    run = world_run([_long(rank, 8, steps=200, buckets=12) for rank in range(8)])
    # Other processes use the machine too, so CPU time is measured.
    begin = time.process_time()
    result = analyse_world(run)
    assert time.process_time() - begin < 2
    assert result is not None
    assert result.timing.measured_steps >= 100


@pytest.mark.measures
def test_a_long_run_of_one_rank_is_analysed_within_the_time_limit() -> None:
    run = world_run([_long(0, 1, steps=20_000, buckets=4)])
    # Other processes use the machine too, so CPU time is measured.
    begin = time.process_time()
    result = analyse_world(run)
    assert time.process_time() - begin < 10
    assert result is not None
    assert result.timing.steps == 20_000


def _long(rank: int, world_size: int, steps: int, buckets: int) -> Rank:
    made = Rank(rank, world_size, steps=steps)
    for step in range(steps):
        at = MS * step
        made.step(at, at + MS)
        made.phase(Phase.BACKWARD, at, at + 900_000)
        for bucket in range(buckets):
            made.collective(
                buckets * step + bucket,
                at + 1000 * bucket + 10 * rank,
                at + 400_000 + 1000 * bucket,
                bytes=1000,
                graph_task=step,
            )
        made.finalize(at + 300_000, at + 900_000, cpu=300_000, graph_task=step)
    return made


def write_run(path: Path, ranks: list[Rank], **values: object) -> None:
    world = path / f"world_{len(ranks)}"
    world.mkdir()
    for rank in ranks:
        rank.write(world / f"rank_{rank.rank}.trace")
        (world / f"rank_{rank.rank}.json").write_text(json.dumps(rank.result()))
    (path / "run.json").write_text(json.dumps(context(**values)))


def test_a_run_directory_is_read_and_scaled(tmp_path: Path) -> None:
    write_run(tmp_path, [rank_of(0, 1, 12)], world_sizes=[1])
    run = analyse_run(tmp_path)
    assert [world.world_size for world in run.worlds] == [1]
    assert math.isnan(run.scaling[0].efficiency)
    assert run.failures == ()
    assert run.worlds[0].parts.exposed_ms == pytest.approx(20.0)


def test_world_sizes_without_figures_are_listed_with_the_reason(tmp_path: Path) -> None:
    write_run(
        tmp_path,
        [Rank(rank, 2, steps=3) for rank in range(2)],
        world_sizes=[1, 2, 4],
        errors={"4": "rank 3 failed"},
    )
    run = analyse_run(tmp_path)
    assert run.worlds == run.scaling == run.remarks == ()
    assert run.failures == (
        (1, "did not run to its end"),
        (2, "no step was recorded by all ranks"),
        (4, "rank 3 failed"),
    )


def test_a_failed_world_size_is_listed_and_its_recorded_steps_are_shown(tmp_path: Path) -> None:
    write_run(tmp_path, [rank_of(0, 1, 5)], world_sizes=[1], errors={"1": "interrupted"})
    run = analyse_run(tmp_path)
    assert [world.timing.steps for world in run.worlds] == [5]
    assert run.failures == ((1, "interrupted"),)


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommprofError, match="holds neither"):
        analyse_run(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(CommprofError, match=r"run\.json"):
        analyse_run(tmp_path)


def test_random_schedules_of_many_steps_have_finite_figures() -> None:
    from tests.support.builders.random_run import RandomRun

    for seed in range(20):
        result = analyse_world(world_run(RandomRun(seed).ranks))
        assert result is not None
        parts = dataclasses.asdict(result.parts)
        of_device = [parts.pop(f"{name}_ms") for name in OF_OTHER]
        assert np.isfinite(list(parts.values())).all()
        assert np.isnan(of_device).all()


def test_backward_passes_and_updates_per_step_are_counted() -> None:
    rank = Rank(0, 2)
    for step in range(3):
        begin = step * 100 * MS
        for turn in range(4):
            rank.phase(Phase.BACKWARD, begin + (10 + 20 * turn) * MS, begin + (20 + 20 * turn) * MS)
        rank.phase(Phase.OPTIMIZER, begin + 95 * MS, begin + 100 * MS)
        rank.step(begin, begin + 100 * MS)
    assert repeats(rank.trace(), np.arange(3)) == Repeats(4, 1, 0)
    assert repeats(rank.trace(), np.array([], dtype=np.int64)) == Repeats()


def test_sentences_mention_only_repeated_updates_and_accumulated_passes() -> None:
    assert Repeats().sentences == Repeats(1, 1, 1).sentences == Repeats(2, 2, 2).sentences[1:] == []
    (several,) = Repeats(2, 2, 2).sentences
    assert several.startswith("A step has 2 optimizer updates, for example because there are")
    (accumulated,) = Repeats(4, 1, 1).sentences
    assert "4 backward passes before its update: gradients are accumulated" in accumulated
    assert accumulated.endswith("DDP exchanges them in 1 of these 4 passes.")
    assert Repeats(4, 1, 0).sentences[0].endswith("accumulated.")


@pytest.mark.parametrize(("script", "shown"), [({"script": "train.py"}, "nccl"), ({}, "gloo")])
def test_a_script_s_backend_is_read_from_its_traces(
    script: dict[str, str], shown: str, tmp_path: Path
) -> None:
    """For a script, run.json holds the backend that a workload would have used."""
    ranks = [rank_of(rank, 2, 5) for rank in range(2)]
    for rank in ranks:
        rank.backend = "nccl"
    write_run(tmp_path, ranks, world_sizes=[2], **script)
    assert analyse_run(tmp_path).context["backend"] == shown
