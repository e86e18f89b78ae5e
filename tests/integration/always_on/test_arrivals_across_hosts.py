from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commprof import _native
from commprof.analysis.align.arrivals import match_arrivals
from commprof.analysis.align.clocks import clock_error_us, on_common_clock, rank_clocks
from commprof.analysis.align.matching import match
from commprof.analysis.summaries import analyse_summaries
from commprof.report.sections import always_on
from commprof.trace import columns
from commprof.trace.reader import read_trace
from commprof.trace.schema import POINT_TO_POINT
from commprof.trace.summary import merged_histogram
from tests.support.machines import netns
from tests.support.machines.ranks import run_module_on_hosts, run_on_hosts

pytestmark = [
    pytest.mark.needs_netns,
    pytest.mark.skipif(_native.native is None, reason=_native.native_error or ""),
    pytest.mark.slow,
]

AHEAD_MS = (0, 300)


@pytest.mark.measures
def test_waits_in_the_summary_match_the_records_of_hosts_whose_clocks_differ(
    tmp_path: Path,
) -> None:
    with netns.Hosts(2, "1gbit") as hosts:
        arguments = [str(tmp_path), "-1", "0.6"]
        run_module_on_hosts(hosts, "tests.support.ranks.last_arrivals_rank", arguments, AHEAD_MS, 2)
    traces = [read_trace(tmp_path / f"rank_{rank}.trace") for rank in range(4)]
    clocks = rank_clocks(traces)
    assert clocks is not None
    common = on_common_clock(traces, clocks)
    tables = [columns.collectives(trace) for trace in common]
    found = match_arrivals(match(common, tables), common, tables)
    for trace, table_, arrivals in zip(traces, tables, found, strict=True):
        summary = trace.summary
        assert summary is not None
        assert (summary.arrivals_known, summary.arrivals_unknown) == (len(table_), 0)
        assert summary.unsplit_steps == 0
        assert (summary.hosts.clock, summary.hosts.peers, summary.hosts.heard) == (1, 1, 1)
        # Only messages between ranks of one host need no comparison of clocks. After the first
        # second, the error of a comparison is at most 2 ms.
        at_home = np.isin(table_.op, POINT_TO_POINT) & (table_.peer // 2 == trace.rank // 2)
        assert summary.arrival_clock_error.count == len(table_) - at_home.sum()
        assert 0 < summary.arrival_clock_error.max_ns < 2_000_000
        apart_ns = summary.arrival_clock_error.max_ns + 2_000 * clock_error_us(clocks, traces)
        ended = table_.end_ns > 0
        wait = (
            np.minimum(np.maximum(table_.end_ns, table_.issue_ns), arrivals.last_arrival_ns)
            - table_.issue_ns
        )
        found = merged_histogram(one.until_last for one in summary.operations)
        assert found.count == ended.sum()
        assert found.sum_ns == pytest.approx(wait[ended].sum(), abs=apart_ns * found.count)
        # The order of two arrivals is unknown if their difference is below the clocks' error.
        total = sum(last.count for last in summary.last)
        assert total == found.count
        for last in summary.last:
            share = float((arrivals.late_rank[ended] == last.rank).mean())
            assert last.count / total == pytest.approx(share, abs=0.15)


@pytest.mark.measures
def test_a_late_rank_is_named_from_summaries_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMPROF_MODE", "always-on")
    late = "late_rank=3,late_ms=30,late_phase=forward"
    timed = f"timed:layers=2,data_ms=4,forward_ms=4,backward_ms=8,gradient_mb=0.1,{late}"
    with netns.Hosts(2, "1gbit") as hosts:
        run = run_on_hosts(hosts, tmp_path, timed, 40, AHEAD_MS, ranks_per_host=2)
    assert all(len(trace.records) == 0 for trace in run.traces.values())
    found = analyse_summaries(run)
    assert found is not None
    arrivals = found.arrivals
    assert (
        arrivals.machines,
        arrivals.clocks_compared,
        arrivals.hosts_heard,
    ) == (2, True, 1)
    assert arrivals.arrivals_known > 0.8 * (arrivals.arrivals_known + arrivals.arrivals_unknown)
    assert found.late_rank is not None
    assert (found.late_rank.rank, found.late_rank.phase) == (3, "forward")
    assert found.late_rank.wait_ms == pytest.approx(30, abs=5)
    assert found.last[0].rank == 3
    text = " ".join(always_on.notes([found], (), ()))
    assert "rank 3 is late" in text
    assert "arrivals on other hosts are known to within" in text
