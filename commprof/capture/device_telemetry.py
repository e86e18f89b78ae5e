"""Utilisation, clock, power and throttling of this rank's GPU, read from NVML once a second.

A separate thread queries the driver through nvidia-ml-py (the module ``pynvml``), if that is
installed; the training thread only tells it, at the end of a step, which GPU to query. The figures
are written to the trace when capture stops, and before that at growing intervals, so that a trace
of days stays small. A figure that the driver does not support is left out. If NVML fails, sampling
ends and training goes on.
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
#: The figures are written again when their samples have grown by at least this number, and by at
#: least this fraction, since the last write. A killed rank loses the samples since the last write.
_LEAST_MORE, _FRACTION_MORE = 30, 0.1
#: NVML's nvmlClocksEventReason bits that mean that the clock is slower than the load demands.
LIMITS = {
    "power": 0x4 | 0x80,  # SwPowerCap, HwPowerBrakeSlowdown
    "temperature": 0x20 | 0x40,  # SwThermalSlowdown, HwThermalSlowdown
    "hardware": 0x8,  # HwSlowdown
}


class TelemetrySampler:
    """Samples one GPU from the first step that has used CUDA until ``stop``."""

    def __init__(self) -> None:
        self.pending = False
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._recorder: Recorder | None = None

    def start(self, recorder: Recorder) -> None:
        """Sets ``pending`` to True if sampling is possible; ``poll`` then starts sampling.

        Sampling is not possible if torch was built without CUDA, or if nvidia-ml-py is missing.
        """
        self._recorder = recorder
        # a new event: a thread that outlived stop() waits for the old one
        self._done = threading.Event()
        self.pending = torch.version.cuda is not None and _nvml() is not None

    def poll(self) -> None:
        """Starts sampling once CUDA is in use; called by the training thread after a step."""
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
        """Stops sampling, after the last figures are written to the trace."""
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
    """Returns this rank's GPU: the one given to init_process_group, or else the current one."""
    if dist.is_available() and dist.is_initialized():
        given = getattr(dist.group.WORLD, "bound_device_id", None)
        # The given device has an index, because torch refuses a device_id without an index.
        if given is not None and given.type == "cuda":
            return int(given.index)
    return int(torch.cuda.current_device())


def next_after(count: int) -> int:
    """Returns the number of samples at which figures are written next, after ``count`` samples."""
    return count + max(_LEAST_MORE, int(count * _FRACTION_MORE))


class TelemetrySamples:
    """Running statistics of the samples, in memory that does not grow with their number."""

    def __init__(self, uuid: str, questions: dict[str, Callable[[], float]]) -> None:
        """``questions``: maps each figure's name to the function that reads the figure."""
        self.count = 0
        self._uuid = uuid
        self._questions = questions
        self._figures: dict[str, dict[str, float]] = {}
        self._limited = dict.fromkeys(LIMITS, 0)
        self._limits_read = 0

    def ask(self, unsupported: type[Exception]) -> None:
        """Samples every figure once; a figure that raises ``unsupported`` is not read again."""
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
        """Returns the statistics of the samples as they are written to the trace."""
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
    """Maps each figure's name, which holds the unit, to the function that reads the figure."""
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
