"""Reads utilisation, clock, power and throttling of this rank's GPU from NVML once a second.

A separate thread queries the driver through nvidia-ml-py (the module ``pynvml``). The figures are
written to the trace at growing intervals, and when capture stops. Figures that the driver does not
support are left out.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from commprof.capture.recorder import Recorder

_PERIOD_S = 1.0
#: The figures are written again after at least this many new samples. The new samples must also be
#: at least this fraction of the earlier samples.
_LEAST_MORE, _FRACTION_MORE = 30, 0.1
#: NVML's nvmlClocksEventReason bits of a clock that was slowed down, by cause.
LIMITS = {
    "power": 0x4 | 0x80,  # SwPowerCap, HwPowerBrakeSlowdown
    "temperature": 0x20 | 0x40,  # SwThermalSlowdown, HwThermalSlowdown
    "hardware": 0x8,  # HwSlowdown
}


class TelemetrySampler:
    """Samples this rank's GPU; begins after the first step in which CUDA is in use."""

    def __init__(self) -> None:
        self.pending = False
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._recorder: Recorder | None = None

    def start(self, recorder: Recorder) -> None:
        """Prepares sampling; sets ``pending`` to True if torch has CUDA and ``pynvml`` exists."""
        self._recorder = recorder
        # stop() may have given up on an earlier thread, which still uses the old event
        self._done = threading.Event()
        self.pending = torch.version.cuda is not None and _nvml() is not None

    def poll(self) -> None:
        """Starts sampling if CUDA is in use; call it after a step."""
        if not torch.cuda.is_initialized():
            return
        self.pending = False
        uuid = getattr(torch.cuda.get_device_properties(_gpu()), "uuid", None)
        if uuid is None:
            return
        name = str(uuid)
        self._thread = threading.Thread(
            target=self._sample,
            args=(name if "-" in name[:5] else f"GPU-{name}", self._done),
            name="commprof-nvml",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        """Writes the last figures to the trace, and stops sampling."""
        self.pending = False
        self._done.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * _PERIOD_S)  # a driver that hangs must not block training
            self._thread = None

    def _sample(self, uuid: str, done: threading.Event) -> None:
        nvml = _nvml()
        assert nvml is not None
        assert self._recorder is not None
        try:
            nvml.nvmlInit()
            device = nvml.nvmlDeviceGetHandleByUUID(uuid)
        except nvml.NVMLError:
            return
        samples = TelemetrySamples(uuid, _questions(nvml, device))
        begin = {"begin_monotonic_ns": time.monotonic_ns()}
        ended, next_count = False, _LEAST_MORE
        while not ended:
            samples.ask(nvml.NVMLError)
            ended = done.wait(_PERIOD_S)
            if ended or samples.count >= next_count:
                next_count = next_after(samples.count)
                self._recorder.add_metadata(
                    json.dumps({"device_telemetry": {**begin, **samples.summary()}})
                )


def _gpu() -> int:
    """Returns the index of the GPU given to init_process_group, or else of the current GPU."""
    if dist.is_available() and dist.is_initialized():
        given = getattr(dist.group.WORLD, "bound_device_id", None)
        # torch accepts only a device_id with an index
        if given is not None and given.type == "cuda":
            return int(given.index)
    return int(torch.cuda.current_device())


def next_after(count: int) -> int:
    """Returns the number of samples at the next write, if ``count`` is that at the last write."""
    return count + max(_LEAST_MORE, int(count * _FRACTION_MORE))


class TelemetrySamples:
    """Running statistics of one GPU's samples."""

    def __init__(self, uuid: str, questions: dict[str, Callable[[], float]]) -> None:
        """``questions``: maps each figure's name to the function that reads the figure."""
        self.count = 0
        self._uuid = uuid
        self._questions = questions
        self._figures: dict[str, dict[str, float]] = {}
        self._limited = dict.fromkeys(LIMITS, 0)
        self._limits_read = 0

    def ask(self, unsupported: type[Exception]) -> None:
        """Reads each figure once; drops a figure whose function raises ``unsupported``."""
        self.count += 1
        for name, question in tuple(self._questions.items()):
            try:
                value = question()
            except unsupported:
                del self._questions[name]
                continue
            if name == "limits":
                self._limits_read += 1
                for limit, bits in LIMITS.items():
                    self._limited[limit] += bool(int(value) & bits)
            else:
                figure = self._figures.setdefault(
                    name, {"count": 0, "sum": 0.0, "least": value, "most": value}
                )
                figure["count"] += 1
                figure["sum"] += value
                figure["least"] = min(figure["least"], value)
                figure["most"] = max(figure["most"], value)

    def summary(self) -> dict[str, Any]:
        """Returns the statistics in the form in which the trace has them."""
        figures = {
            name: {
                "mean": figure["sum"] / figure["count"],
                "least": figure["least"],
                "most": figure["most"],
            }
            for name, figure in self._figures.items()
        }
        return {
            "uuid": self._uuid,
            "samples": self.count,
            **figures,
            "limits_read": self._limits_read,
            "limited": self._limited,
        }


def _questions(nvml: ModuleType, device: Any) -> dict[str, Callable[[], float]]:
    reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or getattr(
        nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None
    )
    questions: dict[str, Callable[[], float]] = {
        "utilisation_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(device).gpu,
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1e3,
        "memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(device).used,
    }
    if reasons is not None:
        questions["limits"] = lambda: reasons(device)
    return questions


def _nvml() -> ModuleType | None:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml
