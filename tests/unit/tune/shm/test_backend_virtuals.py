from __future__ import annotations

import re
from pathlib import Path

import torch

_HEADERS = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d"
_CSRC = Path(__file__).parents[4] / "csrc"
_OWN = _CSRC / "tune/torch/shm"
_CAPTURE = _CSRC / "torch/capture"

#: The backend does not pass these functions on to gloo; the values say why.
LEFT = {
    "supportsSplitting": "a split would be gloo alone: false, and new_group() makes a commprof one",
    "split": "see supportsSplitting",
    "merge": "a merged group would be gloo alone",
    "supportsShrinking": "gloo cannot: false",
    "shrink": "gloo cannot: c10d's error",
    "suspend": "gloo cannot: c10d's error; not in torch 2.10",
    "resume": "gloo cannot: c10d's error; not in torch 2.10",
    "getMemoryStats": "gloo cannot: c10d's error; not in torch 2.10",
    **dict.fromkeys(
        (
            *("all_gather_single", "all_gather_single_coalesced", "all_to_all_single"),
            *("reduce_scatter_single", "reduce_scatter_single_coalesced"),
        ),
        "c10d calls the function of the older name, which is handed on",
    ),
    **dict.fromkeys(("gather_single", "gather_into_tensor"), "gloo cannot: c10d's error"),
    **dict.fromkeys(
        ("supportsReconfigure", "get_reconfigure_handle", "reconfigure"),
        "a reconfigured group would be gloo alone: false",
    ),
    **dict.fromkeys(("supportsWindow", "new_window"), "gloo cannot: false"),
    **dict.fromkeys(
        (
            *("supportsAbortHooks", "registerAbortHook", "unregisterAbortHook"),
            *("supportsCompletionHooks", "registerCompletionHook", "unregisterCompletionHook"),
            *("startTimeEstimate", "endTimeEstimate", "addEphemeralTimeout"),
        ),
        "gloo cannot: false, and c10d's error",
    ),
    "isInitialized": "gloo connects when it is made: true",
    "getBoundDeviceId": "of the group, which c10d keeps in this object",
    "setBoundDeviceId": "see getBoundDeviceId",
    "clone": "of Options",
}
LEFT_OF_GLOO = {
    *("supportsSplitting", "split", "merge"),
    *("supportsReconfigure", "get_reconfigure_handle", "reconfigure", "clone"),
}
LEFT_OF_GROUP = {
    *("getRank", "getSize", "getBackendName", "getSequenceNumberForGroup"),
    *("getGroupName", "setGroupName", "getGroupDesc", "setGroupDesc"),
    *("setSequenceNumberForGroup", "setTimeout", "addEphemeralTimeout", "shutdown", "abort"),
    *("startCoalescing", "endCoalescing"),  # commprof/capture/patches/waits.py reports these
    *("splitGroup", "mergeRemoteGroup", "new_window", "reconfigure"),
    *("supportsReconfigure", "get_reconfigure_handle", "supportsWindow"),
    *("supportsAbortHooks", "registerAbortHook", "unregisterAbortHook"),
    *("supportsCompletionHooks", "registerCompletionHook", "unregisterCompletionHook"),
    *("registerPreHook", "unregisterPreHook", "registerPostHook", "unregisterPostHook"),
}


def test_every_backend_virtual_is_forwarded_or_listed_as_left_out() -> None:
    functions = set(re.findall(r"virtual\s[^;{]*?\b(\w+)\(", _text(_HEADERS / "Backend.hpp")))
    ours = set()
    for header in ("wrapping_backend.h", "threaded_backend.h"):
        ours |= _overridden(_OWN / header)
    assert len(functions) > 45
    assert "allreduce" in functions
    assert functions - ours - {"Backend"} == set(LEFT) & functions
    assert not set(LEFT) & ours


def test_no_virtual_that_gloo_implements_is_left_out_unlisted() -> None:
    gloo = _overridden(_HEADERS / "ProcessGroupGloo.hpp")
    assert {"allreduce", "split"} <= gloo
    left = {name for name in LEFT if name in gloo and "older name" not in LEFT[name]}
    assert {"supportsSplitting", "split", "merge"} <= left <= LEFT_OF_GLOO


def test_timed_work_forwards_every_virtual_of_work() -> None:
    functions = set(re.findall(r"virtual\s[^;{]*?\b(\w+)\(", _text(_HEADERS / "Work.hpp")))
    assert {"wait", "getFuture"} <= functions
    assert functions - _overridden(_CAPTURE / "timed_work.h") == set()


def test_every_collective_of_a_process_group_is_recorded() -> None:
    text = _text(_HEADERS / "ProcessGroup.hpp")
    bodies = {
        match[1]: part
        for part in re.split(r"\bvirtual\s", text)[1:]
        if (match := re.match(r"[^;{]*?\b(\w+)\(", part))
    }
    operators = {name: re.findall(r'"c10d::(\w+)"', body) for name, body in bodies.items()}
    named = re.findall(r'"(\w+)"', (_CAPTURE / "op_plan.h").read_text())
    named += re.findall(r'"(\w+)",[\s\\]+\w+\)', (_CSRC / "core/record.h").read_text())
    assert {"allreduce_", "send"} <= {one for found in operators.values() for one in found}
    assert {one for found in operators.values() for one in found} <= {*named}
    rest = {name: body for name, body in bodies.items() if not operators[name]}
    others = {
        name
        for name, body in rest.items()
        if any(re.search(rf"return {other}\(", body) for other in operators if operators[other])
    }
    assert rest.keys() - others == LEFT_OF_GROUP & bodies.keys()


def _overridden(header: Path) -> set[str]:
    return set(
        re.findall(r"(\w+)\((?:[^(){};]|\([^()]*\))*\)\s*(?:const\s*)?override", _text(header))
    )


def _text(header: Path) -> str:
    return re.sub(r"//[^\n]*", "", header.read_text())
