"""How a workload is trained, whichever it is: the options that all of them share."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from commprof.errors import UsageError
from commprof.workloads.spec import allowed, flag

if TYPE_CHECKING:
    from commprof.workloads.spec import Workload

PRECISIONS = ("fp32", "bf16", "fp16")
"""What forward and backward compute in; weights and optimizer stay as the workload made them."""


@dataclass(frozen=True)
class TrainingOptions:
    """Options of every workload. Raises UsageError for a value out of range."""

    accumulate: int = 1
    """Backward passes per update; gradients are synchronised in the last of them only."""
    precision: str = "fp32"
    """One of PRECISIONS; fp16 scales the loss (torch.amp.GradScaler)."""
    clip_norm: float = 0.0
    """Largest 2-norm of all gradients together; 0 leaves them as they are."""
    checkpoint_activations: bool = False
    """Keep only the inputs of the model's blocks and compute them again in backward."""
    cpu_offload: bool = False
    """Keep sharded parameters, gradients and optimizer state in the host's memory."""
    scale_lr: bool = False
    """Learning rate times samples per update over `--batch-size`."""
    lr_warmup: int = 0
    """Steps over which the learning rate grows to its full value."""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UsageError(
                f"unknown precision {self.precision!r}{allowed(self.precision, PRECISIONS)}"
            )
        for name, minimum in (("accumulate", 1), ("clip_norm", 0), ("lr_warmup", 0)):
            value = getattr(self, name)
            if not minimum <= value < math.inf:
                raise UsageError(
                    f"{flag(name)} {value} is out of range (allowed: {minimum} or more)"
                )

    def chosen(self) -> dict[str, object]:
        """The options that are not at their defaults, by name."""
        default = TrainingOptions()
        return {
            name: value for name, value in vars(self).items() if value != getattr(default, name)
        }


def check_supported(workload: Workload, options: TrainingOptions, strategy: str) -> None:
    """Raises UsageError for what this workload cannot do, with its reason."""
    refused = workload.refused()
    for name in [strategy, *options.chosen()]:
        if name in refused:
            given = f"--strategy {name}" if name == strategy else flag(name)
            raise UsageError(f"{given} is not for the workload {workload.name}: {refused[name]}")


def available_bytes() -> int:
    """Bytes of memory that the kernel would give without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


#: Private memory of a rank that only sleeps, forked from a process that has torch 2.13 for CPUs, as
#: /proc/PID/smaps_rollup has it (48 MB).
_LEAST_OF_A_RANK = 40_000_000


def check_ranks(count: int) -> None:
    """Refuses more ranks than this host has memory for, whatever they train.

    Raises:
        UsageError: there is less, even for their interpreters alone.
    """
    needed, free = count * _LEAST_OF_A_RANK, available_bytes()
    if needed > free:
        raise UsageError(
            f"{count} ranks on this machine need {needed / 1e9:.1f} GB of memory or more, and "
            f"{free / 1e9:.1f} GB are free; start fewer (--nproc, --world-sizes)"
        )
