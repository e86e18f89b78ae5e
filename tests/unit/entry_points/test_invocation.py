from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commprof import invocation
from commprof.commands import main
from tests.support.builders.run_directories import ranks_of, write_run

OWN = Path(sys.executable).parent


def test_commands_have_plain_names_in_an_activated_environment() -> None:
    assert invocation.command("report", "RUN") == "commprof report RUN"
    assert invocation.pip("yaml", "sklearn") == "pip install PyYAML scikit-learn"


def test_commands_are_given_by_path_outside_an_activated_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir("/")
    assert invocation.command("top", "RUN", anywhere=True) == f"{OWN}/commprof top RUN"
    monkeypatch.chdir(OWN.parent)
    assert invocation.command("top", "RUN") == "bin/commprof top RUN"
    assert invocation.pip("py-spy") == "bin/python -m pip install py-spy"


def test_a_module_is_started_by_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    assert invocation.module("commprof.monitor.watchdog") == "python -m commprof.monitor.watchdog"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(OWN.parent)
    assert (
        invocation.module("commprof.monitor.watchdog") == "bin/python -m commprof.monitor.watchdog"
    )


def test_commands_in_help_texts_take_the_form_that_works_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = 'The commprof of old.\n  commprof top RUN\n  eval "$(commprof env)"\n  sh commprof x\n'
    assert invocation.examples(text) == text
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(OWN.parent)
    assert invocation.examples(text) == (
        "The commprof of old.\n  bin/commprof top RUN\n"
        '  eval "$(bin/commprof env)"\n  sh commprof x\n'
    )


def test_commands_start_with_python_m_without_an_installed_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "a b" / "python"))
    assert invocation.command("top") == f"'{tmp_path}/a b/python' -m commprof top"


def test_commands_in_the_hints_of_a_report_can_be_run(
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
    assert main(["report", "a run", "--all"]) == 0
    said = capsys.readouterr().out
    again = re.findall(r"^Run it again: (.*?) \(in ", said, re.MULTILINE)
    other = re.findall(r"^Another job in this directory: (.*)$", said, re.MULTILINE)
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


PACKAGE = Path(invocation.__file__).parent
#: Only ``invocation.py`` may write commands in these forms.
LITERAL = re.compile(r"python3? -m \.?(commprof|pip)|pip install|\.venv/")


def shown_strings(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    own = [
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node) is not None
        and isinstance(node.body[0], ast.Expr)
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in own:
            yield node.value


def test_no_other_module_spells_out_a_command() -> None:
    found = {
        (file.relative_to(PACKAGE).as_posix(), text)
        for file in PACKAGE.rglob("*.py")
        if file.name not in ("invocation.py", "_native.py")  # _native.py names pip's options.
        for text in shown_strings(file.read_text())
        if LITERAL.search(text)
    }
    assert found == set()
    sources = [*PACKAGE.parent.glob("csrc/**/*.cpp"), *PACKAGE.parent.glob("csrc/**/*.h")]
    assert sources
    assert [file for file in sources if "-m commprof" in file.read_text()] == []


def test_quoted_paths_with_unprintable_bytes_can_be_pasted_into_a_shell() -> None:
    assert invocation.quoted(Path("/a b/run")) == "'/a b/run'"
    for name in ("/tmp/\udcff", "/tmp/it's\n\\\udce4"):
        shown = invocation.quoted(name)
        assert shown.isascii()
        assert shown.isprintable()
        typed = subprocess.run(["bash", "-c", f"printf %s {shown}"], capture_output=True)
        assert typed.stdout == os.fsencode(name)
