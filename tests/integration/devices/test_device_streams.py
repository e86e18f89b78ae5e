from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commprof import _native
from commprof.analysis.align.device_timeline import on_device_timeline
from commprof.trace import columns
from commprof.trace.reader import Trace
from commprof.trace.schema import OPS, Kind
from tests.support.machines.device_runs import run_on_device
from tests.support.ranks.devices.device_streams_script import COMPUTING, SIDE, UNIT_NS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_native.native is None, reason="needs the native module"),
]

EXACT_NS = UNIT_NS / 1_000  # the clocks of device and host differ by 1 part in 20,000


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("streams")
    return run_on_device("tests.support.ranks.devices.device_streams_script", directory)


def waits_on(trace: Trace, stream: int) -> Any:
    records = trace.records[trace.records["kind"] == Kind.DEVICE_WAIT]
    return records[records["bytes_out"] == stream]


def stalls_ns(truth: dict[str, Any]) -> Any:
    length = np.array([end - begin for begin, end in truth["stalls"]])
    return length[length > 1 * UNIT_NS]


def test_a_wait_for_an_event_after_a_collective_is_recorded(
    recorded: tuple[Trace, dict[str, Any]],
) -> None:
    trace, truth = recorded
    table = columns.collectives(trace)
    gathered = table.op_id[[1, 2, 4]]
    waits = waits_on(trace, COMPUTING)
    length = (waits["value"] - waits["timestamp_ns"]).astype(np.int64)
    of_events = np.isin(waits["op_id"], gathered)
    long = of_events & (length > EXACT_NS)
    # The first four stalls take 4, 3, 5 and 12 units. The second stall is the wait for a batch.
    first, batch, second, third, *_ = stalls_ns(truth)
    assert (first > 3 * UNIT_NS, batch > 2 * UNIT_NS) == (True, True)
    assert (second > 4 * UNIT_NS, third > 10 * UNIT_NS) == (True, True)
    assert waits["op_id"][long].tolist() == gathered.tolist()
    assert length[long] == pytest.approx([first, second, third], abs=EXACT_NS)


def test_a_wait_for_an_event_without_a_collective_before_it_is_not_recorded(
    recorded: tuple[Trace, dict[str, Any]],
) -> None:
    trace, truth = recorded
    waits = waits_on(trace, COMPUTING)
    length = (waits["value"] - waits["timestamp_ns"]).astype(np.int64)
    batch = stalls_ns(truth)[1]
    assert not (np.abs(length - batch) < EXACT_NS).any()


def test_waits_are_recorded_for_the_stream_that_waits(
    recorded: tuple[Trace, dict[str, Any]],
) -> None:
    trace, _ = recorded
    streams = set(trace.records[trace.records["kind"] == Kind.DEVICE_WAIT]["bytes_out"].tolist())
    assert streams == {COMPUTING, SIDE, 7}
    table = columns.collectives(trace)
    assert set(waits_on(trace, SIDE)["op_id"].tolist()) == set(table.op_id[1:6].tolist())


def test_an_event_of_another_device_is_not_matched_with_a_collective(
    recorded: tuple[Trace, dict[str, Any]],
) -> None:
    trace, _ = recorded
    gathered = columns.collectives(trace).op_id[3]
    assert gathered not in waits_on(trace, COMPUTING)["op_id"]


def test_a_wait_for_coalesced_calls_counts_for_the_last_call(
    recorded: tuple[Trace, dict[str, Any]],
) -> None:
    trace, truth = recorded
    table = columns.collectives(on_device_timeline(trace))
    names = [OPS[code] for code in table.op.tolist()]
    assert names[6:] == ["send", "recv", "send", "recv", "send", "all_reduce"]
    waits = waits_on(trace, COMPUTING)
    length = (waits["value"] - waits["timestamp_ns"]).astype(np.int64)
    last_ones = table.op_id[[7, 9, 11]]
    waited = waits["op_id"] > table.op_id[5]
    assert waits["op_id"][waited].tolist() == last_ones.tolist()
    assert length[waited] == pytest.approx(stalls_ns(truth)[-3:], abs=EXACT_NS)


def test_coalesced_calls_end_together_where_their_work_has_a_future(
    recorded: tuple[Trace, dict[str, Any]],
) -> None:
    trace, truth = recorded
    table = columns.collectives(on_device_timeline(trace))
    ends = np.array(truth["collectives"])[:, 2]
    assert table.end_ns[[6, 7, 10]].tolist() == [0, 0, 0]  # 6 and 7 have no future, 10 failed
    assert table.end_ns[8] == pytest.approx(table.end_ns[9], abs=EXACT_NS)
    apart = int(table.end_ns[11]) - int(table.end_ns[9])
    assert apart == pytest.approx(ends[-1] - ends[-2], abs=60_000)


def test_patched_torch_functions_are_restored_after_recording(
    recorded: tuple[Trace, dict[str, Any]],
) -> None:
    _, truth = recorded
    assert truth["restored"]
    assert truth["group_restored"]
