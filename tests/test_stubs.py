"""The committed type stub is the one that the built module generates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commprof import _native

ROOT = Path(__file__).parent.parent


def test_stub_is_what_the_built_module_generates(tmp_path: Path) -> None:
    if _native.native_error is not None and os.environ.get("COMMPROF_REQUIRE_NATIVE") != "1":
        pytest.skip(_native.native_error)
    generated = tmp_path / "_C.pyi"
    subprocess.run([sys.executable, ROOT / "tools" / "make_stubs.py", generated], check=True)
    committed = ROOT / "commprof" / "_C.pyi"
    assert committed.read_text() == generated.read_text(), "out of date: run `make stubs`"
