from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import faults as matrix
from benchmarks.judging import fault_rows, results_file
from tests.support.machines.faults.faults import Ended, Fault, Verdict, first_error
from tests.support.machines.faults.launcher_faults import Outcome
from tests.support.machines.forks import Forks


def names(only: str | None) -> list[str]:
    return [row.name for row in matrix.chosen(argparse.ArgumentParser(), only)]


def test_fault_names_are_unique() -> None:
    found = names(None)
    assert len(set(found)) == len(found) >= 24


def test_faults_are_selected_by_names_that_may_contain_a_comma() -> None:
    chosen = ["SIGKILL", "SIGSTOP, SIGCONT", "SIGKILL at any moment", "Ctrl-C at any moment"]
    assert names(",".join(chosen)) == chosen
    assert names("full disk, SIGKILL") == ["full disk", "SIGKILL"]


@pytest.mark.parametrize("only", ["SIGKIL", "SIGKILL,", "SIGKILL,full", "SIGKILL;full disk", ""])
def test_an_unknown_fault_name_is_refused_and_the_known_ones_are_listed(
    only: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        names(only)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "--only: no fault is named " in said
    assert all(name in said for name in names(None))


def counted() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in matrix.rows():
        tries = row.tries or 10
        found[row.name] = {"tries": tries, "yes": [tries] * len(row.asked)}
        if row.watched:
            found[row.name]["watched"] = 5
        if row.asked != fault_rows.ASKED:
            found[row.name]["asked"] = list(row.asked)
    return found


def missed(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {one.what: one.figure for one in matrix.demands(found) if not one.met}


def test_a_complete_fault_matrix_meets_all_demands() -> None:
    assert missed(counted()) == {}


def test_a_missing_or_untried_fault_fails_its_demands() -> None:
    names, found = len(matrix.rows()), counted()
    del found["SIGKILL"]
    found["full disk"] = {"tries": 0, "yes": [0, 0, 0], "why": "no file system can be mounted"}
    wrong = missed(found)
    assert wrong.pop("rows tried") == f"{names - 2} of {names}"
    (about_watchers,) = (what for what in wrong if "watchdog and live metrics" in what)
    watched = sum(row.watched for row in matrix.rows())
    assert wrong.pop(about_watchers) == f"{watched - 2} of {watched}"
    what = "full disk: training unharmed, records kept, cause named"
    assert wrong == {what: "not tried: no file system can be mounted"}


@pytest.mark.parametrize("name", ["SIGKILL", "10 million events"])
def test_one_failed_try_of_a_fault_fails_its_demand(name: str) -> None:
    found = counted()
    found[name]["yes"][-1] -= 1
    assert len(missed(found)) == 1


def test_too_few_fault_tries_with_watchers_fail_the_demand() -> None:
    found = counted()
    found["SIGKILL"]["watched"] = 4
    assert len(missed(found)) == 1


def test_only_many_events_and_damaged_directories_set_their_own_tries() -> None:
    own = {row.name: row.tries for row in matrix.rows() if row.tries}
    assert own == {"10 million events": 1, "damaged and hostile run directories": 500}


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[dict[str, Any], list[str]]]:
    monkeypatch.setattr(matrix, "Forks", nullcontext)
    for module in (matrix, results_file):
        monkeypatch.setattr(module, "about", lambda: {"git_commit": "abc"})
    file = tmp_path / "faults.json"

    def ran(
        *only: str, good: bool = True, fails: str = "", why: str = "", fresh: bool = False
    ) -> tuple[dict[str, Any], list[str]]:
        tried: list[str] = []

        def row(name: str) -> fault_rows.Row:
            def try_all(_: Forks, tries: int, __: int) -> Iterator[Outcome]:
                if name == fails:
                    raise KeyboardInterrupt
                tried.append(name)
                for _number in range(tries):
                    yield Outcome(good, True, True, "said")

            return fault_rows.Row(name, lambda: why, try_all)

        try:
            assert matrix.matrix([row(name) for name in only], 3, 0, file, fresh) == 1
        except KeyboardInterrupt:
            assert fails
        assert [path.name for path in tmp_path.iterdir()] == ["faults.json"]
        return json.loads(file.read_text()), tried

    return ran


def test_a_stopped_fault_matrix_keeps_finished_rows_and_resumes(run: Any) -> None:
    kept, tried = run("SIGKILL", "SIGSEGV", "exception", fails="exception")
    row = {"tries": 3, "yes": [3, 3, 3], "git_commit": "abc"}
    assert (kept["SIGKILL"], kept["SIGSEGV"]) == (row, row)
    kept, tried = run("SIGKILL", "SIGSEGV", "exception")
    assert tried == ["exception"]
    assert kept["SIGKILL"] == kept["exception"] == row
    kept, tried = run("SIGKILL", good=False, fresh=True)
    assert tried == ["SIGKILL"]
    assert kept["SIGKILL"]["yes"] == [0, 3, 3]
    assert kept["exception"] == row


def test_a_fault_that_cannot_be_tried_is_recorded_with_its_reason(run: Any) -> None:
    kept, tried = run("full disk", why="needs root")
    assert tried == []
    assert kept["full disk"] == {"tries": 0, "yes": [0, 0, 0], "why": "needs root"}
    kept, tried = run("full disk")
    assert tried == ["full disk"]
    kept, _ = run("full disk", why="needs root", fresh=True)
    assert kept["full disk"]["tries"] == 3


def test_a_fault_try_that_raises_counts_as_failed_in_every_respect() -> None:
    def try_once() -> Outcome:
        raise TimeoutError("process 7 ran on")

    found = fault_rows._guarded(try_once)
    assert isinstance(found, Outcome)
    assert (found.unharmed, found.records_kept, found.cause_named) == (False,) * 3
    assert "process 7 ran on" in found.complaint()


FAULT = Fault("SIGKILL", cause=r"process \d+ is gone")
ENDED = [Ended(1, "RuntimeError: gloo N", "", 20), Ended(-9, "", "", 20)]
GOOD = Verdict(
    name=FAULT.name,
    plain=ENDED,
    recorded=ENDED,
    kept=[20, 20],
    report="rank 1: its process 7\n  is gone",
    fault=FAULT,
    must_keep=[],
)


def judged(verdict: Verdict) -> tuple[bool, bool, bool]:
    return verdict.unharmed, verdict.records_kept, verdict.cause_named


def test_a_try_with_a_good_outcome_passes_in_every_respect() -> None:
    assert judged(GOOD) == (True, True, True)


def test_a_leftover_watcher_process_counts_as_harm() -> None:
    assert judged(replace(GOOD, left=[7])) == (False, True, True)


def test_lost_records_are_allowed_by_step_count_or_required_steps() -> None:
    less = replace(GOOD, kept=[20, 15])
    assert judged(less) == (True, False, True)
    assert judged(replace(less, fault=replace(FAULT, may_lose=5))) == (True, True, True)
    assert judged(replace(less, must_keep=[15, 15])) == (True, True, True)
    assert judged(replace(less, must_keep=[15, 16])) == (True, False, True)


@pytest.mark.parametrize("said", ["", "commprof: watchdog: rank 1 is gone\n"])
def test_the_first_error_is_that_of_the_script_and_not_of_a_watcher(said: str) -> None:
    stderr = f"Traceback (most recent call last):\n  File x\n{said}RuntimeError: gloo 7\n"
    assert first_error(said + stderr) == "RuntimeError: gloo N"
