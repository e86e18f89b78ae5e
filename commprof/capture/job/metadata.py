"""Metadata of a trace: rank, machine, versions, process groups and clocks."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from commprof import _native
from commprof._version import __version__
from commprof.errors import CommprofError
from commprof.launched import launched_as, local_rank_of_task
from commprof.trace import schema
from commprof.trace.documents import MORE_METADATA, backends_by_device
from commprof.trace.run.endings import restart_count
from commprof.trace.run.processes import link_of, text_of

_LONGEST_ADDRESS = 400


def _backend() -> str:
    """Returns the default group's backend; empty if there is no default group.

    If the group has several backends, the accelerator's backend is returned, or else the CPU's.
    """
    if not dist.is_initialized():
        return ""
    name = str(dist.get_backend())
    by_device = backends_by_device(name, dist.get_backend_config())
    if not by_device:
        return name
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    wanted = "cpu" if accelerator is None else accelerator.type
    return by_device.get(wanted) or by_device.get("cpu", name)


def script_path() -> str:
    """Returns the absolute path of this process's script; empty if the file is not found."""
    file = str(getattr(sys.modules.get("__main__"), "__file__", None) or "")
    # A relative path is wrong if the script has changed its working directory. So the file is also
    # looked for in the first entry of sys.path, which is the script's directory or "".
    folder = sys.path[0] if sys.path else ""
    paths = [os.path.abspath(file)]
    if folder:
        paths.append(os.path.abspath(os.path.join(folder, os.path.basename(file))))
    return next((path for path in paths if file and os.path.isfile(path)), "")


def _debug_level() -> str:
    return str(dist.get_debug_level().name) if dist.is_available() else ""


def rank_and_world_size() -> tuple[int, int]:
    """Returns global rank and world size, from the process group or the launcher's environment.

    Raises:
        CommprofError: the environment's values are not a rank and a world size.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if not {"RANK", "WORLD_SIZE"} & os.environ.keys():
        given = launched_as(os.environ)
        return (0, 1) if given is None else (given.rank, given.world_size)
    rank, world_size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not (rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size)):
        raise CommprofError(
            f"RANK={rank} and WORLD_SIZE={world_size} in the environment are not a rank and a "
            "world size; unset both, or call init_process_group first"
        )
    return int(rank), int(world_size)


def _local_rank() -> int:
    """Returns this process's rank on its host, from the launcher's environment.

    Returns 0 if the value is not a rank: some scripts set -1.
    """
    text = os.environ.get("LOCAL_RANK")
    if text is None:
        return local_rank_of_task(os.environ)
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0


def elastic_run_id() -> str:
    """Returns torchrun's id of the job, which restarts do not change; empty without torchrun."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "")


def topology_address() -> str:
    """Returns SLURM's address of this host in the network, such as "switch.switch.node".

    Empty without SLURM, or if SLURM does not know the network.
    """
    return os.environ.get("SLURM_TOPOLOGY_ADDR", "")[:_LONGEST_ADDRESS]


def replica_label() -> str:
    """Returns torchft's name of this process's replica group; empty without torchft."""
    return os.environ.get("REPLICA_GROUP_ID", "")


def clock_identity() -> list[str]:
    """Returns boot id and time namespace; an unknown value is empty.

    Processes with equal boot ids and equal time namespaces share CLOCK_MONOTONIC.
    """
    boot_id = text_of("/proc/sys/kernel/random/boot_id").strip()
    return [boot_id, link_of("/proc/self/ns/time")]


def host_identity() -> list[str]:
    """Returns the machine's boot id, or else its hostname, and the network namespace.

    Processes with equal values count as one host. An unknown namespace is empty.
    """
    return [clock_identity()[0] or socket.gethostname(), link_of("/proc/self/ns/net")]


def machine() -> dict[str, Any]:
    """Describes the host: processor, memory, kernel, and the CPUs that this process may use."""
    boot_id, time_namespace = clock_identity()
    return {
        "hostname": socket.gethostname(),
        "boot_id": boot_id,
        "time_namespace": time_namespace,
        "pid_namespace": link_of("/proc/self/ns/pid"),
        "cpu_model": _cpu_model(),
        "cpu_count": os.cpu_count() or 0,
        "usable_cpu_count": len(os.sched_getaffinity(0)),
        "usable_cpus": [str(cpu) for cpu in sorted(os.sched_getaffinity(0))],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "cuda_devices": torch.cuda.device_count(),
    }


def trace_metadata(ring_prefix: str, extra: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of a trace's first block.

    Args:
        ring_prefix: path prefix of the ring files. Unused if the native module is missing.
        extra: metadata that the script gave to ``profile``.

    Raises:
        CommprofError: ``extra`` sets a key that commprof itself writes.
    """
    rank, world_size = rank_and_world_size()
    native = _native.native
    own = {
        "rank": rank,
        "world_size": world_size,
        "local_rank": _local_rank(),
        "restart_count": restart_count(),
        "pid": os.getpid(),
        "main_thread": _native_thread_id(),
        "command": sys.argv,
        "script_path": script_path(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commprof": __version__,
        "backend": _backend(),
        "debug_level": _debug_level(),
        "threads": torch.get_num_threads(),
        "capture": "python" if native is None else "native",
        "machine": machine(),
        "clock": {
            "source": "CLOCK_MONOTONIC",
            "monotonic_ns": time.monotonic_ns(),
            "realtime_ns": time.time_ns(),
        },
        "ring_prefix": "" if native is None else ring_prefix,
        "record_bytes": schema.RECORD_DTYPE.itemsize,
        "kinds": list(schema.KINDS if native is None else native.KINDS),
        "ops": list(schema.OPS if native is None else native.OPS),
        "phases": list(schema.PHASES if native is None else native.PHASES),
        "hooks": [],
        "dtypes": [] if native is None else list(native.DTYPES),
        "elastic_run_id": elastic_run_id(),
        "replica": replica_label(),
        "topology": topology_address(),
    }
    _refuse_own_keys(own, extra)
    return {**extra, **own}


def _refuse_own_keys(own: dict[str, Any], extra: dict[str, Any]) -> None:
    set_later = MORE_METADATA.keys() - own.keys()
    taken = sorted(k for k in extra if k in set_later or (k in own and extra[k] != own[k]))
    if taken:
        raise CommprofError(
            f"profile(metadata=...) cannot set {', '.join(taken)}: commprof writes that itself; "
            "use another key"
        )


def _native_thread_id() -> int:
    import threading

    return threading.get_native_id()


def _cpu_model() -> str:
    for line in text_of("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def gloo_threads() -> dict[str, int]:
    """Returns the number of threads for collectives of each gloo or commprof group, by its name."""
    if not dist.is_available() or not dist.is_initialized():
        return {}
    found = {}
    world = getattr(dist.distributed_c10d, "_world", None)  # private to torch: it may be removed
    for group in getattr(world, "pg_map", ()):
        try:
            backend = group._get_backend(torch.device("cpu"))
            if backend.name() == "gloo":
                found[str(group.group_name)] = int(backend.options._threads)
            elif backend.name() == "commprof":
                found[str(group.group_name)] = 1  # one thread copies through shared memory
        except (AttributeError, RuntimeError, TypeError):
            pass  # no backend for the CPU, or torch has removed a private attribute
    return found
