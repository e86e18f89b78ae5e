from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commprof import _native
from commprof.analysis.align.matching import match
from commprof.trace import columns
from commprof.trace.documents import Group
from commprof.trace.reader import read_trace
from commprof.trace.schema import OPS
from tests.support.machines.commands import call
from tests.support.machines.ranks import run_module
from tests.support.ranks.devices.two_backends_rank import DEVICE_BYTES, HOST_BYTES, STEPS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_native.native is None, reason="needs the native module"),
]


def test_a_described_group_shows_its_backend_for_cpus() -> None:
    described = Group(1, "7:gloo", "tensor parallel", "gloo", rank=0, size=2)
    assert described.label == "tensor parallel:gloo"
    assert replace(described, name="7", backend="nccl").label == "tensor parallel"
    assert replace(described, name="abcdef:gloo", token="abcdef:gloo", description="").label == (
        "unnamed abcd:gloo"
    )


def test_calls_of_two_backends_of_a_group_are_joined_in_whichever_order_ranks_issue_them(
    tmp_path: Path,
) -> None:
    run_module("tests.support.ranks.devices.two_backends_rank", [str(tmp_path), "full"], 2)
    traces = [read_trace(tmp_path / f"rank_{rank}.trace") for rank in (0, 1)]
    for trace in traces:
        groups = {(group.name, group.label, group.backend) for group in trace.groups.values()}
        assert groups == {("0:gloo", "0:gloo", "gloo"), ("0", "0", "fakedevice")}
    tables = [columns.collectives(trace) for trace in traces]
    assert [len(table) for table in tables] == [3 * STEPS, 3 * STEPS]
    matching = match(traces, tables)
    assert matching.complete.all()
    assert len(matching.complete) == 3 * STEPS
    sent = np.concatenate([np.maximum(table.bytes_in, table.bytes_out) for table in tables])
    of_rank = [sent[matching.rank == rank] for rank in (0, 1)]
    by_member = [np.argsort(matching.member[matching.rank == rank]) for rank in (0, 1)]
    joined = [sizes[order] for sizes, order in zip(of_rank, by_member, strict=True)]
    assert (joined[0] == joined[1]).all()
    assert sorted(set(joined[0].tolist())) == [HOST_BYTES, DEVICE_BYTES]
    report = call("-m", "commprof", "report", str(tmp_path))
    assert report.returncode == 0, report.stderr
    assert "not the same on all ranks" not in report.stdout


def test_always_on_mode_joins_the_calls_of_two_backends(tmp_path: Path) -> None:
    run_module("tests.support.ranks.devices.two_backends_rank", [str(tmp_path), "always-on"], 2)
    for rank in (0, 1):
        trace = read_trace(tmp_path / f"rank_{rank}.trace")
        assert trace.summary is not None
        names = {number: trace.groups[number].name for number in trace.groups}
        reduced = {
            names[row.group]: row for row in trace.summary.operations if OPS[row.op] == "all_reduce"
        }
        assert {name: row.count for name, row in reduced.items()} == {"0": STEPS, "0:gloo": STEPS}
        assert reduced["0:gloo"].until_last.count == STEPS
        assert {row.unfinished for row in trace.summary.operations} == {0}
        messages = [row for row in trace.summary.operations if OPS[row.op] in ("send", "recv")]
        assert [row.count for row in messages] == [STEPS]
        # A message has one wait, and a second wait if its issue blocks.
        assert STEPS <= messages[0].wait.count <= 2 * STEPS
