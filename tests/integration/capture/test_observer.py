"""The observer sees every collective, with its sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commprof import _native
from commprof.trace import columns
from commprof.trace.reader import read_trace
from tests.support.machines.ranks import run_module
from tests.support.ranks.devices.foreign_works_rank import FUTURES

SIX, TWELVE = 6 * 4, 12 * 4
FLOAT, DOUBLE = "Float", "Double"

#: op, group size, seq in its group, dtype, bytes in, bytes out on rank 0, on rank 1.
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


#: Their wait is recorded however short it was.
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
        # Each blocks its caller, but for one whose rank had no core until the work was done.
        assert sum(bool(row[-1]) for row in found) >= len(found) // 2


@pytest.mark.slow
@pytest.mark.skipif(_native.native is None, reason=_native.native_error or "")
def test_works_of_other_backends_are_as_they_were(tmp_path: Path) -> None:
    """Without a future, whether it is null or refused, the wait's end is the operation's."""
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
def test_groups_made_in_a_loop_are_told_apart(tmp_path: Path) -> None:
    """Addresses of groups that are gone are used again."""
    count = 500
    run_module("tests.support.ranks.capture.many_groups", [str(tmp_path), str(count)], 1)
    trace = read_trace(tmp_path / "rank_0.trace")
    names = {group.id: group.name for group in trace.groups.values()}
    assert len(set(names.values())) == len(names) == count
    table = columns.collectives(trace)
    assert table.group.tolist() == list(range(1, count + 1))
    assert set(table.seq.tolist()) == {0}
