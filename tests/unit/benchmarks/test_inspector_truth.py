"""Jobs of the study of NCCL Inspector's logs for which rules that name late processes differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.recordings.inspector import _judged_job as judged_job
from benchmarks.recordings.inspector import beside_truth, demands, lowest_bandwidth


@pytest.mark.parametrize(
    "seed",
    [
        58,  # one is late; another of its group seems late, because rings lost records
        74,  # roots of a reduce wait for two late processes, and come late themselves
        192,  # two are late, one by a tenth of the other's delay
        3078,  # two take turns; waiting for one is traced to a process of the other's pipeline
        3146,  # of two, the less late one seems little later than a neighbour of the other one
        3188,  # two of one pipeline are late; lost records make its other stages seem late
        1062,  # the same, but the other stages seem as late as these two
        8184,  # a stage of another pipeline waited with the later one, and works no longer
        9102,  # waiting for the less late of two is traced to others, because of lost records
        8100,  # a root waited in reduces, but its own records of them are lost
    ],
)
def test_late_processes_are_named_and_no_others(tmp_path: Path, seed: int) -> None:
    row = judged_job(seed, tmp_path / "job")
    assert row["late"]
    assert row["named"] == row["late"]


def test_waits_shorter_than_the_logs_resolve_are_no_error(tmp_path: Path) -> None:
    """All processes go from an all-to-all to a reduce-scatter, without work between the two.

    The ends of the all-to-all differ by up to 3 us. The logs' measure of the wait, the time beyond
    the shortest, is then twice the real wait.
    """
    row = judged_job(5119, tmp_path / "job")
    assert 0.005 < row["wait_excess_us"] / row["wait_us"] < 0.02
    assert 0 < row["wait_excess_us"] < 1
    assert row["error"] < 0.001
    assert "is found 0.23 to 0.23 µs too long, at most 0.86% of it" in beside_truth([row])


def test_the_study_counts_jobs_and_what_the_lowest_bandwidth_names() -> None:
    right = {"late": [3], "named": [3], "lowest": 5, "lowest_waits": 0.5, "error": 0.002}
    wrong = {**right, "named": [3, 4], "lowest": 3}
    clean = {**right, "late": [], "named": [], "error": None}
    named, nobody, error = demands([right, wrong, clean])
    assert (named.figure, nobody.figure) == ("1 of 2", "1 of 1")
    assert error.figure == "0.20 %"
    assert lowest_bandwidth([right, wrong, clean]).startswith("In 1 of the 2 jobs with a late ")
