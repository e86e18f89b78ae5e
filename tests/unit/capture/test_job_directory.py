"""Which directory a job's traces go to."""

from __future__ import annotations

from pathlib import Path

import pytest

from commprof.capture.job.job_directory import agree
from tests.support.builders import trace_bytes as made


def begin(directory: Path, **metadata: object) -> None:
    """As rank 0 of a job of its own did."""
    directory.mkdir(exist_ok=True)
    (directory / "rank_0.trace").write_bytes(made.trace(rank=0, **metadata))


def restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_id: str) -> str:
    """Where attempt 1 of this job goes, below the directory asked for."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", run_id)
    return str(agree(tmp_path).relative_to(tmp_path))


@pytest.mark.parametrize(
    ("run_id", "place"), [("first", "."), ("second", "job_2"), ("unknown", "job_4")]
)
def test_a_restart_goes_where_its_job_began(
    run_id: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, elastic_run_id="first")
    begin(tmp_path / "job_2", elastic_run_id="second")
    begin(tmp_path / "job_3")  # of an older version
    begin(tmp_path / "job_4")
    (tmp_path / "job_4/rank_0.trace").write_bytes(b"")  # nothing flushed yet
    assert restarted(tmp_path, monkeypatch, run_id) == place
    assert (tmp_path / place / "rank_0.attempt_1.trace").exists()


def test_of_two_jobs_with_one_id_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What torchrun gives to all that name none.
    begin(tmp_path, elastic_run_id="none")
    begin(tmp_path / "job_2", elastic_run_id="none")
    begin(tmp_path / "job_3", elastic_run_id="other")
    assert restarted(tmp_path, monkeypatch, "none") == "job_2"


def test_a_first_attempt_goes_to_a_directory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    begin(tmp_path)
    assert agree(tmp_path) == tmp_path / "job_2"
    assert agree(tmp_path) == tmp_path / "job_3"
