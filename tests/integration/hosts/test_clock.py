from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import commprof
from commprof.analysis.align.arrivals import match_arrivals
from commprof.analysis.align.clocks import ClockMap, comparisons, on_common_clock, rank_clocks
from commprof.analysis.align.matching import match
from commprof.analysis.remarks import remarks
from commprof.analysis.scaling import scale
from commprof.analysis.step.breakdown import breakdown
from commprof.errors import CommprofError
from commprof.trace import columns
from commprof.trace.reader import Trace, read_trace
from commprof.trace.run.run_directory import WorldRun
from commprof.trace.schema import Kind
from tests.support.analysed import analyse_world
from tests.support.machines import netns
from tests.support.machines.ranks import run_module, run_on_hosts

#: Rank 1's clock is ahead of rank 0's.
SHIFT_MS = 3
OFFSET_NS = -SHIFT_MS * 1_000_000
TRIALS = 20

AHEAD = [sys.executable, "-m", "tests.support.machines.faults.clock_shift", str(SHIFT_MS)]
PAIR = [sys.executable, "-m", "tests.support.ranks.clock_pair"]


def fitted(trace: Trace) -> ClockMap:
    found = comparisons([trace])
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.measures
@pytest.mark.needs_netns
def test_a_clock_offset_of_3_ms_is_measured_within_its_error_bound(tmp_path: Path) -> None:
    with netns.Hosts(2, "1gbit") as hosts:
        host = hosts.address(0)
        rank_0 = hosts.popen(0, [*PAIR, "answer", host], {}, stdin=subprocess.PIPE)
        assert rank_0.stdout is not None
        port, token = json.loads(rank_0.stdout.readline())
        rest = ["ask", host, str(port), str(token), str(TRIALS), str(tmp_path)]
        rank_1 = hosts.popen(1, [*AHEAD, *PAIR, *rest], {})
        said = rank_1.communicate(timeout=60)[0]
        rank_0.communicate(timeout=60)
    assert (rank_1.returncode, rank_0.returncode) == (0, 0), said
    maps = [fitted(read_trace(tmp_path / f"trial_{trial}.trace")) for trial in range(TRIALS)]
    errors = [float(np.abs(clock.offset_ns - OFFSET_NS).max()) for clock in maps]
    for clock in maps:
        assert (np.abs(clock.offset_ns - OFFSET_NS) <= clock.error_ns).all()
    print(f"errors in µs: {sorted(round(e / 1e3, 1) for e in errors)}")
    print(f"bounds in µs: {sorted(round(c.error_ns.max() / 1e3, 1) for c in maps)}")
    assert max(errors) <= 20_000


def waits_ms(run: WorldRun) -> list[float]:
    traces = [run.traces[rank] for rank in range(run.world_size)]
    clocks = rank_clocks(traces)
    assert clocks is not None
    traces = on_common_clock(traces, clocks)
    tables = [columns.collectives(trace) for trace in traces]
    arrivals = match_arrivals(match(traces, tables), traces, tables)
    parts = [
        breakdown(trace, table, arrival, run.world_size)
        for trace, table, arrival in zip(traces, tables, arrivals, strict=True)
    ]
    return [float(np.median(part.wait_ns[part.step >= 2])) / 1e6 for part in parts]


@pytest.mark.slow
@pytest.mark.measures
@pytest.mark.needs_netns
def test_a_late_rank_is_named_across_hosts_whose_clocks_differ(tmp_path: Path) -> None:
    # Without clock comparisons, rank 1 would seem 3 ms late in the plain run and 23 ms late in the
    # late run.
    plain = "timed:layers=2,data_ms=2,forward_ms=2,backward_ms=4,gradient_mb=1"
    late = f"{plain},late_rank=1,late_ms=20,late_phase=data"
    with netns.Hosts(2, "1gbit") as hosts:
        plain_run = run_on_hosts(hosts, tmp_path / "plain", plain, 25, ahead_ms=(0, SHIFT_MS))
        late_run = run_on_hosts(hosts, tmp_path / "late", late, 25, ahead_ms=(0, SHIFT_MS))
    before, after = analyse_world(plain_run), analyse_world(late_run)
    assert before is not None
    assert after is not None
    assert before.lateness.late_rank is None
    assert max(waits_ms(plain_run)) < 1.5
    assert after.lateness.late_rank is not None
    assert after.lateness.late_rank.rank == 1
    waited = waits_ms(late_run)
    assert waited[0] == pytest.approx(20, abs=1.5)
    assert waited[1] < 1
    for run, result in ((plain_run, before), (late_run, after)):
        clock = fitted(run.traces[1])
        assert (np.abs(clock.offset_ns - OFFSET_NS) <= clock.error_ns).all()
        assert 0 < result.recording.clock_error_us < 1000
    context = {"machine": {"usable_cpu_count": 2}, "threads_per_rank": 1}
    said = remarks(context, [after], scale([after]), None)
    assert any("Rank 1 is late" in sentence for sentence in said)
    assert any("clocks were compared over the network" in sentence for sentence in said)


@pytest.mark.parametrize(
    ("mode", "begin", "compared"),
    [
        ("always", "before", True),
        ("always", "after", True),
        ("auto", "after", False),
        ("off", "after", False),
    ],
)
def test_on_one_host_the_clock_offset_is_zero_within_its_error_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, begin: str, compared: bool
) -> None:
    monkeypatch.setenv("COMMPROF_CLOCK", mode)
    run_module("tests.support.ranks.clock_script", [str(tmp_path), begin], 2)
    traces = [read_trace(tmp_path / f"rank_{rank}.trace") for rank in (0, 1)]
    records = [trace.records[trace.records["kind"] == Kind.CLOCK] for trace in traces]
    assert len(records[0]) == 0
    assert (len(records[1]) > 0) == compared
    if compared:
        offset = records[1]["value"].astype(np.uint64).view(np.int64)
        assert (np.abs(offset) <= records[1]["bytes_in"].astype(np.int64)).all()
        assert (records[1]["bytes_in"] <= records[1]["bytes_out"] // 2 + 1).all()
    maps = rank_clocks(traces)
    assert maps is not None
    assert all(clock.is_same_clock for clock in maps)


def test_an_unknown_clock_mode_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMPROF_CLOCK", "sometimes")
    with pytest.raises(
        CommprofError, match=r"COMMPROF_CLOCK='sometimes' .*\(allowed: auto, always, off\)"
    ):
        commprof.profile(tmp_path).start()
    assert list(tmp_path.iterdir()) == []
