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
    """Gives variable ``name`` the value ``value``, or each rank's own number for None."""
    found = []
    for rank in range(ranks):
        os.environ[name] = str(rank) if value is None else value
        found += [rank] * is_chosen(job, "monitor")
    del os.environ[name]
    return found


@pytest.mark.parametrize("name", NAMES[:3])
def test_the_rank_with_local_rank_0_is_chosen(name: str, tmp_path: Path) -> None:
    assert chosen(tmp_path, name, 3) == [0]


@pytest.mark.parametrize("name", NAMES[1:3])
def test_one_of_several_ranks_with_the_same_task_number_is_chosen(
    name: str, tmp_path: Path
) -> None:
    assert chosen(tmp_path, name, 3, "0") == [0]


@pytest.mark.parametrize("own", ["-1", "", " "])
def test_one_rank_is_chosen_if_the_local_rank_is_unusable(own: str, tmp_path: Path) -> None:
    assert chosen(tmp_path, "LOCAL_RANK", 3, own) == [0]


def test_without_local_ranks_the_first_rank_to_ask_is_chosen(
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


def test_one_rank_of_a_host_starts_the_requested_watchdog(
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


def test_monitor_processes_get_no_rank_or_recording_variables(
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
