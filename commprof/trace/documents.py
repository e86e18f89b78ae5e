"""The JSON blocks of a trace, checked: what passes here is used without looking again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from commprof.files import Shape, checked

#: The first metadata block; what ``profile(metadata=...)`` was given stands beside these keys.
METADATA: Final[dict[str, Shape]] = {
    "rank": int,  # global rank of the process
    "world_size": int,  # ranks of the job
    "local_rank": int,  # rank on this host
    "restart_count": int,  # elastic restarts before this one
    "pid": int,  # process id
    "main_thread": int,  # kernel id of the thread that started capture
    "command": list[str],  # arguments
    "python": str,  # version
    "torch": str,  # version
    "commprof": str,  # version
    "backend": str,  # of the default process group; empty without one
    "threads": int,  # of torch, per process
    "capture": str,  # native or python
    # usable_cpus: numbers of the CPUs that the rank may use, or is pinned to.
    "machine": {
        "hostname": str,
        "boot_id": str,
        "time_namespace": str,
        "pid_namespace": str,
        "cpu_model": str,
        "cpu_count": int,
        "usable_cpu_count": int,
        "usable_cpus": list[str],
        "memory_bytes": int,
        "kernel": str,
        "cuda_devices": int,
    },
    # Two clocks at one moment.
    "clock": {"source": str, "monotonic_ns": int, "realtime_ns": int},
    "ring_prefix": str,  # ring files are this, a number and .ring; empty without any
    "record_bytes": int,  # 64
    "kinds": list[str],  # names by code, as the next three
    "ops": list[str],  # of operations, in c10d's words
    "phases": list[str],  # of phases of a step
    "dtypes": list[str],  # empty in a trace of the Python capture
    # Per model given to ``attach`` the hooks that ran inside it, in order of first use; a
    # compressor as NAME:option=value,...
    "hooks": list[str],
    # TORCHELASTIC_RUN_ID, by which attempts of one elastic job are known; empty without it. Traces
    # of older versions do not have it.
    "elastic_run_id": str | None,
}
#: More than any job has; what is made per rank must not be of any size that a file names.
MOST_RANKS: Final = 1 << 20
#: Of a GPU, each with its mean, least and most.
_TELEMETRY: Final = ("utilisation_percent", "sm_clock_mhz", "power_w", "memory_used_bytes")
#: What a later metadata block may set anew; each block any of it.
MORE_METADATA: Final[dict[str, Shape]] = {
    # As above.
    "hooks": list[str],
    # begin_monotonic_ns, before which another trace of the process ended; network_namespace;
    # interfaces, per name received_bytes and sent_bytes while capture was on; mtu_bytes, per name;
    # rated_mbit_per_s, per name of those with an IPv4 address but no bridge, 0 if not known;
    # ddp_logs, per trained DDP model (32 at most) what its own log says, group_name, own_exchange
    # (what sends gradients in the place of DDP's all-reduce), parameter_bytes in the order of the
    # log's indices, and sparse_modules.
    "cross_check_sources": dict,
    # Per gloo group's name the threads that run its collectives.
    "gloo_threads": dict,
    # What NVML said of the rank's GPU so far: each figure with its mean, least and most, and in how
    # many of the samples what held the clock down.
    "device_telemetry": {
        "uuid": str,
        "samples": int,
        **dict.fromkeys(_TELEMETRY, Mapping[str, float] | None),
        "limits_read": int,
        "limited": Mapping[str, int],
        "begin_monotonic_ns": int,
    },
    # Why capture took no times on the device; empty where it did, or there is none.
    "no_device_times": str,
    # plan as --trial takes it; first_step, the first that a candidate had; left_out, per candidate
    # that took no part the reason.
    "trial": {"plan": str, "first_step": int, "begin_monotonic_ns": int, "left_out": dict},
    # values: per step of the trial the number that backward() began with, or null.
    "trial_losses": dict,
    # Why a trial that was asked for did not begin.
    "no_trial": {"reason": str, "begin_monotonic_ns": int},
    # The exception that ended the capture, in a line, or "SystemExit with exit code N"; empty if a
    # later session of the process began well.
    "ending": {"error": str},
    # The first write that failed.
    "write_failed": {"errno": int, "reason": str, "monotonic_ns": int},
    # Times in which the process did not run at all, half a second or longer; each is a record too.
    "pauses": {"count": int, "total_ns": int, "longest_ns": int, "longest_begin_ns": int},
    # Of rank 0: comparisons of all models every so many steps; first_step after which the ranks
    # differed.
    "sync_checks": {"every": int, "checks": int, "first_step": int, "ranks": list[str]},
}
#: Python frames that issued operations: number from 1 in order of first use; innermost frame first,
#: 48 at most, as ``file:line function``.
STACK: Final[dict[str, Shape]] = {"id": int, "frames": list[str]}
#: Of a trace that was closed: records written, records lost (a ring was full, all rings were lent,
#: or the disk stayed full), when it was closed.
END: Final[dict[str, Shape]] = {"records": int, "dropped": int, "end_monotonic_ns": int}
#: In the place of END where the process died: records taken over from ring files, records that
#: full rings had refused.
SALVAGED: Final[dict[str, Shape]] = {"records": int, "dropped": int}


@dataclass(frozen=True)
class Group:
    """One process group, as the rank that wrote the trace saw it."""

    #: From 1, in order of first use in this process.
    id: int
    #: c10d's name: the same on all ranks.
    name: str
    #: What the user called it.
    description: str
    backend: str
    #: Of this process in the group.
    rank: int
    #: Ranks of the group.
    size: int


def read_metadata(payload: memoryview) -> dict[str, Any]:
    """Reads the first block of a trace; keys of ``profile(metadata=...)`` are not checked.

    Raises:
        ValueError: names the key that is missing or unusable.
    """
    value = _read(payload, METADATA)
    if value["world_size"] > MOST_RANKS:
        raise ValueError(f"world_size {value['world_size']} is above {MOST_RANKS}")
    if value["rank"] >= value["world_size"]:
        raise ValueError(f"rank {value['rank']} of world_size {value['world_size']}")
    return value


def read_more_metadata(payload: memoryview) -> dict[str, Any]:
    """Reads a later metadata block, which sets some keys anew; ValueError as above."""
    value = _read(payload, {})
    given = {key: shape for key, shape in MORE_METADATA.items() if key in value}
    return {key: checked(value[key], shape, key) for key, shape in given.items()}


def read_group(payload: memoryview) -> Group:
    """Reads the description of one process group; ValueError as above."""
    group: Group = _read(payload, Group)
    return group


def read_stack(payload: memoryview) -> tuple[int, tuple[str, ...]]:
    """Reads number and frames of one stack, innermost first; ValueError as above."""
    value = _read(payload, STACK)
    return value["id"], tuple(value["frames"])


def read_dropped(payload: memoryview, shape: dict[str, Shape]) -> int:
    """Reads the number of dropped records in an END or SALVAGED block; ValueError as above."""
    return int(_read(payload, shape)["dropped"])


def _read(payload: memoryview, shape: Shape) -> Any:
    try:
        return checked(json.loads(bytes(payload)), shape)
    except RecursionError:
        raise ValueError("JSON nested too deep") from None
