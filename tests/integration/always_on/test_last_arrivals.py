from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from commprof import _native
from commprof.analysis.align.arrivals import Arrivals, match_arrivals
from commprof.analysis.align.matching import match
from commprof.analysis.step.breakdown import breakdown
from commprof.trace import columns
from commprof.trace.columns import Collectives
from commprof.trace.reader import read_trace
from commprof.trace.schema import POINT_TO_POINT
from commprof.trace.summary import Histogram, Summary, merged_histogram, quantile_ns
from tests.support.analysed import analyse_run
from tests.support.machines.commands import call
from tests.support.machines.ranks import run_module

pytestmark = pytest.mark.skipif(_native.native is None, reason=_native.native_error or "")


def merged(summary: Summary, name: str) -> Histogram:
    return merged_histogram(getattr(one, name) for one in summary.operations)


def same(found: Histogram, values_ns: np.ndarray, apart_ns: float) -> None:  # type: ignore[type-arg]
    assert found.count == len(values_ns)
    assert found.sum_ns == pytest.approx(values_ns.sum(), abs=apart_ns * found.count)
    for q in (0.0, 0.1, 0.5, 0.9, 0.99, 1.0):
        exact = np.quantile(values_ns, q, method="inverted_cdf")
        error = exact / 128 + apart_ns
        assert quantile_ns(found, q) == pytest.approx(exact, abs=error), q


def split(table: Collectives, arrivals: Arrivals) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    known = (arrivals.collective >= 0) & (table.end_ns > 0)
    duration = np.maximum(table.end_ns, table.issue_ns)[known] - table.issue_ns[known]
    wait = np.minimum(duration, arrivals.last_arrival_ns[known] - table.issue_ns[known])
    return wait, duration - wait


def test_wait_and_transfer_in_the_summary_match_the_records(tmp_path: Path) -> None:
    run_module("tests.support.ranks.last_arrivals_rank", [str(tmp_path)], 3)
    traces = [read_trace(tmp_path / f"rank_{rank}.trace") for rank in range(3)]
    tables = [columns.collectives(trace) for trace in traces]
    found = match_arrivals(match(traces, tables), traces, tables)
    for trace, table, arrivals in zip(traces, tables, found, strict=True):
        summary = trace.summary
        assert summary is not None
        assert len(table) >= 60
        assert (summary.arrivals_known, summary.arrivals_unknown) == (len(table), 0)
        assert summary.unsplit_steps == 0
        wait, transfer = split(table, arrivals)
        same(merged(summary, "until_last"), wait, 0)
        same(merged(summary, "transfer"), transfer, 0)
        ended = table.end_ns > 0
        late = {rank: int((arrivals.late_rank[ended] == rank).sum()) for rank in range(3)}
        assert {last.rank: last.count for last in summary.last} == {
            rank: count for rank, count in late.items() if count
        }
        assert sum(last.wait_ns for last in summary.last) == wait.sum()
        # Full mode begins after the first boundary, so the records lack step 0. The summary also
        # leaves step 0 out.
        parts = breakdown(trace, table, arrivals, 3)
        same(summary.exposed_wait, parts.wait_ns, 1_000)
        same(summary.exposed_transfer, parts.transfer_ns, 1_000)
        cells = summary.waited_for.cells
        for rank in range(3):
            waited = cells[cells[:, 1] == rank, 2].sum()
            assert waited == pytest.approx(parts.waited_for_ns[:, rank].sum(), abs=100_000)


@pytest.mark.slow
def test_arrivals_are_unknown_in_groups_with_a_rank_that_does_not_record(
    tmp_path: Path,
) -> None:
    run_module("tests.support.ranks.last_arrivals_rank", [str(tmp_path), "1"], 3)
    for rank in (0, 2):
        trace = read_trace(tmp_path / f"rank_{rank}.trace")
        pair = {group.id for group in trace.groups.values() if group.size == 2}
        table = columns.collectives(trace)
        assert trace.summary is not None
        between = np.isin(table.group, list(pair))
        between |= np.isin(table.op, POINT_TO_POINT) & (table.peer == 2 - rank)
        assert trace.summary.arrivals_known == between.sum() > 0
        assert trace.summary.arrivals_unknown == len(table) - trace.summary.arrivals_known
        assert trace.summary.unsplit_steps > 0
    text = " ".join(call("-m", "commprof", "report", str(tmp_path), "--all").stdout.split())
    assert "collectives, and the split into wait and transfer is not known for" in text


def timed(out: Path, late_ms: int) -> tuple[dict[int, Summary], str]:
    layers = "layers=1,data_ms=6,forward_ms=6,backward_ms=12,gradient_mb=0.02"
    late = f"late_rank=1,late_ms={late_ms},late_phase=data"
    done = call(
        *("-m", "commprof.run", "--mode", "always-on", "--world-sizes", "3", "--steps", "40"),
        *("--workload", f"timed:{layers},{late}", "--output", str(out)),
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for rank in range(3):
        trace = read_trace(out / f"world_3/rank_{rank}.trace")
        assert len(trace.records) == 0
        assert trace.summary is not None
        found[rank] = trace.summary
    return found, done.stdout


@pytest.mark.slow
@pytest.mark.measures
def test_a_rank_20_ms_late_is_seen_from_the_summaries_alone(tmp_path: Path) -> None:
    late, report = timed(tmp_path / "late", 20)
    timed(tmp_path / "even", 0)
    for rank in (0, 2):
        wait_ms = quantile_ns(late[rank].exposed_wait, 0.5) / 1e6
        assert wait_ms == pytest.approx(20, abs=2)
        transfer_ms = [quantile_ns(late[r].exposed_transfer, 0.5) / 1e6 for r in (rank, 1)]
        assert transfer_ms[0] == pytest.approx(transfer_ms[1], abs=2)
    assert quantile_ns(late[1].exposed_wait, 0.5) < 2e6
    (found,) = analyse_run(tmp_path / "late").summaries
    assert found.late_rank is not None
    assert (found.late_rank.rank, found.late_rank.phase) == (1, "data")
    assert found.last[0].rank == 1
    assert "rank 1 is late" in " ".join(report.split())
    result = json.loads((tmp_path / "late/result.json").read_text())
    assert result["summaries"][0]["late_rank"]["rank"] == 1
    (even,) = analyse_run(tmp_path / "even").summaries
    assert even.late_rank is None
