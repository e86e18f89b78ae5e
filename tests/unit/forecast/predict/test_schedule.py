from __future__ import annotations

import dataclasses
import json
import time

import numpy as np
import pytest

from commprof.errors import CommprofError
from commprof.forecast.replay.setting import Parameters, assign, parameters_of, rebucketed
from commprof.forecast.scenario.rank_steps import cycles, other_calls
from commprof.forecast.scenario.schedule import Schedule, StepBatch, machine_cpus, read_schedule
from commprof.trace.schema import FLAG_DEVICE_ASYNC, Phase
from commprof.trace.summary import read_summary
from tests.support.builders.traces import MS, Rank, summary, world_run

STEPS = 6
LOG = {"parameter_bytes": [400, 600, 1000], "rebuilt_per_bucket_param_indices": "2, 1 0"}


def rank_of(rank: int, late_ms: int = 0, **metadata: object) -> Rank:
    """Records steps of 100 ms, in which buckets of 1000 bytes are ready at 50 ms and 60 ms.

    The second bucket and the finalisation begin ``late_ms`` later.
    """
    witnesses = {
        "begin_monotonic_ns": 10**15,
        "network_namespace": "net:[1]",
        "ddp_logs": [LOG],
    }
    made = Rank(rank, 2, steps=STEPS, **{"cross_check_sources": witnesses, **metadata})
    for step in range(STEPS):
        at = 100 * MS * step
        made.step(at, at + 100 * MS)
        made.phase(Phase.FORWARD, at + 10 * MS, at + 30 * MS)
        made.phase(Phase.BACKWARD, at + 30 * MS, at + 80 * MS)
        ready = (50, 60 + late_ms)
        for bucket, (issue, end) in enumerate(zip(ready, (58, 75), strict=True)):
            made.collective(
                2 * step + bucket, at + issue * MS, at + end * MS, bytes=1000, graph_task=step
            )
        made.finalize(at + (65 + late_ms) * MS, at + 80 * MS, cpu=5 * MS, graph_task=step)
    return made


def read(*ranks: Rank) -> Schedule:
    return read_schedule(world_run(list(ranks)))


def test_a_run_in_always_on_mode_is_refused_with_the_mode_to_record_in() -> None:
    run = world_run([rank_of(0), rank_of(1)])
    found = read_summary(memoryview(json.dumps(summary()).encode()))
    run.traces[1] = dataclasses.replace(run.traces[1], summary=found)
    assert read_schedule(run).world_size == 2
    run.traces[1] = dataclasses.replace(run.traces[1], records=run.traces[1].records[:0])
    with pytest.raises(CommprofError, match=r"rank 1 was recorded in always-on mode.*--mode full"):
        read_schedule(run)


def test_a_finalisation_before_the_first_step_begins_no_cycle() -> None:
    shifted = Rank(0, 2, steps=STEPS)
    for step in range(1, STEPS):
        at = 100 * MS * step
        shifted.step(at, at + 100 * MS)
    for step in range(STEPS):
        at = 100 * MS * step
        shifted.collective(step, at + 50 * MS, at + 58 * MS, bytes=1000, graph_task=step)
        shifted.finalize(at + 65 * MS, at + 80 * MS, cpu=5 * MS, graph_task=step)
    trace = world_run([shifted, rank_of(1)]).traces[0]
    measured = np.arange(STEPS)
    assert [cycle.step for cycle in cycles(trace, measured)] == [1, 2, 3, 4]


def test_a_cycle_needs_one_finalisation_in_its_step_and_some_in_the_previous_step() -> None:
    rank, tasks = Rank(0, 2), {0: 1, 1: 1, 2: 1, 3: 2, 4: 1, 5: 0, 6: 1, 7: 1}
    for step, passes in tasks.items():
        at = 100 * MS * step
        rank.step(at, at + 100 * MS)
        for number in range(passes):
            begin, task = at + 40 * number * MS, 2 * step + number
            rank.phase(Phase.BACKWARD, begin + 5 * MS, begin + 40 * MS)
            for bucket in range(2):
                ready = begin + (10 + bucket) * MS
                rank.collective(4 * task + bucket, ready, ready + MS, bytes=task, graph_task=task)
            # Neither another operation of the pass nor an all-reduce outside a pass is a bucket.
            rank.collective(4 * task + 2, ready + 1, ready + MS, op="broadcast", graph_task=task)
            rank.collective(4 * task + 3, ready + 2, ready + MS, bytes=1)
            rank.finalize(begin + 20 * MS, begin + 30 * MS, cpu=5 * MS, graph_task=task)
    found = cycles(rank.trace(), np.array([0, 1, 3, 4, 5, 6, 7]))
    assert [cycle.step for cycle in found] == [1, 4, 7]
    assert [cycle.bytes for cycle in found] == [(2, 2), (8, 8), (14, 14)]
    assert [(cycle.begin_ns, cycle.backward_ns) for cycle in found] == [
        (30 * MS, 105 * MS),
        (370 * MS, 405 * MS),  # Step 3 has two finalisations.
        (630 * MS, 705 * MS),
    ]


def test_schedule_times_count_from_the_end_of_the_previous_finalisation() -> None:
    found = read(rank_of(0), rank_of(1, late_ms=4))
    # Step 0 is warm-up, and a cycle begins at 80 ms of the step before.
    assert found.ready_s.shape == (STEPS - 1, 2, 2)
    assert found.ready_s[0] == pytest.approx(np.array([[0.070, 0.080], [0.070, 0.084]]))
    assert found.backward_begin_s[0] == pytest.approx([0.050, 0.050])
    assert found.backward_end_s[0] == pytest.approx([0.085, 0.089])
    assert found.end_s[0] == pytest.approx([0.078, 0.095])
    assert found.period_s == pytest.approx(np.full(STEPS - 1, 0.100))
    assert found.bucket_bytes.tolist() == [1000, 1000]
    assert found.copy_s_per_byte == pytest.approx(0.005 / 2000)
    assert (found.link, found.workers, found.hook) == ("same_host", 2, "")


def test_a_script_s_batch_size_is_the_mean_of_its_loaders_samples() -> None:
    ranks = [rank_of(0), rank_of(1)]
    assert read(*ranks).batch.per_rank == 0
    for step in range(STEPS):
        for rank, samples in zip(ranks, (8, 6), strict=True):
            begin = 100 * MS * step + MS
            rank.phase(Phase.DATA, begin, begin + MS, samples=samples)
    assert read(*ranks).batch.per_rank == 7
    own = rank_of(0, job={"per_rank_batch": 16, "steps_per_epoch": 3, "scaling": "strong"})
    assert read(own, rank_of(1)).batch == StepBatch(16, 3, "strong")
    passes = rank_of(0, job={"per_rank_batch": 16, "training": {"accumulate": 4}})
    assert read(passes, rank_of(1)).batch.per_rank == 64


def test_hosts_are_machines_and_network_namespaces() -> None:
    other = {"cross_check_sources": {"network_namespace": "net:[2]", "ddp_logs": []}}
    found = read(rank_of(0), rank_of(1, **other))
    assert found.link == "other_host"
    cores = rank_of(0).metadata["machine"]["usable_cpu_count"]
    assert (found.placement.ranks_per_host, found.placement.cores_per_host) == (1.0, cores / 2)


def test_a_killed_rank_shares_the_host_of_its_machine() -> None:
    killed = rank_of(1)
    del killed.metadata["cross_check_sources"]
    found = read(rank_of(0), killed)
    assert (found.link, found.placement.ranks_per_host) == ("same_host", 2.0)


def test_reading_a_schedule_with_a_missing_rank_is_refused() -> None:
    with pytest.raises(CommprofError, match="no trace of rank 1"):
        read_schedule(world_run([rank_of(0)], world_size=2))


def test_steps_whose_device_waits_are_unknown_are_refused() -> None:
    def ranks(**issue: int) -> list[Rank]:
        made = [Rank(rank, 2, no_device_times="no driver") for rank in range(2)]
        for rank in made:
            rank.collective(0, MS, 2 * MS, **issue)
        return made

    with pytest.raises(CommprofError, match=r"time of its GPUs was not recorded \(no driver\)"):
        read(*ranks(flags=FLAG_DEVICE_ASYNC))
    with pytest.raises(CommprofError, match="measured steps have exactly one"):
        read(*ranks())


def test_reading_a_schedule_from_a_trial_is_refused() -> None:
    trial = {"plan": "none,fp16", "first_step": 1, "begin_monotonic_ns": 150 * MS, "left_out": {}}
    with pytest.raises(CommprofError, match=r"a trial switched settings .* without --trial"):
        read(rank_of(0, trial=trial), rank_of(1, trial=trial))
    earlier = {**trial, "begin_monotonic_ns": -150 * MS}
    assert read(rank_of(0, trial=earlier), rank_of(1, trial=earlier)).world_size == 2


def test_steps_of_tensor_parallelism_alone_are_refused() -> None:
    without = {"begin_monotonic_ns": 10**15, "ddp_logs": []}
    with pytest.raises(CommprofError, match="no model of DistributedDataParallel was trained"):
        read(*(rank_of(rank, cross_check_sources=without) for rank in range(2)))


def test_steps_without_a_backward_pass_are_refused() -> None:
    rank = Rank(0, 1)
    for step in range(5):
        rank.step(100 * step, 100 * (step + 1))
    with pytest.raises(CommprofError, match="0 of 4 measured steps"):
        read(rank)


def test_waits_for_other_collectives_are_kept_separately() -> None:
    ranks = [rank_of(0), rank_of(1)]
    for rank in ranks:
        for step in range(STEPS):
            at = (100 * step + 12) * MS
            op = rank.collective(100 + step, at, at + 3 * MS, bytes=64, op="broadcast")
            rank.wait(op, at, at + 3 * MS)
    found = read(*ranks)
    assert found.other_wait_s == pytest.approx(np.full((STEPS - 1, 2), 0.003))
    (call,) = found.other_calls
    assert (call.op, call.size_bytes, call.per_step) == ("broadcast", 64, 1.0)


def test_many_other_collectives_of_different_sizes_are_counted_quickly() -> None:
    rank, count = Rank(), 50_000
    rank.step(0, count * MS)
    for seq in range(count):
        op = rank.collective(seq, seq * MS, seq * MS + 9, bytes=4 * seq)
        rank.wait(op, seq * MS, seq * MS + 9)
    trace = rank.trace()
    begin = time.process_time()
    found = other_calls(trace, np.array([0]))
    assert time.process_time() - begin < 2
    assert [(call.size_bytes, call.per_step) for call in found[:2]] == [(0, 1.0), (4, 1.0)]
    assert len(found) == count


def test_parameters_are_read_from_ddp_s_log_only_if_it_fits_the_buckets() -> None:
    found = read(rank_of(0), rank_of(1))
    known = parameters_of(found)
    assert known == Parameters((1000.0, 600.0, 400.0), (0, 1, 1), sizes_known=True)
    assert not known.times_known
    alien = dataclasses.replace(found, ddp_log={**LOG, "parameter_bytes": [1, 2, 3]})
    assert not parameters_of(alien).sizes_known


@pytest.mark.parametrize(
    ("cap", "groups"),
    [
        (1, [[0], [1], [2], [3]]),
        (10, [[0], [1, 2], [3]]),
        (11, [[0, 1], [2, 3]]),
        (1e9, [[0, 1, 2, 3]]),
    ],
)
def test_buckets_are_closed_once_they_reach_the_cap_as_in_ddp(
    cap: float, groups: list[list[int]]
) -> None:
    assert assign([10, 5, 6, 7], cap) == groups


def test_ready_times_are_interpolated_by_bytes() -> None:
    found = read(rank_of(0), rank_of(1))
    sizes, ready = rebucketed(found, parameters_of(found), cap_bytes=500)
    assert sizes.tolist() == [1000, 600, 400]
    assert ready[0, 0] == pytest.approx([0.070, 0.076, 0.080])
    sizes, ready = rebucketed(found, parameters_of(found), cap_bytes=1e9)
    assert (sizes.tolist(), ready[0, 0].tolist()) == ([2000], [pytest.approx(0.080)])


def test_the_processor_s_share_is_cpu_time_divided_by_compute_time() -> None:
    # The builder records 5 ms less CPU time at a begin than at the end before, so the share is
    # negative.
    found = read(rank_of(0), rank_of(1))
    assert found.placement.busy == pytest.approx(-0.005 / 0.085)


@pytest.mark.parametrize(("second", "expected"), [("a", 6), ("b", 4)])
def test_usable_cpus_are_counted_per_machine(second: str, expected: int) -> None:
    ranks = [Rank(0, 2, boot_id="a"), Rank(1, 2, boot_id=second)]
    for rank, cpus in zip(ranks, (["0", "1"], ["2", "3", "4", "5"]), strict=True):
        rank.metadata["machine"]["usable_cpus"] = cpus
    assert machine_cpus([rank.trace() for rank in ranks]) == expected
