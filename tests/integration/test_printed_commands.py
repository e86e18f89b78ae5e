"""Commands that a run and refusals print are executed as they were printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TIMED = "timed:layers=1,data_ms=0,forward_ms=1,backward_ms=1,gradient_mb=0.001"
#: No environment is activated.
BARE = {**os.environ, "PATH": "/usr/bin:/bin", "COLUMNS": "1000"}
PROGRAM = Path(sys.executable).parent / "commprof"


def typed(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """A line at a shell."""
    return subprocess.run(
        ["bash", "-c", command], cwd=directory, env=BARE, capture_output=True, text=True, timeout=90
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("a job's")


@pytest.fixture(scope="module")
def said(directory: Path) -> str:
    """What a run of one rank printed."""
    words = f"--nproc 1 --steps 8 --workload {TIMED} --overhead-steps 0 --output 'my run'"
    done = typed(f"{PROGRAM} run {words}", directory)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("hint", ["See everything: ", "Page with pictures: ", "Run it again: "])
def test_the_last_lines_of_a_run_can_be_typed(hint: str, said: str, directory: Path) -> None:
    (command,) = re.findall(f"^{hint}(.*)$", said, re.MULTILINE)
    done = typed(command, directory)
    assert done.returncode == 0, done.stderr
    assert hint.startswith("Page") or said.splitlines()[0] in done.stdout


def test_a_run_prints_one_screen_and_what_to_type(said: str) -> None:
    card, _, hints = said.partition("\n\nRun directory: ")
    assert len(card.splitlines()) <= 24
    assert max(map(len, card.splitlines()[:-2])) <= 80
    assert "Exposed communication: none." in card
    assert len(hints.splitlines()) == 5


@pytest.mark.parametrize(
    ("given", "code", "hint"),
    [
        ("predict 'my run'", 1, r"record one with (.* --world-sizes 2)$"),
        ("report --nosuch x", 2, r"\(see (.* --help)\)$"),
        ("launch-files --target slurm", 2, r"missing; (.* --help) has an example$"),
    ],
)
def test_what_a_refusal_says_to_type_is_taken(
    given: str, code: int, hint: str, said: str, directory: Path
) -> None:
    assert said
    refused = typed(f"{PROGRAM} {given}", directory)
    assert refused.returncode == code
    found = re.search(hint, refused.stderr, re.MULTILINE)
    assert found is not None, refused.stderr
    rest = "" if found[1].endswith("--help") else " --dry-run"
    done = typed(found[1] + rest, directory)
    assert done.returncode == 0, done.stderr
    assert done.stdout
