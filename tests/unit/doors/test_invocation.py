"""Commands are printed as they can be typed where they are printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from commprof import invocation
from commprof.commands import main
from tests.support.builders.run_directories import ranks_of, write_run

OWN = Path(sys.executable).parent


def test_an_activated_environment_has_the_plain_names() -> None:
    assert invocation.command("report", "RUN") == "commprof report RUN"
    assert invocation.pip("yaml", "sklearn") == "pip install PyYAML scikit-learn"


def test_else_its_own_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir("/")
    assert invocation.command("top", "RUN", anywhere=True) == f"{OWN}/commprof top RUN"
    monkeypatch.chdir(OWN.parent)
    assert invocation.command("top", "RUN") == "bin/commprof top RUN"
    assert invocation.pip("py-spy") == "bin/python -m pip install py-spy"


def test_without_an_installation_python_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "a b" / "python"))
    assert invocation.command("top") == f"'{tmp_path}/a b/python' -m commprof top"


def test_the_hints_of_a_report_can_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    made = {"reproduction": {"directory": str(tmp_path), "git": {"unknown": "no git"}}}
    write_run(tmp_path / "a run", ranks_of(2, 5), **made)
    for rank in ranks_of(2, 5):
        (tmp_path / "a run/job_2").mkdir(exist_ok=True)
        rank.write(tmp_path / f"a run/job_2/rank_{rank.rank}.trace")
    config = "workload: mlp\nsteps: 5\nworld-sizes: 2\n"
    (tmp_path / "a run/config.yaml").write_text(config)
    assert main(["report", "a run"]) == 0
    said = capsys.readouterr().out
    again = re.findall(r"^Run it again: (.*?) \(in ", said, re.MULTILINE)
    other = re.findall(r"^Another job recorded here: (.*)$", said, re.MULTILINE)
    assert (len(again), len(other)) == (1, 1)
    environment = {**os.environ, "PATH": "/usr/bin:/bin"}
    for command in (f"{again[0]} --dry-run", other[0]):
        done = subprocess.run(
            shlex.split(command), cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    with pytest.raises(SystemExit):
        main(["report", "--nosuch", "x"])
    hint = re.search(r"\(see (.*) --help\)", capsys.readouterr().err)
    assert hint is not None
    done = subprocess.run([*shlex.split(hint[1]), "--help"], env=environment, capture_output=True)
    assert done.returncode == 0
