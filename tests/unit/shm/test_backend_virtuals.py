"""What the backend `commprof` does with each virtual function of c10d's Backend."""

from __future__ import annotations

import re
from pathlib import Path

import torch

_HEADERS = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d"
_OWN = Path(__file__).parents[3] / "csrc/torch/shm"

#: Not handed on to gloo, and why. A function of neither this list nor our headers is new.
LEFT = {
    "supportsSplitting": "a split would be gloo alone: false, and new_group() makes a commprof one",
    "split": "see supportsSplitting",
    "merge": "a merged group would be gloo alone",
    "supportsShrinking": "gloo cannot: false",
    "shrink": "gloo cannot: c10d's error",
    "suspend": "gloo cannot: c10d's error; not in torch 2.10",
    "resume": "gloo cannot: c10d's error; not in torch 2.10",
    "getMemoryStats": "gloo cannot: c10d's error; not in torch 2.10",
}


def test_every_virtual_is_handed_on_or_left_for_a_reason() -> None:
    functions = set(re.findall(r"virtual\s[^;{]*?\b(\w+)\(", _text(_HEADERS / "Backend.hpp")))
    ours = set()
    for header in ("wrapping_backend.h", "threaded_backend.h"):
        ours |= _overridden(_OWN / header)
    assert len(functions) > 45
    assert "allreduce" in functions
    assert functions - ours - {"Backend"} == set(LEFT) & functions
    assert not set(LEFT) & ours


def test_nothing_is_left_that_gloo_does() -> None:
    gloo = _overridden(_HEADERS / "ProcessGroupGloo.hpp")
    assert {"allreduce", "split"} <= gloo
    assert {name for name in LEFT if name in gloo} == {"supportsSplitting", "split", "merge"}


def _overridden(header: Path) -> set[str]:
    return set(
        re.findall(r"(\w+)\((?:[^(){};]|\([^()]*\))*\)\s*(?:const\s*)?override", _text(header))
    )


def _text(header: Path) -> str:
    return re.sub(r"//[^\n]*", "", header.read_text())
