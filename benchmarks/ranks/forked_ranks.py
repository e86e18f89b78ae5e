"""Runs a job's ranks as forks of a process that has imported torch.

On a small machine, importing torch in every rank would take longer than the measured steps.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import time
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from commprof.launch.job import Job
from commprof.trace.run.run_directory import world_directory
from tests.support.machines.ranks import free_port

_TIMEOUT_S = 150
_CLONE_NEWNET = 0x40000000


def run(
    job: Job,
    run_directory: Path,
    namespaces: list[str],
    address: str,
    bucket_cap_mb: float = 0.0,
    gather_dtype: str = "fp32",
    reduce_dtype: str = "fp32",
) -> Path:
    """Runs the job in network namespaces, or on this host; returns the world's directory.

    ``bucket_cap_mb`` applies to the transformer workload only; 0 means DDP's default.
    ``gather_dtype`` and ``reduce_dtype`` apply to FSDP2.
    """
    directory = world_directory(run_directory, job.world_size)
    directory.mkdir(parents=True, exist_ok=True)
    job = replace(job, directory=directory)
    path = directory / "job.json"
    job.save(path)
    os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it once, in the fork server
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "commprof.launch.worker"])
    port = 29500 if namespaces else free_port()
    ranks = []
    for rank in range(job.world_size):
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": "0" if namespaces else str(rank),
            "WORLD_SIZE": str(job.world_size),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            **({"GLOO_SOCKET_IFNAME": "eth0"} if namespaces else {}),
        }
        name = namespaces[rank] if namespaces else ""
        arguments = (name, environment, str(path), bucket_cap_mb, gather_dtype, reduce_dtype)
        ranks.append(context.Process(target=_rank, args=arguments))
        ranks[-1].start()
    _wait(ranks)
    return directory


def _rank(
    namespace: str,
    environment: dict[str, str],
    job: str,
    bucket_cap_mb: float,
    gather_dtype: str,
    reduce_dtype: str,
) -> None:
    if namespace:
        with open(f"/var/run/netns/{namespace}") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns {namespace}")
    os.environ.update(environment)
    from commprof.launch.worker import run_rank
    from commprof.workloads.models import transformer

    if bucket_cap_mb:
        options = {"bucket_cap_mb": bucket_cap_mb}
        transformer._TransformerTrainee.ddp_options = lambda self: options
    if (gather_dtype, reduce_dtype) != ("fp32", "fp32"):
        _share_in(gather_dtype, reduce_dtype)
    run_rank(job)
    time.sleep(0.02)  # torch 2.13's gloo threads may abort a process that ends immediately


def _share_in(gather_dtype: str, reduce_dtype: str) -> None:
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from commprof.workloads.strategies import fsdp

    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    policy = MixedPrecisionPolicy(types[gather_dtype], types[reduce_dtype])
    fsdp._precision = lambda *low, **output: policy


def _wait(ranks: list[ForkServerProcess]) -> None:
    end = time.monotonic() + _TIMEOUT_S
    for process in ranks:
        process.join(max(0.0, end - time.monotonic()))
    failed = [process.exitcode for process in ranks]
    for process in ranks:
        if process.is_alive():
            process.kill()
            process.join()
    if any(code != 0 for code in failed):
        raise RuntimeError(
            f"a rank failed; exit codes by rank: {failed} (None: killed after {_TIMEOUT_S} s)"
        )
