from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

import commprof
from commprof import main_interpreter

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
        assert "this is a sub-interpreter: train and record in the main interpreter" in line


def test_the_interpreter_is_asked_once_although_every_step_looks_up_a_public_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert callable(commprof.step)
    asked: list[str] = []
    monkeypatch.setattr(main_interpreter.importlib, "import_module", _noting(asked))
    assert callable(commprof.step)
    assert not [name for name in asked if "interpreters" in name]


def _noting(asked: list[str]) -> Callable[[str], ModuleType]:
    original = importlib.import_module

    def noting(name: str) -> ModuleType:
        asked.append(name)
        return original(name)

    return noting
