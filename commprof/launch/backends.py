"""The communication backends of launched jobs and of microbenchmarks."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from commprof import _native, satellites
from commprof.errors import UsageError


def check_backend(backend: str, local_ranks: int) -> None:
    """Raises UsageError if this host lacks the backend, or GPUs for ``local_ranks`` NCCL ranks."""
    available = [name for name in ("gloo", "nccl", "mpi", "ucc") if dist.is_backend_available(name)]
    if "nccl" in available and not torch.cuda.is_available():
        available.remove("nccl")
    if _native.native is not None:
        available.append("commprof")
    if backend not in available:
        raise UsageError(
            f"backend {backend!r} is not available (allowed with torch {torch.__version__} and "
            f"{torch.cuda.device_count()} CUDA devices: {', '.join(available)})"
        )
    if backend == "nccl" and local_ranks > torch.cuda.device_count():
        raise UsageError(
            f"backend 'nccl' needs a GPU for each of the {local_ranks} ranks, and this machine "
            f"has {torch.cuda.device_count()}; use fewer ranks, or backend 'gloo'"
        )


def prepare_backend(backend: str, rank: int) -> str:
    """Makes a backend usable in this process, before the rank makes its first process group.

    Args:
        backend: a name that :func:`check_backend` accepts.
        rank: the process's global rank.

    Returns:
        The device of the rank's tensors: the CPU, or with NCCL the rank's GPU. This GPU becomes the
        process's current device.
    """
    if backend == "commprof":
        satellites.tune().register_backend()
    if backend != "nccl":
        return "cpu"
    device = f"cuda:{os.environ.get('LOCAL_RANK', rank)}"
    torch.cuda.set_device(device)
    return device
