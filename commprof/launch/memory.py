"""How much memory this process takes while it trains."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_RESET_PEAK = "5"  # proc(5), /proc/pid/clear_refs: the peak becomes what is resident now


@dataclass(frozen=True)
class MemoryUse:
    """Of one rank, in bytes."""

    before_bytes: int
    """Resident before model and data were made: Python, torch, process group."""
    peak_bytes: int
    """Most that was resident from the first training step on."""
    device_peak_bytes: int | None
    """Most that torch's allocator had handed out on the GPU meanwhile; None on a CPU."""


class PeakMemory:
    """Watches from `start()` on; made before the model is."""

    def __init__(self, device: str) -> None:
        """device: of the model, as torch names it."""
        self._cuda = device if torch.device(device).type == "cuda" else None
        self._before_bytes = _resident("VmRSS")

    def start(self) -> None:
        """From here on: what it took to make the model is given back and forgotten."""
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):  # glibc's own
            libc.malloc_trim(0)
        # Where a sandbox forbids it, the peak is that of the whole process: never too little.
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
        if self._cuda:
            torch.cuda.reset_peak_memory_stats(self._cuda)

    def use(self) -> MemoryUse:
        """What it came to until now."""
        device = torch.cuda.max_memory_allocated(self._cuda) if self._cuda else None
        return MemoryUse(self._before_bytes, _resident("VmHWM"), device)


def _resident(key: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise AssertionError(f"{_STATUS} has no {key}")
