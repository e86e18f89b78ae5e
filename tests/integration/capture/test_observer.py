from __future__ import annotations

import json
from pathlib import Path

import pytest

from commprof import _native
from commprof.analysis.collectives.kinds import caller
from commprof.trace import columns
from commprof.trace.reader import Trace, read_trace
from commprof.trace.schema import Kind
from tests.support.analysed import analyse_run
from tests.support.machines.ranks import run_module
from tests.support.ranks.devices.foreign_works_rank import FUTURES

SIX, TWELVE = 6 * 4, 12 * 4
FLOAT, DOUBLE = "Float", "Double"

#: The columns are operation, group size, sequence number, dtype, and (bytes in, bytes out) of ranks
#: 0 and 1.
EXPECTED = [
    ("all_reduce", 2, 0, FLOAT, (SIX, SIX), (SIX, SIX)),
    ("all_reduce", 2, 1, DOUBLE, (2 * SIX, 2 * SIX), (2 * SIX, 2 * SIX)),
    ("all_reduce", 2, 0, FLOAT, (SIX, SIX), (SIX, SIX)),
    ("broadcast", 2, 2, FLOAT, (SIX, SIX), (SIX, SIX)),
    ("reduce", 2, 3, FLOAT, (SIX, SIX), (SIX, SIX)),
    ("all_gather", 2, 4, FLOAT, (SIX, TWELVE), (SIX, TWELVE)),
    ("all_gather_into_tensor", 2, 5, FLOAT, (SIX, TWELVE), (SIX, TWELVE)),
    ("reduce_scatter_tensor", 2, 6, FLOAT, (TWELVE, SIX), (TWELVE, SIX)),
    ("all_to_all_single", 2, 7, FLOAT, (TWELVE, TWELVE), (TWELVE, TWELVE)),
    ("gather", 2, 8, FLOAT, (SIX, TWELVE), (SIX, 0)),
    ("scatter", 2, 9, FLOAT, (TWELVE, SIX), (0, SIX)),
    ("barrier", 2, 10, None, (0, 0), (0, 0)),
    ("send or recv", 2, 0, FLOAT, (SIX, 0), (0, SIX)),
    ("monitored_barrier", 2, 11, None, (0, 0), (0, 0)),
]


ALWAYS_WAITED = ("send", "recv", "monitored_barrier")


def test_every_collective_is_seen_with_its_sizes(tmp_path: Path) -> None:
    outputs = run_module("tests.support.ranks.capture.every_collective", [str(tmp_path)], 2)
    for rank, output in enumerate(outputs):
        found = json.loads(output.strip().splitlines()[-1])
        assert [row[0] for row in found] == [
            ("send", "recv")[rank] if op == "send or recv" else op for op, *_ in EXPECTED
        ]
        for row, (_, size, seq, dtype, *by_rank) in zip(found, EXPECTED, strict=True):
            _, found_size, found_seq, found_dtype, bytes_in, bytes_out, completed, waited = row
            assert (found_size, found_seq) == (size, seq), row
            assert dtype in (None, found_dtype), row
            assert (bytes_in, bytes_out) == by_rank[rank], row
            assert completed, row
            if row[0] in ALWAYS_WAITED:
                assert waited, row
        # A call does not wait if the rank gets no core until the work is done.
        assert sum(bool(row[-1]) for row in found) >= len(found) // 2


@pytest.mark.slow
@pytest.mark.skipif(_native.native is None, reason=_native.native_error or "")
def test_works_of_other_backends_behave_as_without_recording(tmp_path: Path) -> None:
    said = json.loads(
        run_module("tests.support.ranks.devices.foreign_works_rank", [str(tmp_path)], 1)[
            0
        ].splitlines()[-1]
    )
    plain = said["plain"]
    assert {key: said[key] for key in (*FUTURES, "after")} == dict.fromkeys(
        (*FUTURES, "after"), plain
    )
    assert "no_such_attribute" in plain["missing"]
    assert said["ddp"]
    assert said["ddp_recorded"] == said["ddp"]
    table = columns.collectives(read_trace(tmp_path / "rank_0.trace"))
    took_ms = (table.end_ns - table.issue_ns)[: len(FUTURES)] / 1e6
    assert took_ms[0] < 100 <= took_ms[1:].min()


@pytest.mark.slow
@pytest.mark.skipif(_native.native is None, reason=_native.native_error or "")
def test_groups_made_in_a_loop_have_distinct_names(tmp_path: Path) -> None:
    """A new group may have the address of a deleted group."""
    count = 500
    run_module("tests.support.ranks.capture.many_groups", [str(tmp_path), str(count)], 1)
    trace = read_trace(tmp_path / "rank_0.trace")
    names = {group.id: group.name for group in trace.groups.values()}
    assert len(set(names.values())) == len(names) == count
    table = columns.collectives(trace)
    assert table.group.tolist() == list(range(1, count + 1))
    assert set(table.seq.tolist()) == {0}


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
    # Two calls come from one line, two from another function, two from the first line again, two
    # from a thread, and one is DDP's bucket.
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
def test_no_stacks_are_recorded_unless_requested(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMMPROF_STACKS", raising=False)
    trace = recorded(tmp_path, mode)
    assert trace.stacks == {}
    assert not (trace.records["kind"] == Kind.STACK).any()


@pytest.mark.slow
def test_stacks_requested_by_the_environment_name_the_line_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMPROF_STACKS", "1")
    recorded(tmp_path, "environment")
    (world,) = analyse_run(tmp_path).worlds
    callers = {row.callers for row in world.communication.collectives}
    issued = line_of("        dist.all_reduce(torch.ones(4))", "one_line")
    assert any(issued in dict(found) for found in callers)
