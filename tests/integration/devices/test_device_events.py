from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commprof import _native
from commprof.analysis.align.device_timeline import on_device_timeline
from commprof.analysis.collectives.calls import start_times
from commprof.analysis.step.breakdown import breakdown
from commprof.trace import columns
from commprof.trace.reader import Trace
from commprof.trace.schema import Kind
from tests.support.machines.device_runs import run_on_device
from tests.support.ranks.devices.device_script import MS, STEPS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_native.native is None, reason="needs the native module"),
]

COUNT = 1 + 4 * STEPS + 2
#: An elapsed time is a difference of two floats, and the clock drifts within some ms.
EXACT_NS = 2_000


def run(directory: Path, **environment: str) -> tuple[Trace, dict[str, Any]]:
    return run_on_device("tests.support.ranks.devices.device_script", directory, **environment)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, dict[str, Any]]:
    return run(tmp_path_factory.mktemp("device"))


def stalls_ns(truth: dict[str, Any]) -> Any:
    """Returns stalls as ``[step, place]``: place 0 is Work.wait, place 1 the finalisation."""
    length = np.array([end - begin for begin, end in truth["stalls"]])
    return length[length > 3 * MS][: 2 * STEPS].reshape(STEPS, 2)


def of_kind(trace: Trace, kind: Kind) -> Any:
    return trace.records[trace.records["kind"] == kind]


def clock_error_ns(trace: Trace) -> float:
    """Returns the anchors' error bound plus the drift until the next anchor: 500 ppm of 1 s."""
    return float(of_kind(trace, Kind.DEVICE_CLOCK)["bytes_in"].max()) + 500_000


def test_collective_times_match_those_of_the_device(recorded: tuple[Trace, dict[str, Any]]) -> None:
    trace, truth = recorded
    table = columns.collectives(on_device_timeline(trace))
    # The last collective was captured into a graph, so it has no marks.
    timed = table.op_id <= COUNT
    assert (len(table), timed.sum()) == (COUNT + 1, COUNT)
    ready, _, end = np.array(truth["collectives"][:COUNT]).T
    error = clock_error_ns(trace)
    assert table.end_ns[timed] == pytest.approx(end, abs=error)
    assert table.issue_ns[timed] == pytest.approx(ready, abs=error)
    assert table.end_is_exact[timed].all()
    assert table.end_ns[~timed].tolist() == [0]
    # A busy host may place one mark late, which changes the two differences next to the mark.
    apart = np.sort(np.abs(np.diff(table.end_ns[timed]) - np.diff(end)))
    assert apart[:-2].max() < 60_000
    assert apart[-1] < 1 * MS


@pytest.mark.skipif(torch.__version__ < (2, 15), reason="no completion hooks before torch 2.15")
def test_a_late_completion_hook_is_not_taken_as_the_end_of_a_collective(
    recorded: tuple[Trace, dict[str, Any]],
) -> None:
    """torch runs completion hooks at the next issue of a collective, or once a second."""
    trace, truth = recorded
    table = columns.collectives(on_device_timeline(trace))
    end = np.array(truth["collectives"][:COUNT])[:, 2]
    late = np.array(truth["heard"]) - end
    assert len(late) == COUNT
    assert np.median(late) > 6 * MS
    assert np.median(np.abs(table.end_ns[:COUNT] - end)) < 1 * MS


def test_start_times_derived_from_the_queue_match_the_device(
    recorded: tuple[Trace, dict[str, Any]],
) -> None:
    trace, truth = recorded
    moved = on_device_timeline(trace)
    start = start_times(moved, columns.collectives(moved))[:COUNT]
    _, expected, _ = np.array(truth["collectives"][:COUNT]).T
    assert start == pytest.approx(expected, abs=clock_error_ns(trace))


def test_recorded_waits_match_the_stalls_of_the_stream(
    recorded: tuple[Trace, dict[str, Any]],
) -> None:
    trace, truth = recorded
    waits = of_kind(trace, Kind.DEVICE_WAIT)
    assert set(waits["bytes_out"].tolist()) == {0}
    length = (waits["value"] - waits["timestamp_ns"]).astype(np.int64)
    # Each step has three waits: a hidden Work.wait, an exposed Work.wait, and the collective in the
    # stream. wait() of the collective in the stream adds no record.
    per_step = length[1:-2].reshape(STEPS, 3)
    assert per_step[:, 0].max() < EXACT_NS
    assert per_step[:, 2] == pytest.approx(2 * MS, abs=EXACT_NS)
    assert per_step[:, 1] == pytest.approx(stalls_ns(truth)[:, 0], abs=EXACT_NS)
    assert (per_step[:, 1] > 3.5 * MS).all()


def test_waits_by_synchronize_and_block_current_stream_are_recorded(
    recorded: tuple[Trace, dict[str, Any]],
) -> None:
    trace, truth = recorded
    waits = of_kind(trace, Kind.DEVICE_WAIT)[-2:]
    begin, end = np.array(truth["stalls"][-3:-1]).T
    length = (waits["value"] - waits["timestamp_ns"]).astype(np.int64)
    assert length == pytest.approx(end - begin, abs=EXACT_NS)
    assert (length > 3 * MS).all()


def test_the_finalisation_is_split_into_waiting_and_copying(
    recorded: tuple[Trace, dict[str, Any]],
) -> None:
    trace, truth = recorded
    found = columns.finalizations(on_device_timeline(trace))
    assert len(found.span) == STEPS
    assert found.blocked_ns == pytest.approx(stalls_ns(truth)[:, 1], abs=60_000)
    copied = found.span.end_ns - found.span.begin_ns - found.blocked_ns
    assert copied == pytest.approx(1.5 * MS, abs=60_000)


def test_step_parts_on_the_device_timeline_match_the_known_work(
    recorded: tuple[Trace, dict[str, Any]],
) -> None:
    trace, truth = recorded
    moved = on_device_timeline(trace)
    parts = breakdown(moved, columns.collectives(moved), None, 1)
    # The first step is left out, because it began before capture knew the device. The 2 ms are the
    # collective in the stream.
    expected = stalls_ns(truth).sum(axis=1) + 2 * MS
    assert parts.exposed_ns[1:] == pytest.approx(expected, abs=100_000)
    # Forward takes 4 + 5 ms, and backward 2 + 1.5 ms. The host may be late in some step.
    assert np.median(parts.work.forward_ns[1:]) == pytest.approx(9 * MS, abs=1 * MS)
    assert np.median(parts.work.backward_ns[1:]) == pytest.approx(3.5 * MS, abs=1 * MS)
    total = sum(
        parts.part_ns(name)
        for name in ("data", "forward", "backward", "exposed", "optimizer", "other")
    )
    assert total == pytest.approx(parts.wall_ns)
    # Nothing waits for 3 ms of the first collective and for 2 ms of the second collective.
    assert np.median(parts.hidden_ns[1:]) == pytest.approx(5 * MS, abs=1 * MS)


def test_recording_adds_no_synchronisation_or_streams_to_the_device(
    recorded: tuple[Trace, dict[str, Any]],
) -> None:
    _, truth = recorded
    assert truth["counts"].get("synchronized", 0) == 0
    assert truth["counts"].get("pool_streams", 0) == 0
    # During the capture of a graph only the backend recorded events, two of its own.
    assert truth["counts"]["captured"] == 2
    # torch itself records tensors in the finalisation's ``future.wait()``.
    assert truth["after"].get("recorded_tensors", 0) == STEPS
    assert truth["dropped"] == 0
    assert truth["counts"]["timed_events"] < 200


def test_device_events_are_not_recorded_where_they_are_switched_off(tmp_path: Path) -> None:
    trace, truth = run(tmp_path, COMMPROF_DEVICE_EVENTS="off")
    assert truth["counts"].get("timed_events", 0) == 0
    assert on_device_timeline(trace) is trace
    of_devices = [kind for kind in Kind if kind.name.startswith("DEVICE_")]
    assert Kind.DEVICE_READY in of_devices
    assert not np.isin(trace.records["kind"], of_devices).any()
    assert (columns.collectives(trace).end_ns == 0).all()
