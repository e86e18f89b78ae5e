"""One monitor and one watchdog per host, however the ranks were launched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commprof import variables
from commprof.capture import boot
from commprof.monitor.one_per_host import is_chosen, outside_environment
from commprof.monitor.watchdog import start

NAMES = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, variables.WATCHDOG):
        monkeypatch.delenv(name, raising=False)


def chosen(job: Path, name: str, ranks: int, value: str | None = None) -> list[int]:
    """Returns the ranks that start a monitor; the variable is ``value``, or each rank's number."""
    found = []
    for rank in range(ranks):
        os.environ[name] = str(rank) if value is None else value
        found += [rank] * is_chosen(job, "monitor")
    del os.environ[name]
    return found


@pytest.mark.parametrize("name", NAMES[:3])
def test_the_launcher_numbers_the_ranks_of_a_host(name: str, tmp_path: Path) -> None:
    assert chosen(tmp_path, name, 3) == [0]


@pytest.mark.parametrize("name", NAMES[1:3])
def test_ranks_spawned_by_one_task_all_have_its_number(name: str, tmp_path: Path) -> None:
    assert chosen(tmp_path, name, 3, "0") == [0]


@pytest.mark.parametrize("own", ["-1", "", " "])
def test_a_script_that_was_started_alone_has_no_number(own: str, tmp_path: Path) -> None:
    assert chosen(tmp_path, "LOCAL_RANK", 3, own) == [0]


def test_where_nothing_numbers_them_the_first_is_the_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [is_chosen(tmp_path, "monitor") for _ in range(3)] == [True, False, False]
    assert [is_chosen(tmp_path, "watchdog") for _ in range(3)] == [True, False, False]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert [is_chosen(tmp_path, "monitor") for _ in range(2)] == [True, False]
    monkeypatch.setattr("socket.gethostname", lambda: "../other")
    assert [is_chosen(tmp_path, "monitor") for _ in range(2)] == [True, False]
    assert len(list(tmp_path.iterdir())) == 4
    assert not is_chosen(tmp_path / "gone", "monitor")


def test_one_rank_of_a_host_starts_the_watchdog_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(start, "start_detached", lambda _, threshold: asked.append(threshold))
    start.watch_as_asked(tmp_path, "")
    assert asked == []
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        start.watch_as_asked(tmp_path, "60")
    assert asked == ["60"]


def test_a_process_beside_the_job_is_no_rank_and_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = Path(boot.__file__).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(entry), "/mine"]))
    for name in ("COMMPROF_OUT", "RANK", "LOCAL_RANK", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "1")
    found = outside_environment()
    package = str(Path(boot.__file__).parents[3])
    assert found["PYTHONPATH"].split(os.pathsep) == [package, "/mine"]
    assert not {"COMMPROF_OUT", "RANK", "LOCAL_RANK", "OMP_WAIT_POLICY"} & set(found)
    assert found["OMP_NUM_THREADS"] == "1"
