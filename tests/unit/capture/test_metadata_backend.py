from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from commprof.capture.job.metadata import gloo_threads, trace_metadata
from commprof.capture.python_recorder import _backend_of


@pytest.mark.parametrize(
    ("said", "config", "device", "expected"),
    [
        ("gloo", "cpu:gloo", "", "gloo"),
        ("undefined", "cpu:gloo,cuda:nccl", "", "gloo"),
        ("undefined", "cpu:gloo,cuda:nccl", "cuda", "nccl"),
        ("cpu:gloo,cuda:gloo", "cpu:gloo,cuda:gloo", "cuda", "gloo"),
        ("undefined", "cpu:gloo", "cuda", "gloo"),
        ("undefined", "xpu:xccl", "", "undefined"),
    ],
)
def test_a_trace_names_the_backend_of_the_device_in_use(
    said: str, config: str, device: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda *_: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda *_: 1)
    monkeypatch.setattr(dist, "get_backend", lambda *_: said)
    monkeypatch.setattr(dist, "get_backend_config", lambda *_: config)
    monkeypatch.setattr(
        torch.accelerator,
        "current_accelerator",
        lambda **_: torch.device(device) if device else None,
    )
    assert trace_metadata("", {})["backend"] == expected


def test_a_group_without_a_cpu_backend_does_not_hide_the_threads_of_other_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_backend(device: torch.device) -> Any:
        raise RuntimeError(f"No backend type associated with device type {device.type}")

    gloo = SimpleNamespace(name=lambda: "gloo", options=SimpleNamespace(_threads=5))
    groups = [
        SimpleNamespace(group_name="0", _get_backend=no_backend),
        SimpleNamespace(group_name="control", _get_backend=lambda _: gloo),
    ]
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist.distributed_c10d, "_world", SimpleNamespace(pg_map=groups))
    assert gloo_threads() == {"control": 5}


@pytest.mark.parametrize(
    ("said", "expected"), [("gloo", "gloo"), ("undefined", "chosen"), ("cpu:gloo", "cpu:gloo")]
)
def test_the_python_capture_names_the_backend_that_torch_chose(
    said: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``get_backend()`` is "undefined" after ``init_process_group()`` without a backend."""
    monkeypatch.setattr(dist, "get_backend", lambda *_: said)
    group: Any = SimpleNamespace(name=lambda: "chosen")
    assert _backend_of(group) == expected
