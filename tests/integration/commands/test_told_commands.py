from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from commprof import invocation
from commprof.commands import main, make_parser
from commprof.forecast.costs.machine_profile import default_path
from tests.support.builders.shown_scene import write_profile, write_scene
from tests.support.machines.shown import only_reads, read_in_scene, shown_lines

WORKLOAD = (
    "timed:layers=4,data_ms=0,forward_ms=1,backward_ms=2,gradient_mb=0.1/0.4/0.2/0.8,"
    "bucket_cap_mb=0.01"
)
#: The PATH is that of a shell without an active virtual environment.
BARE = {**os.environ, "PATH": "/usr/bin:/bin", "COLUMNS": "1000"}
PROGRAM = Path(sys.executable).parent / "commprof"


def typed(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], cwd=directory, env=BARE, capture_output=True, text=True, timeout=90
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("a job's")
    write_scene(here)
    return here


@pytest.fixture(scope="module")
def said(directory: Path) -> str:
    words = f"--world-sizes 2 --steps 24 --workload {WORKLOAD} --overhead-steps 0"
    done = typed(f"{PROGRAM} run {words} --output 'my run'", directory)
    assert done.returncode == 0, done.stderr
    for name in ("RUN", "RUN_WITH_HOOK", "DIR", "run1", "commprof-trace"):
        shutil.copytree(directory / "my run", directory / name)
    shutil.copy(directory / "RUN/result.json", directory)
    return done.stdout


@pytest.fixture
def here(
    said: str, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    monkeypatch.chdir(directory)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "1000")
    return directory


@pytest.mark.parametrize("hint", ["See everything: ", "Page with pictures: "])
def test_the_last_lines_of_a_run_can_be_typed(hint: str, said: str, directory: Path) -> None:
    (command,) = re.findall(f"^{hint}(.*)$", said, re.MULTILINE)
    done = typed(command, directory)
    assert done.returncode == 0, done.stderr
    assert hint.startswith("Page") or said.splitlines()[0] in done.stdout


@pytest.mark.parametrize(
    "hint", ["Run it again: ", "Profile your own script, for example train.py: "]
)
def test_runs_that_the_last_lines_tell_are_planned(hint: str, said: str, here: Path) -> None:
    (command,) = re.findall(f"^{hint}(.*)$", said, re.MULTILINE)
    program, *words = shlex.split(command)
    assert program == str(PROGRAM)
    assert main([words[0], "--dry-run", *words[1:]]) == 0


def test_the_output_of_a_run_fits_one_screen_followed_by_commands(said: str) -> None:
    card, _, hints = said.partition("\n\nRun directory: ")
    assert len(card.splitlines()) <= 24
    assert max(map(len, card.splitlines()[:-2])) <= 80
    assert "Exposed communication: " in card
    assert len(hints.splitlines()) == 5


@pytest.mark.parametrize("line", [line for line in shown_lines() if only_reads(line)])
def test_reading_commands_shown_in_pages_and_help_succeed(
    line: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if "--hook" in line:
        write_profile(default_path())
    assert read_in_scene(line, here), f"{line}\n{capfd.readouterr().err}"


@dataclass(frozen=True)
class Told:
    site: str
    given: str
    said: str
    code: int = 0


OPTIMIZE = "predict RUN --optimize bucket-cap,hook"
STRONG = "predict RUN --scaling strong --world-size 1"
NO_PREDICTIONS = "report RUN --format html --predictions EMPTY.json"
BATCH = "launch-files --target slurm --nodes 1 --nproc-per-node 2 --output /shared/run1 train.py"
ONE_WITH = r"one with (commprof .*)"
TOLD = (
    Told("report, run, '--all'", "report ONE", r"^  (commprof report .*)"),
    Told("report, run, *more", "report ONE", r"^  (commprof report .*)"),
    Told("report, run.directory.quoted, '--all'", "report STRATEGIES", r"(commprof .* --all)$"),
    Told("report, place.quoted", "report STRATEGIES --all", r"ddp's own report: (.*)"),
    Told("report, run.quoted", "compare TRIAL RUN", r": (commprof report TRIAL) compares", 2),
    Told(
        "report, args.run.quoted, '--format', 'html'",
        "predict RUN",
        r"in a report, run: (commprof .*)",
    ),
    Told("report, job.directory.quoted", BATCH, r"Report: (commprof report /shared/run1)"),
    Told("predict, found.directory.quoted, *options", "report FSDP_RUN", r"^  (commprof .*)"),
    Told("predict, 'RUN', '--format', 'json'", NO_PREDICTIONS, r"file with (commprof .*)", 1),
    Told("predict, 'RUN'", "run --world-sizes 2 --check-prediction ONE", r"run (comm.+) with", 1),
    Told("check", "report UNSEEN", r"^  (commprof check)$"),
    Told("run, *self._quoted", "report WIRE_BOUND", r"^  (commprof run .*--trial .*)"),
    Told("run, '--world-sizes', '2', '--hook', label.quoted", OPTIMIZE, r"both runs: (.*?), then"),
    Told("run, '--world-sizes', '1,2', '--scaling', 'strong'", STRONG, r"two: (.*)", 1),
    Told("run, '--world-sizes', str(world_size or 2)", "predict ONE", r"with (commprof .*)", 1),
    Told("run, '--world-sizes', '1,2,4'", "predict RUN", r"no Amdahl fit: .* with (.*)\."),
    Told("fit, 'RUN', 'RUN_WITH_HOOK'", OPTIMIZE, r"then (commprof fit RUN RUN_WITH_HOOK)\."),
    Told(
        "microbench, op, '-b', '1K', '-e', '64M', '-f', '4'",
        "fit ONE_SIZE.json",
        r"sizes or more: (commprof .*)",
        1,
    ),
    Told("microbench, 'all_reduce', '--json', 'FILE'", "fit ONE", r"command writes: ([^;]*)", 1),
    Told("microbench, 'OP', '--json', 'FILE'", "fit EMPTY.json", ONE_WITH, 2),
    Told("microbench, 'OP', '--json', 'FILE'", "compare EMPTY.json A.json", ONE_WITH, 2),
    Told("launch-files, '--help'", "launch-files --target slurm", r"; (.*) shows examples", 2),
    Told("*rest.split()", "report --nosuch x", r"\(see (.* --help)\)$", 2),
)
LAST_LINES = "test_the_last_lines_of_a_run_can_be_typed"
PLANNED = "test_runs_that_the_last_lines_tell_are_planned"
ELSEWHERE = {
    "microbench, op, '--json', 'FILE'": "tests/unit/forecast/predict/test_cost_fit.py",
    "*words, '--format', 'html'": LAST_LINES,
    "*words, '--all'": LAST_LINES,
    "run, '--nproc', str(args.nproc or 2), 'train.py'": PLANNED,
    "run, '--config', given.quoted": PLANNED,
    "report, job.quoted": "tests/unit/entry_points/test_invocation.py",
    "report, directory": "tests/integration/capture/test_env.py",
    "report, directory.quoted": "tests/integration/capture/test_train_apart.py",
    "env, '--output', 'DIR', '--', 'COMMAND'": "tests/integration/tune/trials/test_trial_advice.py",
    "top, directory.quoted": "tests/integration/faults/test_live_run.py",
}


def ended(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize("told", TOLD, ids=lambda told: told.site)
def test_commands_suggested_by_outputs_are_accepted(
    told: Told, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = ended(shlex.split(told.given))
    out = "".join(capfd.readouterr())
    found = re.search(told.said, out, re.MULTILINE)
    assert found is not None, out
    assert code == told.code, out
    words = [word.removeprefix("/shared/") for word in shlex.split(found[1])[1:]]
    if words[0] == "run":
        new = ["RUN_NEW" if word == "RUN_WITH_HOOK" else word for word in words[1:]]
        words = [words[0], "--dry-run", *new]
    if words[0] in ("microbench", "check"):
        make_parser().parse_args(["all_reduce" if word == "OP" else word for word in words])
    else:
        assert ended(words) == 0, capfd.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "report nosuch",
            "nosuch does not exist; give a directory that commprof recorded into, or",
        ),
        ("report train.py", "train.py holds no recording; give a directory that commprof recorded"),
        ("report broken.tar.gz", "commprof: broken.tar.gz cannot be read: its compressed data is"),
        ("compare RUN train.py", "give two run directories, two recordings of torch.profiler, two"),
        ("compare train.py train.py", "train.py is not a microbenchmark result (not a JSON file: "),
        ("predict RUN --from-world-size 7", "record one with commprof run --world-sizes 7"),
        ("predict RUN --profile no.json", "machine profile no.json cannot be read: No such file"),
        ("fit traces", "; left out: traces (2 ranks): "),
        (
            "fit nosuch",
            "give the JSON of a microbenchmark, an output of nccl-tests, logs of NCCL Inspector, "
            "or a run",
        ),
        ("trace RUN --merge no.json", "no.json cannot be read: No such file or directory\n"),
        (
            "run --nproc 100000 train.py",
            "100000 ranks on this machine need at least 4000.0 GB of memory",
        ),
        ("check --nproc 100000", "GB are free; start fewer ranks (--nproc, --world-sizes)"),
        ("microbench all_reduce --nproc 0", "all_reduce needs 1 rank or more, not 0; raise"),
    ],
)
def test_wrong_arguments_give_one_line_of_error(
    given: str, said: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "broken.tar.gz").write_bytes(b"\x1f\x8b12345")
    assert ended(shlex.split(given)) in (1, 2)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert said in err


def site_of(call: ast.Call) -> str:
    """Returns a call's arguments as text, with `.quoted` after names quoted for a shell."""
    words = ", ".join(map(ast.unparse, call.args))
    words = re.sub(r"(?:invocation\.quoted|shlex\.quote)\(([\w.]+)\)", r"\1.quoted", words)
    return re.sub(r"^'([\w-]+)'", r"\1", words)


def test_every_suggested_command_has_a_test() -> None:
    made = {
        site_of(node)
        for file in Path(invocation.__file__).parent.rglob("*.py")
        if "invocation.command" in (text := file.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "invocation.command"
    }
    assert made <= {told.site for told in TOLD} | ELSEWHERE.keys()
    assert ELSEWHERE.keys() <= made
    there = Path(__file__).parents[3]
    assert all(name in globals() or (there / name).is_file() for name in ELSEWHERE.values())
