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

#: An error may be 1 % or 1 ms, whichever is more.
RELATIVE, ABSOLUTE_NS = 0.01, 1e6
WARMUP = 2


def breakdowns(run: WorldRun) -> dict[int, Breakdown]:
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
    truth = run.results[rank]["truth"]
    begin, length = (np.array(truth[f"{phase}_{key}"]) for key in ("begin_ns", "ns"))
    return begin, begin + length


def truth(run: WorldRun, rank: int, phase: str) -> Floats:
    begin, end = stamps(run, rank, phase)
    return (end - begin)[WARMUP:].astype(np.float64)


def most(run: WorldRun, rank: int, phase: str) -> Floats:
    """Adds the gaps around a phase, because a delay in a gap may count for the phase."""
    before = {"data": "optimizer", "forward": "data", "backward": "forward"}
    after = {"data": "forward", "forward": "backward", "backward": "optimizer"}
    ended = stamps(run, rank, before[phase])[1]
    ended = np.roll(ended, 1) if phase == "data" else ended
    return (stamps(run, rank, after[phase])[0] - ended)[WARMUP:].astype(np.float64)


def result_of(run: WorldRun) -> WorldResult:
    result = analyse_world(run)
    assert result is not None
    assert result.timing.measured_steps > 0
    return result


@pytest.mark.measures
@pytest.mark.parametrize("world_size", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_compute_and_data_time_are_recovered_on_every_step(tmp_path: Path, world_size: int) -> None:
    # The gradients are small, so that 8 ranks on few cores wait for sleeps and not for work.
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
    # With a core for each rank, there are hardly any gaps. On fewer cores, most steps are exact.
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
        # A delay between two steps belongs to a recorded step, but to no step of the loop.
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
    # Each of the two ranks sends the whole 25 MB, because 2 (n - 1) / n is 1. The link is so slow
    # that gloo's own overhead is small compared with the transfer.
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
    is_late = parts[0].step % 2 == 1  # The workload counts steps from 1, but the trace from 0.
    waited_ms = [float(np.median(parts[rank].wait_ns[is_late])) / 1e6 for rank in (0, 1)]
    assert waited_ms[0] == pytest.approx(20, abs=1.5)
    assert waited_ms[1] < 1
    for rank in (0, 1):
        # The link's rate is fixed and a lack of cores only adds time, so fast steps are exact.
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
    run_module("tests.support.scripts.mesh", [str(tmp_path), str(late)], 4)
    found = analyse_world(read_world(tmp_path, 4))
    assert found is not None
    assert found.lateness.late_rank is not None
    assert found.lateness.late_rank.rank == late
    assert found.lateness.late_rank.phase == "forward"
    # The share would be two thirds if each wait were charged to the rank that arrived last. On a
    # busy machine, ranks also wait for cores.
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
