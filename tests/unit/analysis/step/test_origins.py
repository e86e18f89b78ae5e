from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from commprof.analysis.align.arrivals import match_arrivals
from commprof.analysis.align.matching import match
from commprof.analysis.step.exposure import CAUSES, exposures_of
from commprof.analysis.step.measured import measured_world
from commprof.analysis.step.origins import Origins, origins
from commprof.analysis.step.waiting import Waiting, split
from commprof.trace import columns
from commprof.trace.schema import Phase
from tests.support.builders.traces import MS, Rank, world_run

#: Each item is work in ms or the name of a group whose collective the rank waits for.
Program = Sequence[float | str]
WIRE_MS = 1
STEPS = 6


def run(step: list[Program], groups: dict[str, tuple[int, ...]], steps: int = STEPS) -> list[Rank]:
    numbers = {name: number for number, name in enumerate(groups, 1)}
    ranks = [
        Rank(r, len(step), groups={numbers[n]: (n, len(m)) for n, m in groups.items() if r in m})
        for r in range(len(step))
    ]
    left = [list(program) * steps for program in step]
    now, began = [MS] * len(ranks), [MS] * len(ranks)
    seq = dict.fromkeys(groups, 0)
    while True:
        for r, program in enumerate(left):
            while program and not isinstance(program[0], str):
                now[r] += int(program.pop(0) * MS)  # type: ignore[operator]
                began[r] = _step_ended(ranks[r], step[r], program, began[r], now[r])
        if not any(left):
            return ranks
        name = next(n for n, m in groups.items() if all(left[r] and left[r][0] == n for r in m))
        end = max(now[r] for r in groups[name]) + WIRE_MS * MS
        for r in groups[name]:
            left[r].pop(0)
            call = ranks[r].collective(seq[name], now[r], end, bytes=8, group=numbers[name])
            ranks[r].wait(call, now[r], end)
            now[r] = end
            began[r] = _step_ended(ranks[r], step[r], left[r], began[r], end)
        seq[name] += 1


def _step_ended(rank: Rank, step: Program, left: list[float | str], began: int, now: int) -> int:
    if len(left) % len(step):
        return began
    rank.step(began, now)
    return now


def caused_ms(ranks: list[Rank]) -> list[float]:
    seen = measured_world(world_run(ranks))
    assert seen is not None
    total = np.sum([part.waited_for_ns[1:].sum(axis=0) for part in seen.parts], axis=0)
    return [float(each) / MS for each in total]


def of_each(ranks: list[Rank]) -> tuple[list[Waiting], list[Origins]]:
    traces = [rank.trace() for rank in ranks]
    tables = [columns.collectives(trace) for trace in traces]
    arrivals = match_arrivals(match(traces, tables), traces, tables)
    exposed = [exposures_of(trace) for trace in traces]
    waits = [split(*each) for each in zip(exposed, tables, arrivals, strict=True)]
    return waits, origins(traces, tables, arrivals)


CHAIN = {"first": (0, 1), "second": (1, 2)}


def test_waiting_through_two_groups_is_attributed_to_the_first_slow_rank() -> None:
    ranks = run([[20, "first"], [5, "first", "second"], [5, "second"]], CHAIN)
    waits, _ = of_each(ranks)
    assert set(waits[2].culprit[waits[2].wait_ns > 0].tolist()) == {1}
    caused = caused_ms(ranks)
    # In each step rank 1 adds the transfer time of its first collective.
    assert caused[1:] == pytest.approx([(STEPS - 1) * WIRE_MS, 0])
    assert caused[0] > 0.9 * sum(caused)


def test_a_second_slow_rank_in_a_chain_gets_its_own_part_of_the_waiting() -> None:
    # Rank 2's wait of 21 ms consists of rank 1's waiting (9 ms), transfer (1 ms) and work (11 ms).
    ranks = run([[15, "first"], [6, "first", 11, "second"], [6, "second"]], CHAIN, steps=1)
    waits, parts = of_each(ranks)
    assert np.nansum(waits[2].wait_ns) == 21 * MS
    # Nothing synchronises the ranks earlier, so all 21 ms count as rank 1's.
    assert dict(zip(parts[2].rank.tolist(), parts[2].wait_ns.tolist(), strict=True)) == {1: 21 * MS}

    first = [("both",), ("both",), ("both",)]
    own = [[15, "first"], [6, "first", 11, "second"], [6, "second"]]
    together = {**CHAIN, "both": (0, 1, 2)}
    ranks = run([[1, *a, *b] for a, b in zip(first, own, strict=True)], together, steps=1)
    _, parts = of_each(ranks)
    by_rank = np.bincount(parts[2].rank, weights=parts[2].wait_ns, minlength=3) / MS
    assert by_rank.tolist() == pytest.approx([9, 12, 0])


@pytest.mark.parametrize("late", range(4))
def test_in_a_mesh_of_groups_all_waiting_is_attributed_to_the_slow_rank(late: int) -> None:
    mesh = {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}
    programs = [[20 if r == late else 5, f"tp{r // 2}", 3, f"dp{r % 2}"] for r in range(4)]
    ranks = run(programs, mesh)
    caused = caused_ms(ranks)
    assert caused == pytest.approx([(r == late) * 3 * 15 * (STEPS - 1) for r in range(4)])


def test_waiting_in_a_pipeline_is_attributed_to_its_slow_stage() -> None:
    ranks = [Rank(r, 3) for r in range(3)]
    now = [MS, MS, MS]
    for batch in range(STEPS):
        sent = 0
        for stage, work in enumerate((20, 5, 5)):
            rank, began = ranks[stage], now[stage]
            if stage:
                came = max(now[stage], sent + WIRE_MS * MS)
                call = rank.collective(
                    batch, now[stage], came, op="recv", aux=stage - 1, bytes_in=0, bytes_out=8
                )
                rank.wait(call, now[stage], came)
                now[stage] = came
            sent = now[stage] = now[stage] + work * MS
            if stage < 2:
                rank.collective(batch, sent, 0, op="send", aux=stage + 1, bytes_in=8, bytes_out=0)
            rank.step(began, sent)
    waits, parts = of_each(ranks)
    assert set(waits[2].culprit[waits[2].wait_ns > 0].tolist()) == {1}
    later = parts[2].exposure > 0
    by_rank = np.bincount(parts[2].rank[later], weights=parts[2].wait_ns[later], minlength=3)
    assert by_rank[0] > 0.9 * by_rank.sum()


@pytest.mark.parametrize("seed", range(20))
def test_origins_add_up_to_each_wait_in_random_schedules(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randint(3, 6)
    groups = {"all": tuple(range(size))}
    for number in range(chance.randint(1, 4)):
        members = chance.sample(range(size), chance.randint(2, size))
        groups[f"g{number}"] = tuple(sorted(members))
    programs: list[list[float | str]] = [[] for _ in range(size)]
    for name in chance.choices(list(groups), k=8):
        for r in groups[name]:
            programs[r] += [chance.uniform(0.1, 10), name]
    for program in programs:
        program.append(chance.uniform(0.1, 3))
    waits, parts = of_each(run(programs, groups))
    for wait, part in zip(waits, parts, strict=True):
        known = np.flatnonzero(wait.culprit >= 0)
        total = np.bincount(part.exposure, weights=part.wait_ns, minlength=len(wait.culprit))
        assert total[known] == pytest.approx(wait.wait_ns[known], abs=1e-3)
        assert (part.wait_ns >= 0).all()
        assert set(part.rank.tolist()) <= set(range(size))


def test_lateness_before_a_wait_that_did_not_block_belongs_to_its_phase() -> None:
    ranks = [Rank(rank, 2) for rank in range(2)]
    for rank in ranks:
        for step in range(3):
            begin = 100 * MS * step + MS
            worked = begin + (50 + 15 * rank.rank) * MS
            rank.step(begin, begin + 100 * MS)
            rank.phase(Phase.BACKWARD, begin, worked)
            rank.phase(Phase.OPTIMIZER, worked, worked + 20 * MS)
            scattered = rank.collective(2 * step, begin, 0, op="reduce_scatter_tensor", bytes=8)
            rank.wait(scattered, worked, worked + 500)
            reduced = rank.collective(2 * step + 1, worked + 20 * MS, begin + 90 * MS, bytes=8)
            rank.wait(reduced, worked + 20 * MS, begin + 90 * MS)
    found = of_each(ranks)[1][0]
    last = found.exposure == found.exposure.max()
    assert set(found.rank[last].tolist()) == {1}
    in_backward = last & (found.cause == CAUSES.index("backward"))
    assert found.wait_ns[in_backward].sum() == pytest.approx(15 * MS)


def test_in_a_single_group_the_origin_of_a_wait_is_its_direct_culprit() -> None:
    waits, parts = of_each(run([[5, "all"], [9, "all"], [7, "all"]], {"all": (0, 1, 2)}))
    for wait, part in zip(waits, parts, strict=True):
        waited = wait.wait_ns > 0
        assert part.rank.tolist() == wait.culprit[waited].tolist()
        assert part.wait_ns.tolist() == wait.wait_ns[waited].tolist()
