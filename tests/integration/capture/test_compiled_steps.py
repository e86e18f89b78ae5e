from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from commprof import _native
from commprof.trace.codes import OPS, Kind
from commprof.trace.reader import read_trace
from tests.support.machines.ranks import run_module

pytestmark = pytest.mark.skipif(_native.native is None, reason="needs the C++ module")


def trained(directory: Path, cases: tuple[str, ...], *recorded: str) -> dict[str, Any]:
    arguments = [str(directory), ",".join(cases), *recorded]
    (out,) = run_module("tests.support.ranks.capture.compiled_steps", arguments, 1)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def breaks(counts: dict[str, Any]) -> list[Counter[str]]:
    kinds = [Counter(counts["during"][kind]) for kind in ("graph_break", "unimplemented")]
    # From Python 3.13 on, torch leaves an optimizer with hooks uncompiled, which changes the kind.
    return [kinds[0] + kinds[1]] if sys.version_info >= (3, 13) else kinds


def both(directory: Path, *cases: str) -> dict[str, Any]:
    plain, recorded = trained(directory, cases), trained(directory, cases, "yes")
    for case, expected in plain.items():
        found = recorded[case]
        if "refused" in expected:
            assert found == expected, case
            continue
        assert expected["during"] == expected["after"]
        assert expected["during"]["stats"]["unique_graphs"] >= 1
        for kind in ("stats", "recompiles"):
            assert found["during"][kind] == expected["during"][kind], case
        assert breaks(found) == breaks(expected), case
        assert found["during"]["frames"]["total"] <= expected["during"]["frames"]["total"]
        assert found["after"] == found["during"]
        assert found["parameters"] == expected["parameters"], case
    return plain


def issued(directory: Path, case: str) -> list[str]:
    trace = read_trace(directory / case / "rank_0.trace")
    return [OPS[op] for op in trace.records["op"][trace.records["kind"] == Kind.ISSUE]]


def test_recording_adds_no_graphs_or_graph_breaks_to_compiled_ddp(tmp_path: Path) -> None:
    both(tmp_path, "ddp-any-eager", "ddp-any-aot_eager")


@pytest.mark.slow
def test_recording_adds_no_graphs_or_breaks_to_compiled_sharded_models(tmp_path: Path) -> None:
    whole = ("ddp-whole-aot_eager", "fsdp2-whole-aot_eager")
    parts = ("ddp-parts-aot_eager", "fsdp2-parts-aot_eager", "functional-whole-aot_eager")
    some = ("fsdp2-any-aot_eager", "fsdp2nn-any-aot_eager")
    plain = both(tmp_path, *some, *whole, *parts)
    # torch itself breaks the graph of a wrapped or sharded model, but not the graphs of its parts.
    assert [case for case in plain if "refused" in plain[case]] == [*whole]
    assert issued(tmp_path, "functional-whole-aot_eager").count("all_reduce") == 3
