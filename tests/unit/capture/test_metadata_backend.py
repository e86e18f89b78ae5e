"""The backend that a trace names: a single one, even if a job gave none or one per device."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from commprof.capture.job.metadata import trace_metadata


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
