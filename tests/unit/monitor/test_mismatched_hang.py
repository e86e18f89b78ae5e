from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commprof.analysis.late import standstill
from commprof.monitor.watchdog import issue_lines, py_spy, tasks
from commprof.monitor.watchdog.hang import DEAD, Hang, HungProcess, find_hang
from commprof.monitor.watchdog.tasks import HangTask, Log, MismatchTask
from commprof.monitor.watchdog.thresholds import Threshold
from tests.support.builders.traces import MS, Rank
from tests.unit.monitor.test_hang import SECOND, group, state

FLOAT, DTYPES = 0, ["Float"]
ODD: dict[str, Any] = {"op": "barrier"}
EVEN: dict[str, Any] = {"op": "all_gather", "bytes": 8000}


def job(
    last: Sequence[dict[str, Any]], done: Sequence[dict[str, Any]] = (), end: int = 0
) -> list[Rank]:
    """Each rank completes three steps of ``done``, and then issues its entry of ``last``.

    ``end`` is the time in ns at which the last calls completed, or 0 if the calls are pending.
    """
    made = [Rank(rank, len(last), dtypes=DTYPES) for rank in range(len(last))]
    for rank, issued in zip(made, last, strict=True):
        for step in range(3):
            rank.step(step * 100 * MS, (step + 1) * 100 * MS)
            for place, fields in enumerate(done):
                at = (step * 100 + 10 + 10 * place) * MS
                rank.collective(step * len(done) + place, at, at + MS, **_typed(fields))
        rank.collective(3 * len(done), 310 * MS, end, **_typed(issued))
    return made


def _typed(fields: dict[str, Any]) -> dict[str, Any]:
    return {"bytes": 0, "dtype": FLOAT, **fields}


def feeds(made: Sequence[Rank]) -> list[Any]:
    return [
        SimpleNamespace(
            state=state(rank),
            records=rank.records(),
            is_seen=True,
            process=HungProcess(1000 + rank.rank, "running"),
            metadata={"dtypes": DTYPES, "machine": {"hostname": "a"}, "pid": 1000 + rank.rank},
            group_sizes={1: ("0", len(made))},
        )
        for rank in made
    ]


def hang_of(made: Sequence[Rank], **processes: str) -> Hang:
    seen: list[Any] = feeds(made)
    differing = MismatchTask(Log(Path("/nonexistent"), quiet=True))
    differing.poll(seen, 0)
    watched = {
        rank: HungProcess(1000 + rank, processes.get(f"rank_{rank}", "running"))
        for rank in range(len(made))
    }
    states = [feed.state for feed in seen]
    hang = find_hang(states, watched, 5 * SECOND, 10 * SECOND, (), differing.known)
    assert hang is not None
    return hang


def test_two_ranks_that_differ_are_both_described_and_none_is_accused() -> None:
    hang = hang_of(job([EVEN, ODD], [{"bytes": 256}] * 7))
    assert (hang.kind, hang.accused, hang.waiting) == ("mismatch", (), (0, 1))
    assert hang.sentence == (
        "ranks issued different collectives as collective number 21 of group '0': rank 1 issued a "
        "barrier where rank 0 issued an all_gather of 8000 bytes as Float; which rank is wrong "
        "cannot be told (step 3, pending for 9.7 s)"
    )
    assert "network" not in hang.sentence


def test_the_rank_that_differs_from_the_majority_is_accused() -> None:
    hang = hang_of(job([EVEN, ODD, EVEN], [{"bytes": 256}]))
    assert (hang.kind, [one.rank for one in hang.accused]) == ("mismatch", [1])
    assert hang.accused[0].why == "rank 1 issued barrier as number 3 of group '0'"
    assert (
        "rank 1 issued a barrier where ranks 0, 2 issued an all_gather of 8000 bytes as Float; "
        "rank 1 differs from the majority" in hang.sentence
    )


def test_the_rank_that_differs_from_its_own_earlier_steps_is_accused() -> None:
    """Rank 0 begins its last step with a barrier instead of an all_gather."""
    hang = hang_of(job([ODD, EVEN], [EVEN, {"bytes": 64}, {"bytes": 64}]))
    assert (hang.kind, [one.rank for one in hang.accused]) == ("mismatch", [0])
    assert "; rank 0 differs from its own earlier steps (step 3" in hang.sentence


def test_a_mismatch_is_known_before_all_ranks_have_issued_the_collective() -> None:
    made = job([EVEN, ODD, EVEN])
    late = Rank(2, 3, dtypes=DTYPES)
    for step in range(3):
        late.step(step * 100 * MS, (step + 1) * 100 * MS)
    hang = hang_of([*made[:2], late])
    assert (hang.kind, hang.accused) == ("mismatch", ())


def test_sizes_that_differ_are_a_mismatch_too() -> None:
    hang = hang_of(job([{"bytes": 8}, {"bytes": 8}, {"bytes": 12}, {"bytes": 8}]))
    assert [one.rank for one in hang.accused] == [2]
    assert "rank 2 issued an all_reduce(sum) of 12 bytes as Float where" in hang.sentence


def test_a_stopped_process_is_reported_before_a_mismatch() -> None:
    hang = hang_of(job([EVEN, ODD]), rank_1="stopped")
    assert (hang.kind, [one.rank for one in hang.accused]) == ("held up", [1])


def test_a_mismatch_before_the_pending_collective_is_the_cause_if_all_arrived() -> None:
    made = job([{"bytes": 8}, {"bytes": 16}], end=320 * MS)
    for rank in made:
        rank.collective(1, 330 * MS, 0, bytes=4, dtype=FLOAT)
    hang = hang_of(made)
    assert (hang.kind, hang.accused) == ("mismatch", ())
    assert hang.operation is not None
    assert hang.operation.seq == 1
    assert hang.sentence.endswith(
        "; ranks 0, 1 in all_reduce number 1 of group '0' (step 3, pending for 9.7 s)"
    )


def test_an_absent_rank_is_accused_though_ranks_differed_before() -> None:
    made = job([{"bytes": 8}, {"bytes": 16}], end=320 * MS)
    made[0].collective(1, 330 * MS, 0, bytes=4, dtype=FLOAT)
    hang = hang_of(made)
    assert (hang.kind, [one.rank for one in hang.accused]) == ("absent", [1])


def test_a_receive_from_any_rank_that_no_rank_sends_blames_neither_rank_nor_network() -> None:
    waits = Rank(1, 2)
    waits.step(0, 100 * MS)
    waits.collective(0, 120 * MS, 0, op="recv_any_source", bytes=8)
    idle = Rank(0, 2)
    idle.step(0, 100 * MS)
    hang = find_hang(
        [state(idle), state(waits)],
        {rank: HungProcess(1000 + rank, "running") for rank in (0, 1)},
        5 * SECOND,
        10 * SECOND,
    )
    assert hang is not None
    assert (hang.kind, hang.accused) == ("unmatched", ())
    assert "network" not in hang.sentence


def test_a_send_is_not_missed_by_a_rank_that_receives_from_any_rank() -> None:
    sends, receives = Rank(0, 2), Rank(1, 2)
    for rank, op, aux in ((sends, "send", 1), (receives, "recv_any_source", 0)):
        rank.step(0, 100 * MS)
        rank.collective(0, 120 * MS, 0, op=op, bytes=8, aux=aux)
    states = [state(each, group(1, "0", each.rank, 2)) for each in (sends, receives)]
    assert standstill.waits_of(states) == {0: [], 1: []}


STACK = """\
Process 12143: python -u train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 12150 (idle): "pt_gloo_runloop"
    helper (/home/me/other.py:3)
Thread 12143 (idle): "MainThread"
    all_gather (torch/distributed/distributed_c10d.py:4287)
    wrapper (torch/distributed/c10d_logger.py:83)
    exchange (/home/me/train.py:8)
    <module> (/home/me/train.py:20)
Thread 12151 (idle): "Thread-1"
    run (/home/me/late.py:5)
"""


def test_the_line_of_the_script_is_read_from_a_stack() -> None:
    assert py_spy.script_path(STACK) == "train.py:8 < train.py:20"
    assert py_spy.script_path(STACK.replace("/home/me/train", "torch/nn/module")) == ""
    assert py_spy.script_path("") == ""
    assert py_spy.script_places({3: STACK}) == {3: "now at train.py:8"}


def test_ranks_at_one_line_of_a_helper_are_told_by_the_lines_that_call_it() -> None:
    other = STACK.replace("train.py:20", "train.py:30")
    assert py_spy.script_places({0: STACK, 1: other, 2: ""}) == {
        0: "now at train.py:8, called at train.py:20",
        1: "now at train.py:8, called at train.py:30",
        2: "",
    }
    elsewhere = STACK.replace("train.py:8", "train.py:9")
    assert py_spy.script_places({0: STACK, 1: elsewhere}) == {
        0: "now at train.py:8",
        1: "now at train.py:9",
    }


@pytest.mark.parametrize(
    ("function", "must"),
    [
        (
            "new_group",
            "all ranks must call new_group in the same order, or, with use_local_synchronization, "
            "all ranks of the new group",
        ),
        ("split_group", "all ranks of the parent group must call split_group in the same order"),
    ],
)
def test_a_rank_that_makes_a_group_is_told_which_ranks_must(function: str, must: str) -> None:
    makes = STACK.replace("    all_gather (", f"    {function} (")
    assert py_spy.script_places({0: STACK, 1: makes}) == {
        0: "now at train.py:8",
        1: f"now at train.py:8, in {function}",
    }
    made = Rank(0, 1)
    made.step(0, 100 * MS)
    made.step(100 * MS, 200 * MS)
    process = {0: HungProcess(1000, "running")}
    hang = find_hang([state(made, group(1, "0", 0, 1))], process, 5 * SECOND, 10 * SECOND)
    assert hang is not None
    assert hang.at(py_spy.script_places({0: makes})).sentence.endswith(
        f"; {must}; rank 0: now at train.py:8, in {function}"
    )


def test_lines_of_python_s_own_modules_are_not_the_script_s() -> None:
    waits = """\
Process 7: python train.py
Thread 7 (idle): "MainThread"
    wait (threading.py:331)
    get (queue.py:180)
    _try_get_data (torch/utils/data/dataloader.py:1275)
    load (data/loading.py:12)
    <module> (train.py:20)
"""
    assert py_spy.script_path(waits) == "loading.py:12 < train.py:20"
    imports = waits.replace(
        "load (data/loading.py:12)", "import_module (importlib/__init__.py:126)"
    )
    assert py_spy.script_path(imports) == "train.py:20"
    named_alike = waits.replace("train.py", "profile.py")
    assert py_spy.script_path(named_alike) == "loading.py:12 < profile.py:20"


def test_scripts_and_packages_with_names_of_python_s_modules_are_not_python_s() -> None:
    stacks = """\
Process 7: python profile.py
Thread 7 (idle): "MainThread"
    wait (threading.py:331)
    forward (code/model.py:12)
    train (profile.py:30)
    <module> (profile.py:80)
"""
    assert py_spy.script_path(stacks) == "model.py:12 < profile.py:30 < profile.py:80"


def test_a_main_thread_that_waits_for_other_threads_has_left_its_script() -> None:
    ended = """\
Process 7: python train.py
Thread 7 (idle): "MainThread"
    _wait_for_tstate_lock (threading.py:1132)
    join (threading.py:1112)
    _shutdown (threading.py:1590)
Thread 9 (idle): "Thread-1 (load)"
    load (train.py:5)
"""
    left = "left its script, by an exception or at its end"
    assert py_spy.script_places({1: ended}) == {1: left}
    assert py_spy.script_places({1: ended.replace("_shutdown", "wait")}) == {1: ""}


def test_the_report_of_a_mismatch_says_at_which_lines_the_ranks_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = {1000: STACK, 1001: STACK.replace("train.py:8", "train.py:10"), 1002: ""}
    monkeypatch.setattr(tasks.py_spy, "dump", lambda pid: py_spy.StackDump(read[pid], "no stacks"))
    monkeypatch.setattr(tasks.py_spy, "find_py_spy", lambda: None)
    log = Log(tmp_path)
    differing = MismatchTask(log)
    hangs = HangTask(tmp_path, Threshold(5.0), log, differing.known)
    seen = feeds(job([EVEN, ODD, EVEN]))
    for task in (differing, hangs):
        task.poll(seen, 10 * SECOND)
    said = capsys.readouterr().err
    expected = (
        "rank 1 issued a barrier (now at train.py:10) where ranks 0, 2 issued an all_gather of "
        "8000 bytes as Float (now at train.py:8); rank 1 differs from the majority"
    )
    assert said.count("HANG 1: ") == 1
    assert expected in said
    assert expected in (tmp_path / "hang_1.json").read_text()
    assert {path.name for path in tmp_path.glob("*.stack.txt")} == {
        "hang_1_rank_0.stack.txt",
        "hang_1_rank_1.stack.txt",
    }


def test_a_mismatch_of_one_helper_is_told_by_the_recorded_lines_that_call_it() -> None:
    def frames(rank: int) -> tuple[str, ...]:
        by = 30 if rank == 1 else 20
        return ("/me/helper.py:3 reduced", f"/me/train.py:{by} main")

    made = job([{"bytes": 8}, {"bytes": 12}, {"bytes": 8}])
    for rank in made:
        rank.stacks = {7: frames(rank.rank)}
        rank.stack(1, 7)
    seen: list[Any] = feeds(made)
    for feed, rank in zip(seen, made, strict=True):
        feed.stacks = rank.stacks
    differing = MismatchTask(Log(Path("/nonexistent"), quiet=True))
    differing.poll(seen, 0)
    (mismatch,) = differing.known()
    assert (
        "rank 1 issued an all_reduce(sum) of 12 bytes as Float (helper.py:3, called at train.py:30)"
        " where ranks 0, 2 issued an all_reduce(sum) of 8 bytes as Float (helper.py:3, called at "
        "train.py:20); rank 1 differs from the majority"
    ) in mismatch.sentence


def test_the_watchdog_says_since_when_the_ranks_calls_are_shifted() -> None:
    """Rank 1 leaves out its call at line 25; its next call has the same operation and size."""
    made = job([{"bytes": 8}] * 3)
    for rank, lines in zip(made, ((20, 25, 30), (20, 30, 40), (20, 25, 30)), strict=True):
        rank.stacks = {line: (f"/me/train.py:{line} main",) for line in lines}
        rank.collective(1, 320 * MS, 0, **_typed({"bytes": 8}))
        rank.collective(2, 330 * MS, 0, **_typed(ODD if rank.rank == 1 else {"bytes": 8}))
        for number, line in enumerate(lines):
            rank.stack(number + 1, line)
    seen: list[Any] = feeds(made)
    for feed, rank in zip(seen, made, strict=True):
        feed.stacks = rank.stacks
    differing = MismatchTask(Log(Path("/nonexistent"), quiet=True))
    differing.poll(seen, 0)
    mismatch = differing.known()[-1]
    assert mismatch.told_ranks == (1,)
    assert mismatch.sentence.endswith(
        "rank 1 differs from the majority; before that, collective 1 agrees only in operation and "
        "size: rank 1 issued it at train.py:30, ranks 0, 2 issued it at train.py:25, so a call was "
        "left out or added there"
    )
    seen[1].stacks = {}
    (mismatch,) = differing.known()
    assert mismatch.shifted is None


def test_the_first_pending_mismatch_is_told_though_later_ones_are_known(tmp_path: Path) -> None:
    made = job([EVEN, ODD, EVEN])
    for rank, fields in zip(made, (ODD, EVEN, ODD), strict=True):
        lines = (20, 30, 25) if rank.rank == 1 else (20, 25, 30)
        rank.stacks = {line: (f"/me/train.py:{line} main",) for line in lines}
        rank.collective(1, 320 * MS, 0, **_typed(fields))
        rank.stack(1, lines[1])
        rank.stack(2, lines[2])
    seen: list[Any] = feeds(made)
    for feed, rank in zip(seen, made, strict=True):
        feed.stacks = rank.stacks
    differing = MismatchTask(Log(tmp_path, quiet=True))
    for _ in range(3):
        differing.poll(seen, 0)
        for feed in seen:
            feed.records = feed.records[:0]
    hang = find_hang(
        [feed.state for feed in seen],
        {rank: HungProcess(1000 + rank, "running") for rank in range(3)},
        *(5 * SECOND, 10 * SECOND, ()),
        differing.known,
    )
    assert hang is not None
    assert hang.mismatch is not None
    assert (hang.mismatch.seq, hang.mismatch.told_ranks) == (0, (1,))
    assert {mismatch.seq for mismatch in differing.known()} == {0, 1}
    assert {mismatch.shifted for mismatch in differing.known()} == {None}


def test_dead_ranks_have_no_stacks_in_the_report_of_a_mismatch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks.py_spy, "dump", lambda pid: pytest.fail(f"read {pid}"))
    monkeypatch.setattr(tasks.py_spy, "find_py_spy", lambda: None)
    log = Log(tmp_path, quiet=True)
    differing = MismatchTask(log)
    seen = feeds(job([EVEN, ODD]))
    seen[0].process = seen[1].process = HungProcess(1000, DEAD)
    hangs = HangTask(tmp_path, Threshold(5.0), log, differing.known)
    for task in (differing, hangs):
        task.poll(seen, 10 * SECOND)
    assert not list(tmp_path.glob("hang_*"))


def test_lines_of_many_ranks_calls_are_made_once_for_each_stack() -> None:
    stacks = {number: (f"/me/{number}.py:7 f", "/me/many.py:20 <module>") for number in range(3)}
    lines = issue_lines.IssueLines()
    for rank in range(64):
        issued = Rank(rank, 64, dtypes=DTYPES)
        for seq in range(100):
            op_id = issued.collective(seq, seq, seq + 1, 8, dtype=1)
            issued.stack(op_id, seq % 3)
        (feed,) = feeds([issued])
        feed.stacks = stacks
        lines.take(feed)
    before = issue_lines.path_of.cache_info().misses
    paths = lines.of("0", 98, range(64))
    assert issue_lines.path_of.cache_info().misses - before <= len(stacks)
    assert {number: {*by_rank.values()} for number, by_rank in paths.items()} == {
        seq: {f"{seq % 3}.py:7 < many.py:20"} for seq in range(99)
    }


def test_a_rank_that_issues_the_first_differing_call_late_counts_too(tmp_path: Path) -> None:
    made = job([EVEN, EVEN, ODD, ODD])
    for rank, fields in zip(made, (ODD, ODD, EVEN, EVEN), strict=True):
        rank.collective(1, 320 * MS, 0, **_typed(fields))
    seen: list[Any] = feeds(made)
    differing = MismatchTask(Log(tmp_path, quiet=True))
    for _ in range(3):
        differing.poll(seen[:3], 0)
        for feed in seen[:3]:
            feed.records = feed.records[:0]
    assert [mismatch.told_ranks for mismatch in differing.known()] == [(2,), (2,)]
    differing.poll(seen[3:], 0)
    assert [mismatch.told_ranks for mismatch in differing.known()] == [(), ()]
    assert {len(mismatch.issue_ns) for mismatch in differing.known()} == {4}
