from __future__ import annotations

import time
from pathlib import Path

import pytest

from commprof.commands import main
from commprof.forecast.fit.build import build_profile
from commprof.forecast.fit.recorded_calls import _points, read_calls
from tests.support.builders.run_directories import ranks_of, write_run
from tests.support.builders.traces import MS, Rank

SIZES = (1_000, 100_000, 1_000_000, 8_000_000)
ALPHA_NS, NS_PER_BYTE = 50_000, 2


def calls(late_ns: int = 0, sizes: tuple[int, ...] = SIZES) -> list[Rank]:
    made, at, seq = [Rank(0, 2), Rank(1, 2)], MS, 0
    for size in sizes:
        for _ in range(5):
            # A ring of 2 ranks takes 2 steps of half of the size.
            end = at + late_ns + 2 * ALPHA_NS + NS_PER_BYTE * size
            for rank in made:
                rank.collective(seq, at + late_ns * rank.rank, end, bytes=size)
            at, seq = end + MS, seq + 1
    return made


def test_a_recorded_call_s_time_begins_with_the_last_issue(tmp_path: Path) -> None:
    (found,) = read_calls(write_run(tmp_path / "run", calls(late_ns=3 * MS)))
    assert [(p.op, p.backend, p.ranks, p.size_bytes) for p in found.points] == [
        ("all_reduce", "gloo", 2, float(size)) for size in SIZES
    ]
    for point in found.points:
        assert point.time_s == pytest.approx(1e-9 * (2 * ALPHA_NS + NS_PER_BYTE * point.size_bytes))
        assert len(point.samples_s) == 5
    profile, left_out = build_profile([found], [], ["run"])
    curve = profile.links["same_host"].curves["all_reduce"]
    assert curve.pieces[-1].alpha_s == pytest.approx(ALPHA_NS / 1e9, rel=0.01)
    assert curve.pieces[-1].beta_s_per_byte == pytest.approx(NS_PER_BYTE / 1e9, rel=0.01)
    assert left_out == []


def test_overlapping_calls_give_no_points(tmp_path: Path) -> None:
    shared = [Rank(0, 2), Rank(1, 2)]
    for rank in shared:
        for seq in range(5):
            rank.collective(seq, seq * MS, (seq + 2) * MS, bytes=1_000)
    assert read_calls(write_run(tmp_path / "run", shared)) == []


def test_many_calls_of_different_sizes_are_read_quickly() -> None:
    made = [Rank(0, 2), Rank(1, 2)]
    for seq in range(15_000):
        for rank in made:
            at = 3 * seq * MS
            rank.collective(seq, at, at + MS, bytes=4 * max(1, seq - 1))
    traces = [rank.trace() for rank in made]
    begin = time.process_time()
    (point,) = _points(traces)
    assert time.process_time() - begin < 2
    assert (point.size_bytes, point.samples_s) == (4.0, (1e-3,) * 3)


def test_recorded_groups_within_a_host_measure_the_same_host_link(tmp_path: Path) -> None:
    """Ranks of the same row share a host; ranks of the same column do not."""
    made = []
    for number in range(4):
        row, column = f"row {number // 2}", f"column {number % 2}"
        groups = {1: (row, 2), 2: (column, 2), 3: ("all", 4)}
        rank = Rank(number, 4, groups=groups, boot_id=f"host {number // 2}")
        for seq in range(3):
            at = 30 * seq * MS
            for group, (begin, took) in {1: (0, 1), 2: (10, 5), 3: (20, 7)}.items():
                end = at + (begin + took) * MS
                rank.collective(seq, at + begin * MS, end, bytes=1_000, group=group)
        for at in (0, 90 * MS) if number else ():
            rank.clock(at, offset=0, error=0)
        made.append(rank)
    (found,) = read_calls(write_run(tmp_path / "run", made))
    points = [(p.link, p.ranks, p.time_s, len(p.samples_s)) for p in found.points]
    assert sorted(points) == [
        ("other_host", 2, 5e-3, 6),
        ("other_host", 4, 7e-3, 3),
        ("same_host", 2, 1e-3, 6),
    ]


def test_a_killed_rank_counts_as_on_its_machine_s_host(tmp_path: Path) -> None:
    made = calls()
    made[0].metadata["cross_check_sources"] = {"network_namespace": "net:[1]"}
    (found,) = read_calls(write_run(tmp_path / "run", made))
    assert [point.link for point in found.points] == ["same_host"] * len(SIZES)


def test_fit_names_runs_whose_clocks_cannot_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [Rank(rank, 2, boot_id=f"host {rank}") for rank in range(2)]
    for rank in made:
        rank.collective(0, MS, 2 * MS, bytes=1_000)
    run = write_run(tmp_path / "run", made)
    assert main(["fit", str(run), "--output", str(tmp_path / "profile.json")]) == 1
    assert "(2 ranks): the ranks' clocks cannot be compared" in capsys.readouterr().err


def test_calls_with_a_rank_whose_host_is_unknown_are_left_out(tmp_path: Path) -> None:
    made = [Rank(rank, 3) for rank in range(3)]
    for rank, namespace in zip(made, ("net:[1]", "net:[2]", ""), strict=True):
        rank.metadata["cross_check_sources"] = {"network_namespace": namespace}
        for seq in range(3):
            rank.collective(seq, (4 * seq + 1) * MS, (4 * seq + 2) * MS, bytes=1_000)
    (found,) = read_calls(write_run(tmp_path / "run", made))
    assert found.points == ()
    (reason,) = found.left_out
    assert reason.endswith("rank 2 is not known; calls in which such a rank took part are not used")


def test_fit_accepts_a_run_without_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", calls())
    profile = tmp_path / "profile.json"
    assert main(["fit", str(run), "--output", str(profile)]) == 0
    said = capsys.readouterr().out
    assert "all_reduce gloo" in said
    assert "(2 ranks): no rank recorded a step" in said
    assert profile.exists()


def test_fit_names_operations_with_too_few_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", calls(sizes=(4, 1_000)))
    assert main(["fit", str(run), "--output", str(tmp_path / "profile.json")]) == 1
    said = capsys.readouterr().err
    assert "all_reduce on gloo (same host) was measured at 4, 1000 bytes only" in said


def test_runs_with_steps_are_fitted_by_their_steps(tmp_path: Path) -> None:
    assert read_calls(write_run(tmp_path / "run", ranks_of(2, 9))) == []
