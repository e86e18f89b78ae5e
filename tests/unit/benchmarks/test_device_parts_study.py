from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from benchmarks.attribution import device_parts
from tests.support.builders.profiler_traces import Event, all_reduce, annotation, document, kernel


def recording(folder: Path) -> Path:
    events: list[Event] = [
        annotation("ProfilerStep#1", 0, 1000),
        kernel("gemm", 0, 300, correlation=1),
        # By commprof's rules, this call is exposed from 300 to 400 µs and from 500 to 600 µs.
        all_reduce(200, 600, seq=1),
        {**kernel("Memcpy DtoD (Device -> Device)", 400, 500), "cat": "gpu_memcpy"},
        {**kernel("Memset (Device)", 700, 800), "cat": "gpu_memset"},
        kernel("gemm", 900, 1000, correlation=2),
    ]
    launches = [annotation("cudaLaunchKernel", 0, 1) for _ in (1, 2)]
    for number, event in enumerate(launches):
        events.append({**event, "cat": "cuda_runtime", "args": {"correlation": number + 1}})
    path = folder / "rank0.json.gz"
    path.write_bytes(gzip.compress(document(events, 0, 1).encode()))
    return path


def row_of(path: Path, **others: dict[str, Any]) -> dict[str, Any]:
    rules = device_parts.by_their_rules(path)
    own = device_parts.ours(path)
    return {"recording": "one", "commprof": own, "by_rules": rules, **others}


def lens(compute: float, exposed: float, copies: float, idle: float) -> dict[str, float]:
    names = ("computation_ms", "exposed_comm_ms", "exposed_memcpy_ms", "idle_ms")
    return dict(zip(names, (compute, exposed, copies, idle), strict=True))


def test_the_parts_by_commprof_s_rules_and_by_those_of_the_others(tmp_path: Path) -> None:
    row = row_of(recording(tmp_path))
    assert row["commprof"] == pytest.approx(
        {"compute": 0.4, "exposed": 0.2, "copies": 0.2, "idle": 0.2, "span": 1.0}
    )
    by_lens = row["by_rules"]["tracelens"]
    expected = {"compute": 0.5, "exposed": 0.3, "copies": 0.0, "idle": 0.2}
    assert {name: by_lens[name] for name in expected} == pytest.approx(expected)
    # Only kernels with a launch count for HTA: two gemms of 400 µs together.
    expected = {"compute": 0.4, "other": 0.0, "idle": 0.6, "span": 1.0}
    assert row["by_rules"]["hta"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("theirs", "rule", "met"),
    [
        (lens(0.4, 0.2, 0.2, 0.2), "by commprof's rules", True),
        (lens(0.5, 0.3, 0.0, 0.2), "by the tool's rules", True),
        (lens(0.6, 0.2, 0.0, 0.2), "by the tool's rules", False),
    ],
)
def test_each_figure_agrees_by_one_of_the_rules(
    tmp_path: Path, theirs: dict[str, float], rule: str, met: bool
) -> None:
    rows = [row_of(recording(tmp_path), tracelens=theirs)]
    (demand,) = device_parts.demands({"rows": rows})
    assert demand.what.endswith(rule)
    assert demand.met is met
    (line,) = device_parts.table(rows).splitlines()[2:]
    assert line.count("not installed") == 1


def test_tools_that_are_not_installed_are_marked(tmp_path: Path) -> None:
    rows = [row_of(recording(tmp_path))]
    assert device_parts.demands({"rows": rows}) == []
    assert device_parts.table(rows).count("not installed") == 2
