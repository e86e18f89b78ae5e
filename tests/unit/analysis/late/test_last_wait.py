from __future__ import annotations

from dataclasses import replace

import pytest

from commprof.analysis.late import last_wait as module
from commprof.analysis.late.last_wait import last_wait
from commprof.trace.packed import packed
from commprof.trace.reader import Trace
from commprof.trace.run.processes import State
from commprof.trace.schema import FLAG_DEVICE_ASYNC
from tests.support.builders.traces import MS, Rank

S = 1000 * MS
STEPS, STEP_NS = 10, 100 * MS


def job(
    ranks: int = 3, missing: tuple[int, ...] = (1,), until_s: float = 30.0, later_s: float = 0.0
) -> list[Rank]:
    """The ranks in ``missing`` never issue the last all-reduce.

    The calls of the other ranks fail after ``until_s``. Each rank issues the last all-reduce
    ``later_s`` after the rank before it.
    """
    made = [Rank(rank, ranks) for rank in range(ranks)]
    for rank in made:
        for number in range(STEPS):
            begin = number * STEP_NS
            rank.step(begin, begin + STEP_NS)
            rank.collective(number, begin + 50 * MS, begin + 60 * MS, bytes=4096)
        end = STEPS * STEP_NS
        if rank.rank not in missing:
            issue = end + round(rank.rank * later_s * S)
            rank.collective(STEPS, issue, end + round(until_s * S), bytes=4096, failed=True)
    return made


def interrupted(ranks: list[Rank]) -> list[Trace]:
    ending = {"error": "KeyboardInterrupt: "}
    return [replace(r.trace(), metadata={**r.metadata, "ending": ending}) for r in ranks]


def test_ranks_that_did_not_arrive_are_told_with_the_wait_of_the_others() -> None:
    told = last_wait(interrupted(job()), 3)
    assert told is not None
    assert (told.ranks, told.waiting, told.waited_s, told.hung) == ((1,), (0, 2), 30.0, True)
    assert told.sentence == (
        "the job hung: ranks 0, 2 had waited for rank 1 in all_reduce number 10 of group '0', for "
        "30.0 s when the recording ended: rank 1 did not arrive, and was last seen in step 10"
    )


def test_the_wait_of_the_first_rank_is_told_as_the_longest() -> None:
    told = last_wait(interrupted(job(later_s=4.0)), 3)
    assert told is not None
    assert (told.waiting, told.waited_s) == ((0, 2), 30.0)
    assert "in all_reduce number 10 of group '0', for up to 30.0 s when" in told.sentence


def test_calls_that_never_ended_last_until_the_last_record_of_the_host() -> None:
    made = job(until_s=0)
    for rank in made:
        if rank.rank != 1:
            rank.collective(STEPS, STEPS * STEP_NS, 0, bytes=4096)
    made[1].phase(0, 20 * S, 21 * S)
    made[1].phase(0, 10 * S, 11 * S)
    cut = [replace(rank.trace(), complete=False) for rank in made]
    told = last_wait(cut, 3)
    assert told is not None
    assert told.ranks == (1,)
    assert told.waited_s == pytest.approx(19.0, abs=1.01)
    assert not told.hung
    assert told.sentence.startswith(
        "when the job was stopped: ranks 0, 2 had waited for rank 1 in "
    )
    assert last_wait([_of_host(trace) for trace in cut], 3) is None


def _of_host(trace: Trace) -> Trace:
    machine = {**trace.metadata["machine"], "hostname": f"host{trace.rank}"}
    return replace(trace, metadata={**trace.metadata, "machine": machine})


@pytest.mark.parametrize(
    "traces",
    [
        pytest.param([rank.trace() for rank in job()], id="a regular end"),
        pytest.param(interrupted(job(until_s=0.5)), id="a short wait"),
        pytest.param(interrupted(job(missing=())), id="all arrived"),
        pytest.param(interrupted(job())[:2], id="a trace lacks"),
        pytest.param([replace(t, dropped=1) for t in interrupted(job())], id="dropped records"),
    ],
)
def test_nothing_is_told_without_evidence(traces: list[Trace]) -> None:
    assert last_wait(traces, 3) is None


def test_a_job_that_still_runs_is_left_to_the_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = [replace(trace, complete=False) for trace in interrupted(job())]
    assert last_wait(cut, 3) is not None
    monkeypatch.setattr(module, "state_of", lambda _: State.RUNS)
    assert last_wait(cut, 3) is None


def test_an_error_that_was_taken_back_is_a_regular_end() -> None:
    ended = [replace(r.trace(), metadata={**r.metadata, "ending": {"error": ""}}) for r in job()]
    assert last_wait(ended, 3) is None


@pytest.mark.parametrize("is_packed", [False, True])
def test_only_the_end_of_a_long_recording_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, is_packed: bool
) -> None:
    monkeypatch.setattr(module, "_TAIL", 16)
    traces = interrupted(job())
    if is_packed:
        traces = [replace(trace, records=packed(trace.records)) for trace in traces]
    told = last_wait(traces, 3)
    assert told is not None
    assert (told.ranks, told.waiting, told.waited_s) == ((1,), (0, 2), 30.0)


def test_a_short_wait_for_the_same_call_is_not_called_complete() -> None:
    made = job(missing=(1, 2))
    end = STEPS * STEP_NS
    made[2].collective(STEPS, end + 28 * S, end + 30 * S, bytes=4096, failed=True)
    told = last_wait(interrupted(made), 3)
    assert told is not None
    assert told.ranks == (1,)
    assert "completed" not in told.sentence


def test_jobs_on_devices_are_left_to_others() -> None:
    made = job()
    for rank in made:
        rank.collective(99, 1, 0, flags=FLAG_DEVICE_ASYNC, group=2)
    assert last_wait(interrupted(made), 3) is None


def test_a_wait_is_compared_with_the_steps() -> None:
    """A wait of 30 s proves no hang in a job whose steps take 10 s."""
    made = [Rank(rank, 2) for rank in range(2)]
    for rank in made:
        for number in range(9):
            rank.step(number * 10 * S, (number + 1) * 10 * S)
            rank.collective(number, number * 10 * S + 1, number * 10 * S + 2 * S)
    made[0].collective(9, 90 * S, 120 * S, failed=True)
    assert last_wait(interrupted(made), 2) is None
