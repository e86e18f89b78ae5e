from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.recordings.inspector import _judged_job as judged_job
from benchmarks.recordings.inspector import beside_truth, demands, lowest_bandwidth


@pytest.mark.parametrize(
    "seed",
    [
        # Other rules would name other processes here: in each job two are late, or records are
        # lost.
        58,
        74,
        192,
        3078,
        3146,
        3188,
        1062,
        8184,
        9102,
        8100,
    ],
)
def test_late_processes_are_named_and_no_others(tmp_path: Path, seed: int) -> None:
    row = judged_job(seed, tmp_path / "job")
    assert row["late"]
    assert row["named"] == row["late"]


def test_waits_shorter_than_the_logs_resolve_are_no_error(tmp_path: Path) -> None:
    """The ends of the all-to-all differ by up to 3 us, and no work follows.

    The logs' measure of the wait, the time beyond the shortest, is then twice the real wait.
    """
    row = judged_job(5119, tmp_path / "job")
    assert 0.005 < row["wait_excess_us"] / row["wait_us"] < 0.02
    assert 0 < row["wait_excess_us"] < 1
    assert row["error"] < 0.001
    text = "is 0.23 to 0.23 µs too long in the report, at most 0.86% of the true waiting"
    assert text in beside_truth([row])


def test_the_study_counts_jobs_and_what_the_lowest_bandwidth_names() -> None:
    right = {"late": [3], "named": [3], "lowest": 5, "lowest_waits": 0.5, "error": 0.002}
    wrong = {**right, "named": [3, 4], "lowest": 3}
    clean = {**right, "late": [], "named": [], "error": None}
    named, nobody, error = demands([right, wrong, clean])
    assert (named.figure, nobody.figure) == ("1 of 2", "1 of 1")
    assert error.figure == "0.20 %"
    assert lowest_bandwidth([right, wrong, clean]).startswith("In 1 of the 2 jobs with a late ")
