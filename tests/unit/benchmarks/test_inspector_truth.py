"""Jobs of the study of NCCL Inspector's logs that told rules of late processes apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.recordings.inspector import _judged_job as judged_job
from benchmarks.recordings.inspector import beside_truth, demands, lowest_bandwidth


@pytest.mark.parametrize(
    "seed",
    [
        58,  # one is late; another of its group seems to be, because rings lost records
        74,  # roots of a reduce wait for two late processes, and come late themselves
        192,  # one process is late by a tenth of what the other is
        3078,  # waiting for one of two in turns is traced to a process of the other's pipeline
        3146,  # the less late of two seems little later than a neighbour of the other
        3188,  # of two in one pipeline, whose other stages seem late by their lost records
        1062,  # the same, where the other stages seem as late
        8184,  # a stage of another pipeline waited with the later one, and works no longer
        9102,  # waiting for the less late of two is traced to others, as rings lost records
        8100,  # a root that waited in reduces of which its record is lost
    ],
)
def test_late_processes_are_named_and_no_others(tmp_path: Path, seed: int) -> None:
    row = judged_job(seed, tmp_path / "job")
    assert row["late"]
    assert row["named"] == row["late"]


def test_waits_shorter_than_the_logs_resolve_are_no_error(tmp_path: Path) -> None:
    """After an all-to-all and no work, all arrive at the reduce-scatter as it lets them go.

    Their ends differ by up to 3 us, so that the time beyond the shortest is twice what they wait.
    """
    row = judged_job(5119, tmp_path / "job")
    assert 0.005 < row["wait_excess_us"] / row["wait_us"] < 0.02
    assert 0 < row["wait_excess_us"] < 1
    assert row["error"] < 0.001
    assert "is 0.23 to 0.23 µs too long, at most 0.86% of it" in beside_truth([row])


def test_the_study_counts_jobs_and_what_the_lowest_bandwidth_names() -> None:
    right = {"late": [3], "named": [3], "lowest": 5, "lowest_waits": 0.5, "error": 0.002}
    wrong = {**right, "named": [3, 4], "lowest": 3}
    clean = {**right, "late": [], "named": [], "error": None}
    named, nobody, error = demands([right, wrong, clean])
    assert (named.figure, nobody.figure) == ("1 of 2", "1 of 1")
    assert error.figure == "0.20 %"
    assert "In the 2 jobs with a late process" in lowest_bandwidth([right, wrong, clean])
    assert "late one in 1" in lowest_bandwidth([right, wrong, clean])
