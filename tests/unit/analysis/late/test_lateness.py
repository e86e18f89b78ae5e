from __future__ import annotations

import math

import numpy as np
import pytest

from commprof.analysis.findings import findings
from commprof.analysis.late.stragglers import LateRank, find_late_rank, of_ranks, with_cause
from commprof.analysis.step.exposure import CAUSES, NO_CORE, UNKNOWN
from commprof.analysis.step.measured import measured_world
from commprof.trace import columns
from commprof.trace.schema import Phase
from tests.support.analysed import analyse_world
from tests.support.builders.results import context
from tests.support.builders.traces import MS, Rank, world_run

Extra = dict[Phase, int]
PHASES = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER)
WIRE_MS = 3


def schedule(extras: list[Extra], buckets: int = 1, steps: int = 4) -> list[Rank]:
    """Each phase takes 5 ms plus the ``extras`` of the rank in ms.

    Backward issues its buckets 1 ms apart, the last bucket at its end.
    """
    ranks = [Rank(rank, len(extras)) for rank in range(len(extras))]
    now = [0] * len(ranks)
    for step in range(steps):
        begin, issues = list(now), []
        for i, (rank, extra) in enumerate(zip(ranks, extras, strict=True)):
            # The optimizer comes first: it applies the previous step's gradients.
            for phase in (Phase.OPTIMIZER, Phase.OTHER, Phase.DATA, Phase.FORWARD, Phase.BACKWARD):
                length = (5 + extra.get(phase, 0)) * MS
                if phase not in (Phase.OTHER, Phase.BACKWARD):
                    rank.phase(phase, now[i], now[i] + length)
                now[i] += length
            issues.append([now[i] - MS * (buckets - 1 - bucket) for bucket in range(buckets)])
        ends, free = [], 0
        for arrived in zip(*issues, strict=True):
            free = max(free, *arrived) + WIRE_MS * MS
            ends.append(free)
        for i, (rank, extra) in enumerate(zip(ranks, extras, strict=True)):
            for bucket, (issue, end) in enumerate(zip(issues[i], ends, strict=True)):
                rank.collective(buckets * step + bucket, issue, end, bytes=8, graph_task=step)
            rank.finalize(now[i], ends[-1], cpu=0, graph_task=step)
            work = (5 + extra.get(Phase.BACKWARD, 0)) * MS
            rank.phase(Phase.BACKWARD, now[i] - work, ends[-1])
            now[i] = ends[-1]
            rank.step(begin[i], now[i])
    return ranks


def explain(ranks: list[Rank], late: int, steps: list[int]) -> LateRank:
    seen = measured_world(world_run(ranks))
    assert seen is not None
    caused = np.sum([part.caused_ns for part in seen.parts], axis=0)
    found = LateRank(late, 1.0, 1.0, 0.001, len(steps), len(steps), 1.0)
    return with_cause(found, caused[steps])


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("buckets", [1, 3])
def test_the_longer_phase_of_the_late_rank_is_named(phase: Phase, buckets: int) -> None:
    ranks = schedule([{}, {phase: 20}, {}], buckets)
    found = explain(ranks, 1, [1, 2, 3])
    assert found.phase == phase.name.lower()
    assert found.phase_share == pytest.approx(1.0)


def test_the_phase_share_is_the_part_of_the_lateness_in_that_phase() -> None:
    found = explain(schedule([{}, {}, {Phase.FORWARD: 15, Phase.DATA: 5}]), 2, [1, 2, 3])
    assert found.phase == "forward"
    assert found.phase_share == pytest.approx(0.75)


def test_no_phase_is_named_if_lateness_is_spread_over_several() -> None:
    extra = dict.fromkeys((Phase.DATA, Phase.FORWARD, Phase.OPTIMIZER), 4)
    found = explain(schedule([{}, extra]), 1, [1, 2, 3])
    assert found.phase is None
    assert found.phase_share == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("unknown_ms", "named", "share"), [(0, "data", 1.0), (5, "data", 2 / 3), (90, None, math.nan)]
)
def test_waiting_with_an_unknown_cause_is_not_explained_by_a_known_one(
    unknown_ms: int, named: str | None, share: float
) -> None:
    caused = np.zeros((20, 2, len(CAUSES)))
    caused[:, 1, CAUSES.index("data")] = 10 * MS
    caused[:, 1, CAUSES.index(UNKNOWN)] = unknown_ms * MS
    caused[:, 1, CAUSES.index(NO_CORE)] = 50 * MS
    found = find_late_rank(of_ranks(caused), 100.0 * MS)
    assert found is not None
    late = with_cause(found, caused)
    assert (late.phase, late.phase_share) == (named, pytest.approx(share, nan_ok=True))


def pause_in_forward(rank: Rank, length_ms: int) -> None:
    phases = columns.phases(rank.trace())
    for begin in phases.begin_ns[phases.key == Phase.FORWARD].tolist():
        rank.pause(begin + MS, begin + (1 + length_ms) * MS)


@pytest.mark.parametrize(
    ("pause_ms", "named", "share"),
    [(20, "host pause", 1.0), (15, "host pause", 0.75), (5, "forward", 0.75)],
)
def test_a_host_pause_is_separated_from_the_phase_it_lies_in(
    pause_ms: int, named: str, share: float
) -> None:
    ranks = schedule([{}, {Phase.FORWARD: 20}, {}])
    pause_in_forward(ranks[1], pause_ms)
    found = explain(ranks, 1, [1, 2, 3])
    assert (found.phase, found.phase_share) == (named, pytest.approx(share))


def test_a_pause_between_phases_is_a_host_pause_and_not_other_time() -> None:
    ranks = schedule([{}, {Phase.OTHER: 20}])
    phases = columns.phases(ranks[1].trace())
    for end in phases.end_ns[phases.key == Phase.OPTIMIZER].tolist():
        ranks[1].pause(end + MS, end + 21 * MS)
    found = explain(ranks, 1, [1, 2, 3])
    assert (found.phase, found.phase_share) == ("host pause", pytest.approx(1.0))


def test_pauses_that_all_ranks_have_do_not_explain_lateness() -> None:
    ranks = schedule([{Phase.FORWARD: 20}, {Phase.FORWARD: 20, Phase.DATA: 9}, {Phase.FORWARD: 20}])
    for rank in ranks:
        pause_in_forward(rank, 20)
    found = explain(ranks, 1, [1, 2, 3])
    assert (found.phase, found.phase_share) == ("data", pytest.approx(1.0))


def test_the_late_rank_is_compared_with_each_rank_that_waits_for_it() -> None:
    ranks = schedule([{Phase.DATA: 8}, {Phase.DATA: 8}, {}, {Phase.DATA: 8, Phase.FORWARD: 20}])
    found = explain(ranks, 3, [1, 2, 3])
    assert found.phase == "forward"
    # Ranks 0 and 1 each wait 20 ms for forward; rank 2 waits 20 ms for forward and 8 ms for data.
    assert found.phase_share == pytest.approx(60 / 68)


def test_lateness_is_explained_only_in_the_given_steps() -> None:
    # Nothing synchronises the ranks before the first step.
    assert math.isnan(explain(schedule([{}, {Phase.DATA: 9}]), 1, [0]).phase_share)
    assert explain(schedule([{}, {Phase.DATA: 9}]), 1, [0, 1]).phase == "data"


def test_blocking_collectives_synchronise_ranks() -> None:
    ranks = [Rank(rank, 2) for rank in range(2)]
    now = 0
    for step in range(4):
        begin = now
        for half in range(2):
            ready = [now + 5 * MS, now + (10 if half else 5) * MS]
            end = max(ready) + MS
            for rank, issue in zip(ranks, ready, strict=True):
                if half:
                    rank.phase(Phase.DATA, now, issue)
                rank.wait(rank.collective(2 * step + half, issue, end), issue, end)
            now = end
        for rank in ranks:
            rank.step(begin, now)
    found = explain(ranks, 1, [1, 2, 3])
    assert (found.phase, found.phase_share) == ("data", 1.0)


def test_a_stalled_step_is_told_with_the_rank_that_the_others_waited_for() -> None:
    ranks, now = [Rank(number, 4) for number in range(4)], 0
    for step in range(12):
        lengths = [(10 + (step + number) % 4) * MS for number in range(4)]
        lengths[2] += 3000 * MS * (step == 6)
        end = now + max(lengths) + WIRE_MS * MS
        for rank, length in zip(ranks, lengths, strict=True):
            rank.step(now, end)
            rank.phase(Phase.FORWARD, now, now + length)
            op = rank.collective(step, now + length, end)
            rank.wait(op, now + length, end)
        now = end
    world = analyse_world(world_run(ranks))
    assert world is not None
    assert world.lateness.stalled_for == {6: 2}
    assert world.evidence.most_waited_for.share < 0.5
    [stall] = [fact for fact in findings(context(), world) if fact.kind == "stalled_steps"]
    assert "step 6 (3.01 s, waiting for rank 2)" in stall.brief
