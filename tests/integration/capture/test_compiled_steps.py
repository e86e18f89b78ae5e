"""A compiled model and optimizer compile to the same graphs with recording on as without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commprof import _native
from tests.support.machines.ranks import run_module

pytestmark = pytest.mark.skipif(_native.native is None, reason="needs the C++ module")


def counted(directory: Path, *recorded: str) -> dict[str, list[dict[str, Any]]]:
    (out,) = run_module(
        "tests.support.ranks.capture.compiled_steps", [str(directory), *recorded], 1
    )
    found: dict[str, list[dict[str, Any]]] = json.loads(out.splitlines()[-1])
    return found


def test_recording_adds_no_graph_and_no_break(tmp_path: Path) -> None:
    plain, recorded = counted(tmp_path), counted(tmp_path, "yes")
    for backend, (during, after) in recorded.items():
        expected, unchanged = plain[backend]
        assert expected == unchanged  # all was compiled in the first steps
        assert expected["stats"]["unique_graphs"] >= 1
        for kind in ("stats", "graph_break", "unimplemented"):
            assert during[kind] == expected[kind], backend
        assert during["frames"]["total"] <= expected["frames"]["total"]
        assert after == during  # nothing compiles again when recording ends
