from __future__ import annotations

import dataclasses

import pytest

from commprof.analysis.collectives.sharding import (
    BACKWARD,
    FORWARD,
    SCATTER,
    SUM,
    Sharding,
    groups_in_reverse,
    sharding,
)
from commprof.analysis.detail import world_detail
from commprof.analysis.step.measured import measured_world
from commprof.analysis.verdict import verdict
from commprof.analysis.world import world_result
from commprof.trace.schema import Phase
from tests.support.builders.results import run_result, with_fields
from tests.support.builders.sharded_job import fsdp_ranks
from tests.support.builders.traces import MS, Rank, world_run


def found() -> Sharding:
    seen = measured_world(world_run(fsdp_ranks()))
    assert seen is not None
    result = sharding(seen, "RUN")
    assert result is not None
    return result


def test_exposed_time_is_divided_by_part_group_and_last_call() -> None:
    result = found()
    assert result.groups == 2
    parts = [(p.part, p.calls, p.group, p.last_ms) for p in result.parts]
    assert parts[0][:2] == (SCATTER, 2)
    assert parts[0][3] == pytest.approx(10)
    exposed = {part.part: part.exposed_ms for part in result.parts}
    assert exposed == pytest.approx({SCATTER: 20, FORWARD: 5, BACKWARD: 5}, abs=1e-3)
    groups = {part.part: part.group for part in result.parts}
    assert (groups[FORWARD], groups[BACKWARD]) == (1, 2)


def test_the_sentence_lists_exposed_communication_unless_it_is_small() -> None:
    assert found().sentence(96.0) == (
        "Exposed communication of sharded parameters, per step: 20 ms reduce-scatters (most at "
        "parameter group 2 of 2, 10 ms; 10 ms in the last call, which no compute can hide); 5 ms "
        "all-gathers in forward (most at parameter group 1 of 2, 5 ms); 5 ms all-gathers in "
        "backward (most at parameter group 2 of 2, 5 ms)."
    )
    assert found().sentence(10_000.0) == ""


#: Each letter of a pass stands for an operation, its size in bytes and its exposed time in ms. A
#: and B gather two parameter groups in forward; a and b gather the same groups in backward.
CALLS = {
    **{"A": ("all_gather_into_tensor", 100, 2), "B": ("all_gather_into_tensor", 200, 3)},
    **{"a": ("all_gather_into_tensor", 100, 4), "b": ("all_gather_into_tensor", 200, 5)},
    **{"1": ("reduce_scatter_tensor", 50, 6), "2": ("reduce_scatter_tensor", 60, 7)},
    "M": ("all_gather_into_tensor", 7, 1),
    **{"+": ("all_reduce", 60, 1), "t": ("all_reduce", 9, 2)},
    **{"G": ("all_gather_into_tensor", 30, 1), "S": ("reduce_scatter_tensor", 15, 1)},
}
TENSOR = "tGS"


def accumulated(*passes: str, phases: bool = True, evaluated: str = "") -> Sharding:
    result = recorded(*passes, phases=phases, evaluated=evaluated)
    assert result is not None
    return result


def recorded(*passes: str, phases: bool = True, evaluated: str = "") -> Sharding | None:
    """Each pass lists its calls in order: calls before "|" run in forward, the others in backward.

    The last step begins with the calls in ``evaluated``.
    """
    rank = Rank(0, 1, groups={1: ("0", 1), 2: ("tensor", 1)})
    at, seq = 0, 0
    for step in range(4):
        begin = at
        first = evaluated + passes[0] if step == 3 else passes[0]
        for number, calls in enumerate((first, *passes[1:])):
            task = -1
            for call in calls:
                if call == "|":
                    task = len(passes) * step + number
                    if phases:
                        rank.phase(Phase.BACKWARD, at, at + MS)
                    continue
                op, size, exposed = CALLS[call]
                end = at + exposed * MS
                in_task = -1 if call == "M" else task
                group = 2 if call in TENSOR else 1
                done = rank.collective(seq, at, end, size, in_task, group, op)
                rank.wait(done, at, end)
                at, seq = end + MS, seq + 1
        rank.step(begin, at)
    seen = measured_world(world_run([rank]))
    assert seen is not None
    return sharding(seen)


@pytest.mark.parametrize(
    ("passes", "expected"),
    [
        (("AB|b2a1",), {FORWARD: (2, 3), BACKWARD: (2, 5), SCATTER: (2, 7)}),
        (("AB|b2a1", "AB|b2a1"), {FORWARD: (2, 6), BACKWARD: (2, 10), SCATTER: (2, 14)}),
        (("AB|ba", "AB|b2a1"), {FORWARD: (2, 6), BACKWARD: (2, 10), SCATTER: (2, 7)}),
        (("AB|", "AB|", "AB|21"), {FORWARD: (2, 9), SCATTER: (2, 7)}),
        (("AB|", "|21"), {FORWARD: (2, 3), SCATTER: (2, 7)}),
        (("AB|b", "B|b21"), {FORWARD: (2, 6), BACKWARD: (2, 10), SCATTER: (2, 7)}),
        (("AB|", "A|", "A|21"), {FORWARD: (1, 6), SCATTER: (2, 7)}),
        # The second pass gathers nothing in forward, so both passes count as one pass.
        (("AB|21", "|21"), {FORWARD: (2, 3), SCATTER: (0, 0)}),
        (("AB|b2a1", "BA|a2b1"), {FORWARD: (0, 0), BACKWARD: (0, 0), SCATTER: (0, 0)}),
        (("AB|b2a1M",), {FORWARD: (2, 3), BACKWARD: (2, 5), SCATTER: (2, 7)}),
    ],
)
def test_each_pass_of_a_step_has_the_same_groups(
    passes: tuple[str, ...], expected: dict[str, tuple[int, int]]
) -> None:
    result = accumulated(*passes)
    assert result.groups == 2
    assert {part.part: part.group for part in result.parts} == {
        part: group for part, (group, _) in expected.items()
    }
    assert {part.part: part.group_ms for part in result.parts} == pytest.approx(
        {part: group_ms for part, (_, group_ms) in expected.items()}
    )
    assert sum(part.calls for part in result.parts) == sum(map(len, passes)) - len(passes)
    last = {part.part: part.last_ms for part in result.parts}
    assert last == pytest.approx({part: 6 if part == SCATTER else 0 for part in last})


def test_without_phases_passes_are_recognised_by_the_calls_of_backward() -> None:
    assert accumulated("AB|b2a1", "AB|b2a1", phases=False) == accumulated("AB|b2a1", "AB|b2a1")


def test_an_evaluation_in_one_step_adds_no_parameter_groups() -> None:
    result = accumulated("AB|b2a1", evaluated="ABABAB")
    assert result.groups == 2
    assert {part.part: part.group for part in result.parts} == {FORWARD: 0, BACKWARD: 2, SCATTER: 2}


def test_tensor_parallelism_exchanges_no_parameters() -> None:
    expected = accumulated("AB|b2+a1")
    assert {part.part: part.calls for part in expected.parts} == {
        **{FORWARD: 2, BACKWARD: 2, SCATTER: 2},
        SUM: 1,
    }
    assert accumulated("AtBt|tb2+ta1") == expected
    assert accumulated("AGSBGS|GSb2+GSa1") == expected


def test_sequence_parallelism_alone_is_not_sharded() -> None:
    assert recorded("GSGS|GSGS") is None


@pytest.mark.parametrize(
    ("forward", "backward", "expected"),
    [
        ([9, 4, 4, 7], [7, 4, 4, 9], [4, 3, 2, 1]),
        # Most recipes reshard neither the root's parameters nor the last group.
        ([9, 4, 4, 4, 7], [4, 4, 4], [4, 3, 2]),
        # It cannot be told which of the three groups of size 4 was not resharded.
        ([9, 4, 4, 4, 7], [7, 4, 4], [5, 0, 0]),
        ([9, 4, 4], [4, 4, 4], [0, 0, 0]),
        ([9, 4], [5], [0]),
        ([9, 4], [], []),
    ],
)
def test_groups_gathered_in_backward_are_identified_by_their_sizes(
    forward: list[int], backward: list[int], expected: list[int]
) -> None:
    assert groups_in_reverse(forward, backward) == expected


def test_ddp_jobs_have_no_sharding_result() -> None:
    ranks = [Rank(rank, 2) for rank in range(2)]
    for rank in ranks:
        for step in range(4):
            begin = 10 * step * MS
            rank.collective(step, begin + MS, begin + 2 * MS, 1000, graph_task=step)
            rank.step(begin, begin + 10 * MS)
    seen = measured_world(world_run(ranks))
    assert seen is not None
    assert sharding(seen) is None


@pytest.mark.parametrize(
    ("part", "options"),
    [
        (FORWARD, "--gather-dtype bf16"),
        (BACKWARD, "--reshard-after-forward off"),
        (SCATTER, "--reduce-dtype bf16"),
    ],
)
def test_the_next_step_suggests_the_option_for_the_most_exposed_part(
    part: str, options: str
) -> None:
    run = world_run(fsdp_ranks())
    seen = measured_world(run)
    assert seen is not None
    world = world_result(run, seen)
    assert world.communication.sharding is not None
    first = next(each for each in world.communication.sharding.parts if each.part == part)
    changed = dataclasses.replace(world.communication.sharding, parts=(first,), directory="RUN")
    world = with_fields(world, sharding=changed)
    detail = world_detail(run, seen)
    result = run_result(world)
    judged = verdict(result, [detail])
    assert judged is not None
    assert judged.next_step.command.endswith(f"predict RUN {options}")
    assert part in judged.next_step.advice
    assert any(part in sentence for sentence in judged.sentences)
