from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import atexit, sys
from commprof.memory import end_without_collection

class Cycle:
    def __init__(self):
        self.me = self

    def __del__(self):
        print("collected")

atexit.register(print, "at exit")
if sys.argv[1] == "without":
    end_without_collection()
    end_without_collection()
Cycle()
print("ends", end="", file=open(sys.argv[2], "w"))
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("how", "printed"), [("with", "at exit\ncollected\n"), ("without", "at exit\n")]
)
def test_a_process_ends_without_a_collection_if_it_asks_for_that(
    how: str, printed: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", _PROGRAM, how, str(tmp_path / "file")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, printed, "")
    assert (tmp_path / "file").read_text() == "ends"
