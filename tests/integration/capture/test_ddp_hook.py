"""``commprof.attach``: each rank asserts, in ``tests/support/ranks/capture/ddp_hooks.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.machines.ranks import run_module

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("native", ["1", "0"])
def test_attach_keeps_its_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: str
) -> None:
    monkeypatch.setenv("COMMPROF_NATIVE", native)
    outputs = run_module("tests.support.ranks.capture.ddp_hooks", [str(tmp_path)], 2)
    for output in outputs:
        assert output.count("COMMPROF_NATIVE=0 is set") == (native == "0")
