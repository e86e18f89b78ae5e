"""The events have the order that torch 2.13 writes (``ProcessGroupNCCL::endCoalescing``).

Each call's operator ends before the range that ends the group. The group's kernels name no call.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.run import analyse_in_detail
from commprof.report.export import as_json
from tests.support.builders.profiler_traces import Event, annotation, document, kernel

NAMES = {
    **{"all_reduce": ("allreduce", "AllReduce_Sum_f32_RING_LL")},
    **{"broadcast": ("broadcast", "Broadcast_RING_LL"), "send": ("send", "SendRecv")},
    **{"recv": ("recv", "SendRecv")},
}
STEP_US = 1000.0


def operator(name: str, begin_us: float, end_us: float, **args: object) -> Event:
    return {**annotation(name, begin_us, end_us), "cat": "cpu_op", "args": args}


def call(op: str, at_us: float, seq: int, elements: int, **args: object) -> list[Event]:
    name = NAMES[op][0]
    told = {
        **{"Collective name": name, "dtype": "Float", "Group size": 2, "Seq": seq},
        **{"In msg nelems": elements, "Out msg nelems": elements},
        **{"Process Group Name": "0", "Process Group Ranks": "[0, 1]", **args},
    }
    return [
        operator(f"c10d::{name}_", at_us, at_us + 10),
        operator("record_param_comms", at_us + 1, at_us + 9, **told),
        annotation(f"nccl:{op}", at_us + 2, at_us + 8),
    ]


def launch(at_us: float, correlation: int) -> Event:
    launched = annotation("cudaLaunchKernelExC", at_us, at_us + 1)
    return {**launched, "cat": "cuda_runtime", "args": {"correlation": correlation}}


def group_end(at_us: float, *correlations: int) -> list[Event]:
    launches = [launch(at_us + 2 + at, number) for at, number in enumerate(correlations)]
    return [annotation("nccl:coalesced", at_us, at_us + 10), *launches]


def ran(op: str, begin_us: float, end_us: float, correlation: int, **args: object) -> Event:
    name = f"ncclDevKernel_{NAMES[op][1]}(ncclDevKernelArgsStorage<4096ul>)"
    return kernel(name, begin_us, end_us, 20, correlation=correlation, **args)


def written(path: Path, *of_ranks: list[Event]) -> Path:
    path.mkdir()
    for rank, events in enumerate(of_ranks):
        steps = [
            annotation(f"ProfilerStep#{at}", STEP_US * at, STEP_US * (at + 1)) for at in (1, 2)
        ]
        compute = [kernel("gemm", step["ts"] + 1, step["ts"] + 5) for step in steps]
        (path / f"rank{rank}.json").write_text(document([*steps, *compute, *events], rank))
    return path


def collectives(path: Path) -> list[dict[str, Any]]:
    found = json.loads(as_json.render(analyse_in_detail(path)[0]))
    rows: list[dict[str, Any]] = found["runs"][0]["aggregated_metrics"]["collectives"]
    return rows


def in_both_steps(events: list[Event]) -> list[Event]:
    later = [{**event, "ts": event["ts"] + STEP_US} for event in events]
    for event in later:
        args = event.get("args", {})
        event["args"] = {
            **args,
            **{key: args[key] + 100 for key in ("correlation", "Seq") if key in args},
        }
    return events + later


ALONE = {
    **{"Collective name": "allreduce", "dtype": "Float", "Group size": 2, "Seq": 6},
    **{"In msg nelems": 2000, "Out msg nelems": 2000, "Process Group Name": "0"},
    "Process Group Ranks": "[0, 1]",
}


def before_a_group() -> list[Event]:
    own = ran("all_reduce", 1100, 1140, 11, **ALONE)
    return [*call("all_reduce", 1010, 6, 2000), launch(1014, 11), own]


def test_a_kernel_of_several_all_reduces_has_their_bytes_and_its_own_time(tmp_path: Path) -> None:
    """c10d gives the first call of a group its own number, and all other calls the next number."""

    def of_rank(late_us: float) -> list[Event]:
        return in_both_steps(
            [
                *before_a_group(),
                *call("all_reduce", 1030, 7, 250),
                *call("all_reduce", 1045, 8, 500),
                *call("all_reduce", 1060, 8, 1250),
                *group_end(1080, 12),
                ran("all_reduce", 1200 + late_us, 1300, 12),
            ]
        )

    path = written(tmp_path / "job", of_rank(0), of_rank(60))
    found = {row["op"]: row for row in collectives(path)}
    assert found.keys() == {"all_reduce", "all_reduce_coalesced"}
    group = found["all_reduce_coalesced"]
    assert (group["size_bytes"], group["calls"], group["group"]) == ([8000, 8000], 4, "0")
    assert group["wait"] == pytest.approx({"median_ms": 0.03, "p95_ms": 0.06})
    assert group["transfer"] == pytest.approx({"median_ms": 0.04, "p95_ms": 0.04})
    assert group["exposed_ms"] == pytest.approx(0.07)
    parts = analyse_in_detail(path)[0].worlds[0].parts
    # Exposed are 40 µs before the group, and the 70 µs of the group's kernel.
    assert parts.exposed_ms == pytest.approx(0.11)


Row = tuple[str, str, int | None, int]


@pytest.mark.parametrize(
    ("events", "row"),
    [
        # batch_isend_irecv counts each direction once, as nccl-tests do.
        (
            [
                *call("send", 1030, 3, 250, **{"Dst Rank": 1}),
                *call("recv", 1045, 3, 500, **{"Src Rank": 1}),
                *group_end(1080, 12),
                ran("send", 1200, 1300, 12),
            ],
            ("other", "0", 2000, 1),
        ),
        (
            [
                *call("all_reduce", 1030, 7, 250),
                *call("all_reduce", 1045, 8, 500, dtype="Half"),
                *group_end(1080, 12, 13),
                *(ran("all_reduce", 1200, 1250, 12), ran("all_reduce", 1250, 1300, 13)),
            ],
            ("all_reduce_coalesced", "0", 2000, 1),
        ),
        (
            [
                *call("broadcast", 1030, 7, 250),
                *(*group_end(1080, 12), ran("broadcast", 1200, 1300, 12)),
            ],
            ("broadcast", "0", 1000, 1),
        ),
        # A mixture of operations has no size; the kernel's name gives the operation.
        (
            [
                *(*call("broadcast", 1030, 7, 250), *call("all_reduce", 1045, 8, 500)),
                *(*group_end(1080, 12), ran("broadcast", 1200, 1300, 12)),
            ],
            ("broadcast", "0", None, 1),
        ),
        (
            [
                *call("all_reduce", 1030, 7, 250),
                *call("all_reduce", 1045, 8, 500, dtype="Quarter"),
                *(*group_end(1080, 12), ran("all_reduce", 1200, 1300, 12)),
            ],
            ("all_reduce_coalesced", "0", None, 1),
        ),
        (
            [*group_end(1080, 12), ran("all_reduce", 1200, 1300, 12)],
            ("all_reduce", "unnamed", None, 1),
        ),
    ],
)
def test_size_and_process_group_of_a_kernel_are_those_of_its_calls(
    tmp_path: Path, events: list[Event], row: Row
) -> None:
    path = written(tmp_path / "job", in_both_steps([*before_a_group(), *events]))
    rows = [
        (found["op"], found["group"], (found["size_bytes"] or [None])[0], found["calls"])
        for found in collectives(path)
        if found["size_bytes"] != [8000, 8000]
    ]
    op, group, size, calls_a_step = row
    assert rows == [(op, group, size, 2 * calls_a_step)]


def test_calls_belong_to_the_group_that_ends_after_them(tmp_path: Path) -> None:
    """Before torch 2.12 calls have no numbers."""
    events = [
        *(*call("all_reduce", 1010, 1, 8000), launch(1014, 11)),  # This kernel was lost.
        *(*call("all_reduce", 1030, 2, 100), *call("all_reduce", 1045, 3, 200)),
        *(*group_end(1060, 12), ran("all_reduce", 1200, 1300, 12)),
        *(*call("all_reduce", 1080, 4, 1000), *call("all_reduce", 1095, 5, 2000)),
        *(*group_end(1110, 13), ran("all_reduce", 1400, 1500, 13)),
    ]
    for event in events:
        event.get("args", {}).pop("Seq", None)
    rows = collectives(written(tmp_path / "job", in_both_steps(events)))
    assert [(row["size_bytes"], row["calls"]) for row in rows] == [
        *(([1200, 1200], 2), ([12000, 12000], 2))
    ]
