"""Training options that all workloads share."""

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
"""Types of numbers in the forward and backward passes. Weights keep their own type."""


@dataclass(frozen=True)
class TrainingOptions:
    """Training options of every workload. Raises UsageError for a value out of range."""

    accumulate: int = 1
    """Number of backward passes per update; only the last pass synchronises gradients."""
    precision: str = "fp32"
    """One of PRECISIONS. With fp16, torch.amp.GradScaler scales the loss."""
    clip_norm: float = 0.0
    """Largest 2-norm of all gradients together; 0 for no clipping."""
    checkpoint_activations: bool = False
    """Keep only the inputs of the model's blocks, and recompute the blocks in backward."""
    cpu_offload: bool = False
    """Keep sharded parameters, gradients and optimizer state in the host's memory."""
    scale_lr: bool = False
    """Multiply the learning rate by (samples per update / `--batch-size`)."""
    lr_warmup: int = 0
    """Number of steps over which the learning rate grows to its full value."""

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
        """Returns the options that differ from their defaults, by name."""
        default = TrainingOptions()
        return {
            name: value for name, value in vars(self).items() if value != getattr(default, name)
        }


def check_supported(workload: Workload, options: TrainingOptions, strategy: str) -> None:
    """Raises UsageError if the workload refuses the strategy or one of the options."""
    refused = workload.refused()
    for name in [strategy, *options.chosen()]:
        if name in refused:
            given = f"--strategy {name}" if name == strategy else flag(name)
            raise UsageError(
                f"{given} cannot be used with the workload {workload.name}: {refused[name]}"
            )


def available_bytes() -> int:
    """Returns the bytes of memory that are available without swapping; all memory if unknown."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


#: Bytes of memory that a rank needs at least. A forked rank that only sleeps has 48 MB of private
#: memory (/proc/PID/smaps_rollup, torch 2.13 for CPUs).
_LEAST_OF_A_RANK = 40_000_000


def check_ranks(count: int) -> None:
    """Refuses more ranks than this host has memory for.

    Raises:
        UsageError: the available memory is too small for so many ranks.
    """
    needed, free = count * _LEAST_OF_A_RANK, available_bytes()
    if needed > free:
        raise UsageError(
            f"{count} ranks on this machine need at least {needed / 1e9:.1f} GB of memory, and "
            f"{free / 1e9:.1f} GB are free; start fewer ranks (--nproc, --world-sizes)"
        )
