from __future__ import annotations

import pytest

from commprof.capture.job.metadata import trace_metadata


@pytest.mark.parametrize(
    ("address", "recorded"),
    [("core1.leaf7.n042", "core1.leaf7.n042"), (None, ""), ("s" * 5000, "s" * 400)],
)
def test_the_switches_above_a_host_are_recorded(
    monkeypatch: pytest.MonkeyPatch, address: str | None, recorded: str
) -> None:
    if address is None:
        monkeypatch.delenv("SLURM_TOPOLOGY_ADDR", raising=False)
    else:
        monkeypatch.setenv("SLURM_TOPOLOGY_ADDR", address)
    assert trace_metadata("", {})["topology"] == recorded
