from __future__ import annotations

import os
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import commprof
from commprof.commands import homes, main, make_parser
from tests.support.builders.run_directories import ranks_of, write_run
from tests.support.machines.commands import call


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run --nprc 2", "commprof run: unrecognized arguments: --nprc; did you mean --nproc? "),
        (
            "predict run --world-sise=3",
            "unrecognized arguments: --world-sise=3; did you mean --world-size? ",
        ),
        ("report --zzzz x", "commprof report: unrecognized arguments: --zzzz (see "),
        (
            "raport RUN",
            "commprof: argument COMMAND: unknown value 'raport' (allowed: run, env, wrap, top, ",
        ),
        ("raport RUN", "; did you mean 'report'? (see "),
        ("report RUN --format jsonn", "did you mean 'json'? (see "),
        ("run --nproc two", "commprof run: argument --nproc: 'two' is not a whole number (see "),
        ("report RUN --price-per-hour x", "argument --price-per-hour: 'x' is not a number (see "),
        ("check --nproc 2 extra", "commprof check: unrecognized arguments: extra (see "),
    ],
)
def test_a_wrong_word_is_refused_with_the_nearest_known_one(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(line.split())
    assert ended.value.code == 2
    written = capsys.readouterr().err
    assert said in written
    assert written.count("\n") == 1


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in homes())
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"commprof {commprof.__version__}\n"
    assert version("commprof") == commprof.__version__


def test_a_report_works_with_closed_standard_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run", ranks_of(2, 9))
    with monkeypatch.context() as closed:
        for name in ("stdin", "stdout", "stderr"):
            closed.setattr(sys, name, None)  # Python sets a closed stream to None.
        assert main(["report", str(run), "--all"]) == 0
        for opened in (sys.stdin, sys.stdout, sys.stderr):
            assert opened.name == os.devnull
            opened.close()


@pytest.mark.parametrize("command", ["report", "compare", "trace", "top --once", "chakra"])
def test_commands_report_a_path_that_does_not_exist(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "nothing")
    words = [*command.split(), missing]
    words += [missing] if command == "compare" else []
    words += ["--output", str(tmp_path / "out")] if command == "chakra" else []
    assert main(words) in (1, 2)
    assert f"{missing} does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("commprof.wrap nosuch.py", "no script 'nosuch.py'; for a module, put -m before it"),
        ("commprof.wrap -m nosuch.train", "no module 'nosuch.train' is found from "),
        ("commprof.wrap -m .x", "no module '.x' is found from "),
        ("commprof wrap nosuch.py", "no script 'nosuch.py'; for a module, put -m before it"),
        ("commprof wrap", "name a script, or a module after -m"),
        ("commprof run -m nosuch.train --lr 1", "no module 'nosuch.train' is found from "),
    ],
)
def test_a_missing_script_or_module_is_refused_in_one_line(words: str, said: str) -> None:
    done = call("-m", *words.split())
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_wrap_runs_the_script_as_main_with_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "said.py"
    script.write_text("import sys; print(sys.argv[1:], __name__); sys.exit(7)")
    done = call("-m", "commprof", "wrap", str(script), "-m", "--lr", "1")
    assert (done.returncode, done.stdout) == (7, "['-m', '--lr', '1'] __main__\n")


def test_the_help_of_run_is_short_and_refers_to_help_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = {}
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as ended:
            main(["run", option])
        assert ended.value.code == 0
        shown[option] = capsys.readouterr().out
    short, everything = shown["--help"], shown["--help-all"]
    assert short.count("\n") < 80
    options = {
        text: set(re.findall(r"(?m)^  (?:-\w, )?(--[\w-]+)", text)) for text in (short, everything)
    }
    assert {"--nproc", "--trial", "--output"} <= options[short] < options[everything]
    more = len(options[everything]) - len(options[short])
    assert short.endswith(f"{more} more options: --help-all\n")
    assert "more options" not in everything
    for group in ("what runs:", "training:", "where the job runs, and what is recorded:"):
        assert f"\n{group}\n" in everything


def test_wrap_has_a_help() -> None:
    done = call("-m", "commprof.wrap", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: torchrun -m commprof.wrap ")


_READS = """
import sys
from commprof.commands import main
def loaded(*names):
    return [name for name in names if name in sys.modules]
try:
    main(["--help"])
except SystemExit:
    pass
assert not loaded("torch", "numpy", "tabulate", "yaml"), loaded("torch", "numpy")
run, out = sys.argv[1:]
for words in (
    ["report", run], ["report", run, "--format", "json", "-o", out + ".json"],
    ["audit", out + ".json"], ["compare", run, run], ["top", run, "--once"],
    ["trace", run, "-o", out + ".trace"],
):
    assert main(words) in (0, 1, 2), words
    assert not loaded("torch"), words
"""


def test_reading_a_run_loads_no_torch(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ranks_of(2, 20))
    done = call("-c", _READS, str(run), str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr


def test_a_missing_package_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError('x', name='numpy')\n")
    done = call("-m", "commprof", "report", str(tmp_path), PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert f"the package numpy is not installed for {sys.executable}: " in done.stderr
    assert "pip install numpy" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_path_without_permission_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(_: Path) -> bool:
        raise PermissionError(13, "Permission denied", "private/run")

    monkeypatch.setattr(Path, "is_dir", refused)
    assert main(["compare", "private/run", "other"]) == 2
    assert capsys.readouterr().err == (
        "commprof: no permission to use private/run; change its permissions, or name another path\n"
    )
