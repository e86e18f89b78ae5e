from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULE = Path(__file__).parents[3] / "commprof" / "capture" / "ending.py"
#: The script loads the module alone, because the package imports torch.
BEGIN = f"""
import atexit, importlib.util, sys, threading
spec = importlib.util.spec_from_file_location("ending", {str(MODULE)!r})
ending = importlib.util.module_from_spec(spec)
sys.modules["ending"] = ending
spec.loader.exec_module(ending)
atexit.register(lambda: print("at exit:", ending.unhandled()))
ending.watch_exits()
ending.watch_exits()
def leave(code):
    sys.exit(code)
def caught(code):
    try:
        leave(code)
    except SystemExit:
        pass
"""


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("leave(3)", 3, "SystemExit: 3"),
        ("leave('no data')", 1, "SystemExit: no data"),
        ("leave(0)", 0, ""),
        ("leave(None)", 0, ""),
        ("sys.exit()", 0, ""),
        (
            "try:\n    1 / 0\nexcept ZeroDivisionError:\n    leave(4)",
            4,
            "ZeroDivisionError: division",
        ),
        ("for _ in range(2):\n    caught(3)", 0, ""),
        ("caught(3)\nleave(5)", 5, "SystemExit: 5"),
        ("caught(3)\nleave(0)", 0, ""),
        ("caught(3)\n[][0]", 1, "IndexError: list index out of range"),
        ("t = threading.Thread(target=leave, args=(3,)); t.start(); t.join()", 0, ""),
    ],
)
def test_exit_handlers_see_the_exception_that_ended_the_script(
    script: str, code: int, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    line = done.stdout.removeprefix("at exit:").strip()
    assert line.startswith(said)
    assert bool(line) == bool(said)
