"""In a sub-interpreter commprof can be imported; recording is refused before torch is imported."""

from __future__ import annotations

import subprocess
import sys

IN_SUB_INTERPRETER = """
import importlib, sys
try:
    interpreters = importlib.import_module("_interpreters")
except ImportError:
    interpreters = importlib.import_module("_xxsubinterpreters")
made = interpreters.create()
code = '''
import sys
import commprof
print(commprof.__version__)
for name in ("profile", "attach", "trial"):
    try:
        getattr(commprof, name)
    except Exception as error:
        print(name, type(error).__name__, error)
print("torch" in sys.modules)
'''
interpreters.run_string(made[0] if isinstance(made, tuple) else made, code)
"""


def test_recording_in_a_sub_interpreter_is_refused_in_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_SUB_INTERPRETER], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    version, *refused, has_torch = done.stdout.splitlines()
    assert version
    assert has_torch == "False"
    for name, line in zip(("profile", "attach", "trial"), refused, strict=True):
        assert line.startswith(f"{name} CommprofError commprof.{name} needs torch")
        assert "this is a sub-interpreter: train and record in the main one" in line
