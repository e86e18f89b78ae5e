"""Costs from the collectives of a job that has no steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from commprof.commands import main
from commprof.predict.fit.build import build_profile
from commprof.predict.fit.recorded_calls import read_calls
from tests.support.builders.run_directories import ranks_of, write_run
from tests.support.builders.traces import MS, Rank

SIZES = (1_000, 100_000, 1_000_000, 8_000_000)
ALPHA_NS, NS_PER_BYTE = 50_000, 2


def calls(late_ns: int = 0, sizes: tuple[int, ...] = SIZES) -> list[Rank]:
    """Two ranks, five all-reduces of each size; rank 1 issues each one late."""
    made, at, seq = [Rank(0, 2), Rank(1, 2)], MS, 0
    for size in sizes:
        for _ in range(5):
            # A ring of 2 ranks takes 2 steps of half of the size.
            end = at + late_ns + 2 * ALPHA_NS + NS_PER_BYTE * size
            for rank in made:
                rank.collective(seq, at + late_ns * rank.rank, end, bytes=size)
            at, seq = end + MS, seq + 1
    return made


def test_the_last_issue_begins_a_call(tmp_path: Path) -> None:
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


def test_calls_that_share_the_link_say_nothing(tmp_path: Path) -> None:
    shared = [Rank(0, 2), Rank(1, 2)]
    for rank in shared:
        for seq in range(5):
            rank.collective(seq, seq * MS, (seq + 2) * MS, bytes=1_000)
    assert read_calls(write_run(tmp_path / "run", shared)) == []


def test_the_command_takes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", calls())
    profile = tmp_path / "profile.json"
    assert main(["fit", str(run), "--output", str(profile)]) == 0
    said = capsys.readouterr().out
    assert "all_reduce gloo" in said
    assert "(2 ranks): no rank recorded a step" in said
    assert profile.exists()


def test_too_few_sizes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", calls(sizes=(4, 1_000)))
    assert main(["fit", str(run), "--output", str(tmp_path / "profile.json")]) == 1
    said = capsys.readouterr().err
    assert "all_reduce on gloo was measured at 4, 1000 bytes only" in said


def test_runs_with_steps_are_fitted_by_their_steps(tmp_path: Path) -> None:
    assert read_calls(write_run(tmp_path / "run", ranks_of(2, 9))) == []
