from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commprof.commands import main
from commprof.forecast.costs.cost_model import OTHER_HOST, SAME_HOST
from commprof.forecast.costs.machine_profile import default_path, save_profile
from tests.support.builders.run_directories import ranks_of, write_run
from tests.support.builders.schedules import profile

OWN = "costs: the run's own collectives"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    monkeypatch.setenv("COLUMNS", "1000")
    return write_run(tmp_path / "run", ranks_of(2, 40))


def costs(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["predict", *arguments]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "; costs: " in line]
    return line.split("; ")[1]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"link": SAME_HOST, "backend": "nccl"}, "is of nccl, but the job used gloo"),
        ({"link": OTHER_HOST}, "has no costs within a host"),
    ],
)
def test_a_default_profile_of_another_backend_or_link_is_not_used(
    run: Path, capsys: pytest.CaptureFixture[str], values: dict[str, Any], reason: str
) -> None:
    save_profile(profile(**values), default_path())
    line = costs(capsys, str(run))
    assert line.startswith(OWN)
    assert f"{default_path()} {reason}" in line


def test_a_profile_is_named_with_what_it_was_fitted_to(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert costs(capsys, str(run)) == f"{OWN}."
    save_profile(profile(link=SAME_HOST), default_path())
    assert costs(capsys, str(run)).endswith(", fitted to 'by hand'.")


def test_a_profile_that_the_user_names_is_used_as_it_is(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chosen.json"
    save_profile(profile(link=SAME_HOST, backend="nccl"), path)
    line = costs(capsys, str(run), "--profile", str(path))
    assert line.startswith(f"costs: machine profile {path}, of ")


def test_backends_are_compared_without_their_devices() -> None:
    costs_of_nccl = profile(link=SAME_HOST, backend="cpu:gloo,cuda:nccl")
    assert costs_of_nccl.unlike(SAME_HOST, "nccl") == ""
    assert profile(link=SAME_HOST, backend="nccl").unlike(SAME_HOST, "cpu:gloo,cuda:nccl") == ""
    assert "the job used mpi" in costs_of_nccl.unlike(SAME_HOST, "mpi")
