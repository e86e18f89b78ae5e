"""Who issued a collective, where that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from commprof.analysis.collectives.kinds import caller
from commprof.trace import columns
from commprof.trace.reader import Trace, read_trace
from commprof.trace.schema import Kind
from tests.support.analysed import analyse_run
from tests.support.machines.ranks import run_module

SUPPORT = Path(__file__).parents[2] / "support/ranks/capture/stacks.py"


def recorded(directory: Path, mode: str) -> Trace:
    run_module("tests.support.ranks.capture.stacks", [mode, str(directory)], 1)
    trace = read_trace(directory / "rank_0.trace")
    assert trace.problems == ()
    return trace


def line_of(text: str, function: str) -> str:
    lines = SUPPORT.read_text().splitlines()
    return f"{SUPPORT}:{lines.index(text) + 1} {function}"


def test_each_call_has_the_stack_of_its_line(tmp_path: Path) -> None:
    trace = recorded(tmp_path, "on")
    table = columns.collectives(trace)
    numbers = columns.stacks(trace, table.op_id).tolist()
    # Two from one line, two through another function, the first two again, two of a thread
    # and DDP's bucket; each different stack stands in the trace once.
    assert [sorted(set(numbers)).index(number) for number in numbers] == [
        0, 0, 1, 1, 0, 0, 2, 2, 3,
    ]  # fmt: skip
    assert sorted(trace.stacks) == sorted(set(numbers))
    issued = line_of("        dist.all_reduce(torch.ones(4))", "one_line")
    assert [caller(trace.stacks[number]) for number in numbers[:8]] == [issued] * 8
    through = line_of("    one_line()", "another")
    assert [through in trace.stacks[number] for number in numbers] == [
        *[False] * 2, *[True] * 2, *[False] * 5,
    ]  # fmt: skip
    assert not any(frame.endswith(" main") for frame in trace.stacks[numbers[6]])
    backward = trace.stacks[numbers[8]]
    assert any("_tensor.py" in frame and frame.endswith(" backward") for frame in backward)
    assert caller(backward) == line_of("            step()", "main")


@pytest.mark.parametrize("mode", ["off", "environment"])
def test_without_asking_there_are_none(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMMPROF_STACKS", raising=False)
    trace = recorded(tmp_path, mode)
    assert trace.stacks == {}
    assert not (trace.records["kind"] == Kind.STACK).any()


@pytest.mark.slow
def test_the_environment_asks_and_the_report_names_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMPROF_STACKS", "1")
    recorded(tmp_path, "environment")
    (world,) = analyse_run(tmp_path).worlds
    callers = {row.callers for row in world.collectives}
    issued = line_of("        dist.all_reduce(torch.ones(4))", "one_line")
    assert any(issued in dict(found) for found in callers)
