"""Attribution against known truth: phases that sleep, links with a known rate, a late rank."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from commprof.analysis.align.arrivals import match_arrivals
from commprof.analysis.align.matching import match
from commprof.analysis.remarks import remarks
from commprof.analysis.scaling import scale
from commprof.analysis.step.breakdown import Breakdown, breakdown
from commprof.analysis.step.exposure import NO_CORE
from commprof.analysis.world import WorldResult
from commprof.trace import columns
from commprof.trace.reader import read_trace
from commprof.trace.run.run_directory import WorldRun, read_world
from tests.support.analysed import analyse_run, analyse_world, problems_of
from tests.support.machines import netns
from tests.support.machines.ranks import run_here, run_module, run_on_hosts
from tests.support.ranks.capture.user_loop import DATA_MS, LOSS_MS
from tests.support.scripts import mesh

#: Largest error allowed: 1 % or 1 ms, whichever is more.
RELATIVE, ABSOLUTE_NS = 0.01, 1e6
WARMUP = 2


def breakdowns(run: WorldRun) -> dict[int, Breakdown]:
    """Returns every rank's steps without warm-up."""
    ranks = sorted(run.traces)
    assert ranks == list(range(run.world_size))
    traces = [run.traces[rank] for rank in ranks]
    tables = [columns.collectives(trace) for trace in traces]
    arrivals = match_arrivals(match(traces, tables), traces, tables)
    parts = {
        rank: breakdown(trace, table, arrival, run.world_size)
        for rank, trace, table, arrival in zip(ranks, traces, tables, arrivals, strict=True)
    }
    return {rank: part.rows(part.step >= WARMUP) for rank, part in parts.items()}


Floats = npt.NDArray[np.float64]


def stamps(run: WorldRun, rank: int, phase: str) -> tuple[Floats, Floats]:
    """Returns begin and end of a phase by the workload's own clock, for all steps."""
    truth = run.results[rank]["truth"]
    begin, length = (np.array(truth[f"{phase}_{key}"]) for key in ("begin_ns", "ns"))
    return begin, begin + length


def truth(run: WorldRun, rank: int, phase: str) -> Floats:
    """Returns a phase's times by the workload's own clock, without warm-up."""
    begin, end = stamps(run, rank, phase)
    return (end - begin)[WARMUP:].astype(np.float64)


def most(run: WorldRun, rank: int, phase: str) -> Floats:
    """Returns the times of `truth` plus the gaps to the phases before and after.

    If a rank is delayed in a gap, no timestamp tells to which phase the delay belongs.
    """
    before = {"data": "optimizer", "forward": "data", "backward": "forward"}
    after = {"data": "forward", "forward": "backward", "backward": "optimizer"}
    ended = stamps(run, rank, before[phase])[1]
    ended = np.roll(ended, 1) if phase == "data" else ended  # end of the previous step
    return (stamps(run, rank, after[phase])[0] - ended)[WARMUP:].astype(np.float64)


def result_of(run: WorldRun) -> WorldResult:
    """Returns the figures of a run; fails if the run has none."""
    result = analyse_world(run)
    assert result is not None
    assert result.timing.measured_steps > 0
    return result


@pytest.mark.measures
@pytest.mark.parametrize("world_size", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_compute_and_data_time_are_recovered_on_every_step(tmp_path: Path, world_size: int) -> None:
    # Gradients so small that 8 ranks on few cores wait for sleeps, not for work.
    workload = "timed:layers=4,data_ms=5,forward_ms=5,backward_ms=10,gradient_mb=0.01"
    run = run_here(tmp_path, workload, world_size, steps=30)
    strict = 0
    for rank, part in breakdowns(run).items():
        assert len(part.step) == 30 - WARMUP
        for phase in ("data", "forward", "backward"):
            expected, found = truth(run, rank, phase), part.part_ns(phase)
            allowed = np.maximum(RELATIVE * expected, ABSOLUTE_NS)
            strict += int((np.abs(found - expected) <= allowed).sum())
            largest = most(run, rank, phase) - (part.exposed_ns if phase == "backward" else 0)
            good = (found >= expected - allowed) & (found <= largest + allowed)
            assert good.all(), (rank, phase, part.step[~good], (found - expected)[~good])
    # With a core per rank, gaps are negligible; on fewer cores, most steps are still exact.
    assert strict >= 0.9 * 3 * (30 - WARMUP) * world_size


@pytest.mark.measures
def test_phases_add_up_to_the_step_time_measured_by_the_loop(tmp_path: Path) -> None:
    run = run_here(tmp_path, "timed:gradient_mb=2", 2, steps=30)
    for rank, part in breakdowns(run).items():
        table, waited = (f(run.traces[rank]) for f in (columns.collectives, columns.finalizations))
        issued_in = table.graph_task[table.graph_task >= 0]
        assert set(waited.span.key.tolist()) == set(issued_in.tolist())
        total = (
            part.work.data_ns
            + part.work.forward_ns
            + part.work.backward_ns
            + part.exposed_ns
            + part.work.optimizer_ns
            + part.work.other_ns
        )
        loop = np.array(run.results[rank]["step_ns"], dtype=np.float64)
        allowed = 0.005 * loop.min()
        # A delay between two steps is in no step of the loop, but in a recorded step.
        strict = np.abs(total - loop[WARMUP:]) <= allowed
        assert strict.mean() >= 0.9
        begin, end = stamps(run, rank, "data")[0], stamps(run, rank, "optimizer")[1]
        next_begin = np.append(begin[1:], begin[-1] + loop[-1])
        assert (total >= (end - begin)[WARMUP:] - allowed).all()
        assert (total <= (next_begin[WARMUP:] - end[WARMUP - 1 : -1]) + allowed).all()
        assert np.allclose(total, part.wall_ns, rtol=0, atol=1.0)
        for name in ("data", "forward", "backward", "optimizer", "other"):
            assert (part.part_ns(name) >= 0).all(), name
        assert np.allclose(part.wait_ns + part.transfer_ns, part.exposed_ns, rtol=0, atol=1.0)


@pytest.mark.slow
@pytest.mark.measures
@pytest.mark.needs_netns
def test_exposed_time_on_a_link_of_known_rate_matches_the_arithmetic(tmp_path: Path) -> None:
    # Two ranks each send and receive the whole 25 MB: 2 (n - 1) / n = 1. The link is so slow that
    # gloo's own overhead, which the rate does not include, is small compared with the transfer.
    arithmetic_ms = 25e6 * 8 / 250e6 * 1e3
    hidden = "timed:layers=2,gradient_mb=0/25,backward_ms=1200/5"
    with netns.Hosts(2, "250mbit") as hosts:
        open_run = run_on_hosts(
            hosts, tmp_path / "open", "timed:layers=1,gradient_mb=25,backward_ms=5", 8
        )
        hidden_run = run_on_hosts(hosts, tmp_path / "hidden", hidden, 8)
    for part in breakdowns(open_run).values():
        assert np.median(part.exposed_ns) / 1e6 == pytest.approx(arithmetic_ms, rel=0.05)
        assert np.median(part.transfer_ns) / 1e6 == pytest.approx(arithmetic_ms, rel=0.05)
    for part in breakdowns(hidden_run).values():
        assert np.median(part.exposed_ns) / 1e6 < 0.01 * arithmetic_ms
        assert np.median(part.hidden_ns) / 1e6 == pytest.approx(arithmetic_ms, rel=0.05)


@pytest.mark.measures
@pytest.mark.needs_netns
@pytest.mark.parametrize(
    "phase", [*(pytest.param(it, marks=pytest.mark.slow) for it in ("data", "forward")), "backward"]
)
def test_a_late_rank_is_named_and_does_not_change_the_wire_time(tmp_path: Path, phase: str) -> None:
    # 2 x 1 MB at 1 Gbit/s: 16 ms, of which backward hides the first bucket's 8 ms in part.
    plain = "timed:layers=2,data_ms=2,forward_ms=2,backward_ms=4,gradient_mb=1"
    late = f"{plain},late_rank=1,late_ms=20,late_phase={phase},late_every=2"
    with netns.Hosts(2, "1gbit") as hosts:
        plain_run = run_on_hosts(hosts, tmp_path / "plain", plain, 25)
        late_run = run_on_hosts(hosts, tmp_path / "late", late, 50)
    assert result_of(plain_run).lateness.late_rank is None
    after = result_of(late_run)
    assert after.lateness.late_rank is not None
    assert (after.lateness.late_rank.rank, after.lateness.late_rank.phase) == (1, phase)
    parts = breakdowns(late_run)
    is_late = parts[0].step % 2 == 1  # the workload counts from 1, the trace from 0
    waited_ms = [float(np.median(parts[rank].wait_ns[is_late])) / 1e6 for rank in (0, 1)]
    assert waited_ms[0] == pytest.approx(20, abs=1.5)
    assert waited_ms[1] < 1
    for rank in (0, 1):
        # Quantile of the fast steps: the link's rate is fixed, so a lack of cores only adds time.
        transfer_ms = [
            float(np.quantile(parts[rank].transfer_ns[steps], 0.1)) / 1e6
            for steps in (is_late, ~is_late)
        ]
        assert transfer_ms[0] == pytest.approx(transfer_ms[1], abs=1.5)
    context = {"machine": {"usable_cpu_count": 2}, "threads_per_rank": 1}
    said = remarks(context, [after], scale([after]), None)
    assert any("Rank 1 is late" in sentence for sentence in said)


@pytest.mark.parametrize("late", [0, 3])
def test_a_slow_rank_of_a_mesh_is_named_across_its_process_groups(
    tmp_path: Path, late: int
) -> None:
    """One of the three waiting ranks waits for a rank that itself waited in another group."""
    run_module("tests.support.scripts.mesh", [str(tmp_path), str(late)], 4)
    found = analyse_world(read_world(tmp_path, 4))
    assert found is not None
    assert found.lateness.late_rank is not None
    assert found.lateness.late_rank.rank == late
    assert found.lateness.late_rank.phase == "forward"
    # If each wait were charged to the rank that arrived last, the late rank's share would be two
    # thirds. On a busy machine, waiting for cores takes a share of its own.
    no_core = sum(cost.share for cost in found.lateness.wait_costs if cost.cause == NO_CORE)
    assert found.lateness.late_rank.share > 0.8 * (1 - no_core)
    assert found.lateness.late_rank.wait_ns == pytest.approx(mesh.LATE_S * 1e9, rel=0.3)


@pytest.mark.measures
def test_phases_of_a_user_loop_are_found_and_reported(tmp_path: Path) -> None:
    run_module("tests.support.ranks.capture.user_loop", [str(tmp_path)], 2)
    (world,) = analyse_run(tmp_path).worlds
    assert (world.world_size, world.timing.steps) == (2, 12)
    assert problems_of(world) == []
    assert read_trace(tmp_path / "rank_1.trace").metadata["hooks"] == ["mean all-reduce"]
    parts = world.parts
    assert DATA_MS <= parts.data_ms < DATA_MS + 2
    assert LOSS_MS <= parts.other_ms < LOSS_MS + 2
    assert parts.forward_ms > 0
    assert parts.backward_ms > 0
    assert parts.optimizer_ms > 0
    assert parts.exposed_ms == pytest.approx(parts.wait_ms + parts.transfer_ms)
    total = parts.data_ms + parts.forward_ms + parts.backward_ms + parts.exposed_ms
    assert total + parts.optimizer_ms + parts.other_ms == pytest.approx(parts.step_ms)

    shown = subprocess.run(
        [sys.executable, "-m", "commprof", "report", str(tmp_path), "--all"],
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr
    assert "Recorded by commprof: " in shown.stdout
    assert "nan" not in shown.stdout
