from __future__ import annotations

from dataclasses import replace

from commprof.commands.top import is_silent
from commprof.monitor.state import JobState
from tests.support.builders.live_states import job_state, missing_host, rank_state


def of_host(age_s: float, *statuses: str) -> JobState:
    ranks = tuple(rank_state(rank, status=status) for rank, status in enumerate(statuses))
    return job_state(len(ranks), ranks=ranks, hosts=(replace(missing_host(), age_s=age_s),))


def test_ranks_of_hosts_that_are_silent_for_five_minutes_are_waited_for_no_longer() -> None:
    assert is_silent(of_host(301.0, "ended", "", ""))
    assert not is_silent(of_host(299.0, "ended", "", ""))


def test_a_rank_that_runs_is_waited_for() -> None:
    assert not is_silent(of_host(1000.0, "running", "", ""))


def test_without_a_missing_host_the_ranks_tell_themselves() -> None:
    assert not is_silent(replace(of_host(1000.0, "ended", ""), hosts=()))
    assert not is_silent(of_host(1000.0, "ended", "gone"))
