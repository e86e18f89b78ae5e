from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from commprof.analysis.sweeps.sweep_file import write_sweep
from commprof.commands import main
from commprof.commands.options.output_file import (
    writable_file,
    writable_output,
    write_output,
)
from commprof.errors import CommprofError
from commprof.forecast.commands.microbench import show_measured
from commprof.forecast.costs.machine_profile import MachineProfile, load_profile, save_profile
from commprof.forecast.microbench.plan import BenchPlan
from commprof.forecast.what_if.chakra import export
from commprof.invocation import quoted
from commprof.launch.run_files import keep_text
from tests.support.builders.run_directories import ranks_of, write_run
from tests.support.builders.sweeps import row, sweep_result
from tests.support.builders.traces import world_run
from tests.unit.forecast.predict.test_schedule import rank_of

NAMES = ("a b", "a\nb", "it's \x1b[2J", "\udcff")


def as_a_shell_reads(text: str) -> bytes:
    done = subprocess.run(["bash", "-c", f"printf %s {text}"], capture_output=True, check=True)
    return done.stdout


def chakra(path: Path) -> None:
    export(world_run([rank_of(0)]), path)


def launch_files(file: Path) -> int:
    words = ["launch-files", "--target", "slurm", "--nodes", "1", "--nproc-per-node", "2"]
    return main([*words, "--output", "/shared", "-o", str(file), "train.py"])


#: Maps a case to a failing call, the file that the error names, and the words before the name.
#: An empty file name stands for the directory itself.
REFUSED: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "report_file": (lambda path: writable_output(path, force=False), "", ""),
    "report_file, there": (lambda path: writable_output(path / "f", force=False), "f", ""),
    "report_file, no place": (lambda path: writable_output(path / "n/f", force=False), "n", ""),
    "report_file, written": (lambda path: write_output(path, "text"), "", "cannot write "),
    "output_file": (writable_file, "", "cannot write --json "),
    "profile, written": (lambda p: save_profile(MachineProfile({}), p), "", "cannot write "),
    "profile, read": (load_profile, "", "machine profile "),
    "chakra, there": (lambda path: chakra(path / "f"), "f", ""),
    "chakra, no place": (lambda path: chakra(path / "f" / "d"), "f/d", "cannot write to "),
}


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("what", REFUSED)
def test_an_error_quotes_the_path_for_a_shell(what: str, name: str, tmp_path: Path) -> None:
    refuse, named, before = REFUSED[what]
    directory = tmp_path / name
    directory.mkdir()
    (directory / "f").touch()
    with pytest.raises(CommprofError) as caught:
        refuse(directory)
    said = str(caught.value)
    shown = quoted(directory / named)
    assert said.startswith(before + shown)
    assert said.isprintable()
    assert as_a_shell_reads(shown) == os.fsencode(directory / named)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_line_of_output_quotes_the_path_for_a_shell(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, fitted = tmp_path / name, tmp_path / f"{name}.fitted"
    plan = BenchPlan(("all_reduce",), (2,), (8,), str(kept))
    show_measured(lambda: write_sweep(kept, sweep_result(row())), plan, kept)
    assert capsys.readouterr().out.splitlines()[-1] == f"# JSON: {quoted(kept)}"
    run = write_run(tmp_path / "run", ranks_of(2, 9))
    assert main(["fit", str(run), "--output", str(fitted)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"Machine profile: {quoted(fitted)}"
    files = tmp_path / f"{name}.et"
    assert main(["chakra", str(run), "--output", str(files)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        quoted(files / f"commprof.{rank}.et") for rank in range(2)
    ]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_messages_on_stderr_quote_the_path_for_a_shell(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    assert launch_files(file) == 0
    assert capsys.readouterr().err == (
        f"Written: {quoted(file)}\n"
        "commprof: the script 'train.py' is not on this machine; the job's machines must have it\n"
    )
    assert launch_files(file) == 2
    assert capsys.readouterr().err.startswith(f"commprof: -o {quoted(file)} exists already; ")
    assert launch_files(tmp_path) == 2
    assert launch_files(file / "f") == 2
    assert f"commprof: cannot write -o {quoted(file / 'f')}: " in capsys.readouterr().err
    assert not keep_text(file / "f", "text")
    assert capsys.readouterr().err.startswith(f"commprof: cannot write {quoted(file / 'f')}: ")
