from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.align.matching import match, needed_ranks
from commprof.analysis.world import WorldResult
from commprof.trace import columns
from commprof.trace.reader import read_trace
from commprof.trace.schema import OPS
from tests.support.analysed import analyse_run
from tests.support.machines.ranks import run_module
from tests.support.ranks.capture.messages import LATE_S


def result(name: str, directory: Path) -> WorldResult:
    run_module("tests.support.ranks.capture.messages", [name, str(directory)], 2)
    (world,) = analyse_run(directory).worlds
    return world


@pytest.mark.measures
def test_a_receiver_waits_for_its_late_sender(tmp_path: Path) -> None:
    world = result("known", tmp_path)
    receiver = world.ranks[1].parts
    assert receiver.wait_ms == pytest.approx(LATE_S * 1e3, rel=0.3)
    assert receiver.transfer_ms < receiver.wait_ms / 2
    assert receiver.unsplit_ms == 0.0
    assert receiver.wait_ms + receiver.transfer_ms == pytest.approx(receiver.exposed_ms)
    by_op = {row.kind.op: row for row in world.communication.collectives}
    assert by_op["recv"].times.wait.median_ms == pytest.approx(LATE_S * 1e3, rel=0.3)
    assert by_op["recv"].times.queue.median_ms == 0.0
    assert by_op["recv"].kind.size_bytes == (4000, 4000)


def test_exposed_time_after_a_recv_from_any_source_is_kept_but_not_split(tmp_path: Path) -> None:
    world = result("any_source", tmp_path)
    receiver = world.ranks[1].parts
    # After the first recv from any source, messages have no sequence number. The warm-up contains
    # such a recv, so no measured step has numbers.
    assert receiver.unsplit_ms == pytest.approx(receiver.exposed_ms)
    assert receiver.exposed_ms > 0.9 * 2 * LATE_S * 1e3
    assert math.isnan(receiver.wait_ms)


@pytest.mark.measures
def test_ranks_waiting_for_a_late_rank_in_rooted_collectives_match_needed_ranks(
    tmp_path: Path,
) -> None:
    size = 5
    run_module("tests.support.ranks.capture.messages", ["rooted", str(tmp_path)], size)
    traces = [read_trace(tmp_path / f"rank_{rank}.trace") for rank in range(size)]
    tables = [columns.collectives(trace) for trace in traces]
    matching = match(traces, tables)
    issue_ns, end_ns, op, root = (
        np.concatenate([getattr(table, name) for table in tables])
        for name in ("issue_ns", "end_ns", "op", "peer")
    )
    seen = 0
    for number in np.flatnonzero(matching.complete).tolist():
        rows = np.flatnonzero(matching.member == number)
        code = int(op[rows[0]])
        if OPS[code] not in ("broadcast", "gather", "scatter", "reduce"):
            continue
        late = int(issue_ns[rows].argmax())
        waited = end_ns[rows] >= issue_ns[rows[late]]
        needs = needed_ranks(code, int(root[rows[0]]), size, True)
        assert waited.tolist() == needs[:, late].tolist(), (OPS[code], root[rows[0]], late)
        seen += 1
    assert seen == 5 * size
