from __future__ import annotations

import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import commprof
from commprof.analysis.collectives.devices import device_telemetry
from commprof.capture import device_telemetry as capture
from commprof.capture.device_telemetry import TelemetrySamples
from commprof.report.sections.devices import grid
from commprof.trace.reader import read_trace
from tests.support.builders.results import world
from tests.unit.launch.test_job import rank

UUID = "5a0c1b3e-0000-0000-0000-000000000007"


class NVMLError(Exception):
    pass


def stand_in(**changes: Any) -> ModuleType:
    """Returns a ``pynvml`` whose power (0x4) and temperature (0x20) limit the GPU's clock."""
    nvml = ModuleType("pynvml")
    clocks = iter([1980, 1200] * 1000)

    def by_uuid(uuid: str) -> str:
        if uuid != f"GPU-{UUID}":
            raise NVMLError(uuid)
        return uuid

    for name, value in {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": by_uuid,
        "nvmlDeviceGetUtilizationRates": lambda device: SimpleNamespace(gpu=50, memory=9),
        "nvmlDeviceGetClockInfo": lambda device, kind: next(clocks),
        "nvmlDeviceGetPowerUsage": lambda device: 350_000,
        "nvmlDeviceGetMemoryInfo": lambda device: SimpleNamespace(used=40_000_000_000),
        "nvmlDeviceGetCurrentClocksEventReasons": lambda device: 0x4 | 0x20,
        **changes,
    }.items():
        setattr(nvml, name, value)
    return nvml


def train(directory: Path, nvml: ModuleType | None, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    properties = SimpleNamespace(uuid=UUID)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(capture, "_PERIOD_S", 0.01)
    with commprof.profile(directory) as prof:
        for _ in range(5):
            time.sleep(0.02)
            prof.step()
    return read_trace(directory / "rank_0.trace")


def test_gpu_figures_from_the_driver_reach_the_report_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = device_telemetry(train(tmp_path, stand_in(), monkeypatch))
    assert found is not None
    assert found.samples >= 2
    assert (found.utilisation_percent, found.power_w) == (50, 350)
    assert (found.least_sm_clock_mhz, found.memory_used_bytes) == (1200, 40e9)
    assert 1200 < found.sm_clock_mhz < 1980
    assert found.limited == {"power": 1, "temperature": 1, "hardware": 0}
    shown = grid([world(1, ranks=(rank(device=found),))])
    assert shown is not None
    ((row),) = shown.rows
    assert row[2] == "50"
    assert row[5:] == ("350", "40000", "power 100%, temperature 100%")


def refused(*_: Any) -> Any:
    raise NVMLError("not supported")


def test_gpu_figures_that_the_driver_refuses_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = stand_in(
        nvmlDeviceGetUtilizationRates=refused, nvmlDeviceGetCurrentClocksEventReasons=refused
    )
    found = device_telemetry(train(tmp_path, nvml, monkeypatch))
    assert found is not None
    assert found.power_w == 350
    shown = grid([world(1, ranks=(rank(device=found),))])
    assert shown is not None
    assert (shown.rows[0][2], shown.rows[0][-1]) == ("-", "-")


@pytest.mark.parametrize("nvml", [None, stand_in(nvmlInit=refused)])
def test_without_nvml_there_is_no_gpu_telemetry(
    nvml: ModuleType | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert device_telemetry(train(tmp_path, nvml, monkeypatch)) is None
    assert grid([world(1, ranks=(rank(),))]) is None


def test_the_gpu_given_to_the_process_group_is_sampled_rather_than_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``init_process_group(device_id=...)`` does not change torch's current GPU."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert capture._gpu() == 0
    group = SimpleNamespace(bound_device_id=torch.device("cuda", 3))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=group))
    assert capture._gpu() == 3
    group.bound_device_id = None
    assert capture._gpu() == 0


def test_gpu_samples_are_summarised_as_mean_minimum_and_maximum() -> None:
    values = iter([10.0, 20.0, 60.0])
    samples = TelemetrySamples("GPU-x", {"power_w": lambda: next(values)})
    for _ in range(3):
        samples.ask(NVMLError)
    assert samples.summary()["power_w"] == {"mean": 30, "least": 10, "most": 60}


def test_a_million_samples_are_written_about_a_hundred_times() -> None:
    counts = [capture.next_after(0)]
    while counts[-1] < 1_000_000:
        counts.append(capture.next_after(counts[-1]))
    assert counts[:3] == [30, 60, 90]
    assert 90 < len(counts) < 120
