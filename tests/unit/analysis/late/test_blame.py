from __future__ import annotations

import random

import numpy as np
import pytest

from commprof.analysis.remarks import _about_causes
from commprof.analysis.step.breakdown import Breakdown, Floats
from commprof.analysis.step.exposure import CAUSES
from commprof.analysis.step.measured import measured_world
from commprof.analysis.world import world_result
from commprof.trace.schema import Phase
from tests.support.analysed import analyse_world
from tests.support.builders.blame import ALL, SCENARIOS, Job, Program, job, simulated
from tests.support.builders.traces import MS, Rank, world_run


def measured(of: Job) -> list[Breakdown]:
    seen = measured_world(world_run(simulated(of)))
    assert seen is not None
    return seen.measured


def costs(parts: list[Breakdown]) -> Floats:
    """Returns the caused waiting in ns, indexed by rank and cause."""
    total: Floats = np.sum([part.caused_ns.sum(axis=0) for part in parts], axis=0)
    return total


def assert_conserved(parts: list[Breakdown]) -> None:
    for part in parts:
        assert (part.caused_ns >= 0).all()
        waited = np.nan_to_num(part.wait_ns)
        assert part.caused_ns.sum(axis=(1, 2)) == pytest.approx(waited, rel=1e-12, abs=1e-3)


@pytest.mark.parametrize(("shape", "seed"), SCENARIOS)
def test_the_slow_rank_and_its_cause_get_most_of_the_waiting(shape: str, seed: int) -> None:
    of = job(shape, seed)
    parts = measured(of)
    found = costs(parts)
    order = np.argsort(-found.sum(axis=1), kind="stable")
    assert set(order[: len(of.ranks)].tolist()) == of.ranks
    assert CAUSES[int(found[list(of.ranks)].sum(axis=0).argmax())] == of.cause
    # The rest of the waiting is for transfers, and for a leaf that is even later.
    assert found[list(of.ranks)].sum() > 0.6 * found.sum()
    assert_conserved(parts)


@pytest.mark.parametrize("seed", range(25))
def test_caused_waiting_adds_up_to_all_waiting_in_random_jobs(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randint(2, 6)
    groups = {ALL: tuple(range(size))}
    for number in range(chance.randint(0, 3)):
        groups[f"g{number}"] = tuple(sorted(chance.sample(range(size), chance.randint(2, size))))
    steps = []
    for _ in range(6):
        programs: list[Program] = [[] for _ in range(size)]
        for _ in range(chance.randint(1, 8)):
            for program in programs:
                phase = chance.choice(["data", "forward", "backward", "other"])
                program.append(["work", phase, chance.uniform(0, 9)])
                if chance.random() < 0.1:
                    program.append(["pause", chance.uniform(1, 9)])
            if chance.random() < 0.3:
                source, target = chance.sample(range(size), 2)
                programs[source].append(["send", target])
                programs[target].append(["recv", source])
                continue
            name = chance.choice(list(groups))
            op = chance.choice(["all_reduce", "broadcast", "gather", "scatter", "barrier"])
            rooted = op in ("broadcast", "gather", "scatter")
            root = chance.choice(groups[name]) if rooted else -1
            for rank in groups[name]:
                programs[rank].append(["call", op, name, root, chance.choice([0.0, 5.0])])
        steps.append(programs)
    assert_conserved(measured(Job("random", groups, steps, frozenset(), "")))


def test_a_rank_without_a_core_is_not_named_late_but_reported_as_the_cause() -> None:
    of = job("throttled", 0)
    run = world_run(simulated(of))
    seen = measured_world(run)
    assert seen is not None
    result = world_result(run, seen)
    assert result.lateness.late_rank is None
    assert sum(cost.wait_ms for cost in result.lateness.wait_costs) == pytest.approx(
        result.parts.wait_ms
    )
    assert {result.lateness.wait_costs[0].rank} == of.ranks
    assert result.lateness.wait_costs[0].cause == "no core"
    lacked = result.lateness.longer_phase
    assert lacked is not None
    assert ({lacked.rank}, lacked.phase) == (of.ranks, "forward")
    starved = of.steps[0][lacked.rank][1][2]
    assert lacked.no_core_ms == pytest.approx(starved, rel=0.01)
    # The other ranks' forward takes 4 ms, give or take 5 %.
    assert lacked.longer_ms == pytest.approx(starved, abs=0.4)
    said = " ".join(_about_causes(result))
    assert f"rank {lacked.rank}'s forward takes" in said
    assert "the rank was ready to run but had no core for" in said


def test_a_rank_that_only_its_own_pair_waits_for_is_named_late() -> None:
    ranks = [Rank(rank, 8, groups={1: (f"pair {rank // 2}", 2)}) for rank in range(8)]
    for rank in ranks:
        rank.group_ranks = {1: rank.rank % 2}
        for step in range(12):
            begin = 60 * step * MS
            ready = [begin + (50 if each == 7 else 10) * MS for each in range(8)]
            at, end = ready[rank.rank], max(ready[rank.rank], ready[rank.rank ^ 1]) + MS
            rank.phase(Phase.FORWARD, begin, at)
            rank.wait(rank.collective(step, at, end), at, end)
            rank.step(begin, begin + 60 * MS)
    world = analyse_world(world_run(ranks))
    assert world is not None
    late = world.lateness.late_rank
    assert late is not None
    assert (late.rank, late.waiting_ranks, late.share) == (7, 1, 1.0)
    assert late.wait_ns == pytest.approx(40 * MS)


def test_remarks_name_the_kernel_counters_that_explain_a_longer_phase() -> None:
    def said(no_core_ms: int, **counts: int) -> list[str]:
        ranks = [Rank(rank, 3) for rank in range(3)]
        for rank in ranks:
            for step in range(6):
                begin = 100 * step * MS
                rank.step(begin, begin + 100 * MS)
                end = begin + (38 if rank.rank == 1 else 20) * MS
                rank.phase(Phase.BACKWARD, begin, end)
                rank.wait(rank.collective(step, end, begin + 40 * MS), end, begin + 40 * MS)
                if rank.rank == 1:
                    rank.no_core(begin, end, no_core_ms * MS)
                    rank.host_counts(begin, end, **counts)
        world = analyse_world(world_run(ranks))
        assert world is not None
        return [text for text in _about_causes(world) if "takes" in text]

    longer = "At 3 ranks, rank 1's backward takes 18 ms longer than on the other ranks: "
    assert said(0) == []
    no_core = "the rank was ready to run but had no core for 16 ms of this difference"
    assert said(16) == [f"{longer}{no_core}."]
    assert said(16, throttled_ns=30 * MS, involuntary_switches=2) == [
        f"{longer}the CPU quota of the rank's cgroup stopped the rank for 16 ms of this difference."
    ]
    assert said(16, throttled_ns=3 * MS, involuntary_switches=4) == [
        f"{longer}{no_core} (4 more involuntary switches per step)."
    ]
    assert said(0, major_faults=7, memory_stall_ns=11 * MS) == [
        f"{longer}the rank reads 7 more pages per step from disk and tasks of the rank's host "
        "stalled for memory for 11 ms of this difference."
    ]
    assert said(0, minor_faults=12_000) == [
        f"{longer}the rank has 12,000 more page faults per step."
    ]
    assert said(0, minor_faults=1_000, involuntary_switches=9) == []
