"""Reads and checks the JSON blocks of traces, whose shapes are defined here."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from commprof.files import Shape, checked, may_be_null

if TYPE_CHECKING:
    from commprof._reading import AlikeObjects

#: Keys of the first metadata block, which also holds the keys given to ``profile(metadata=...)``.
#: Traces of older versions lack the keys that may be None.
METADATA: Final[dict[str, Shape]] = {
    "rank": int,  # global rank of the process
    "world_size": int,  # ranks of the job
    "local_rank": int,  # rank on this host
    "restart_count": int,  # elastic restarts before this one
    "pid": int,  # process id
    "main_thread": int,  # kernel id of the thread that started capture
    "command": list[str],  # command line as a list of arguments
    "python": str,  # version
    "torch": str,  # version
    "commprof": str,  # version
    "backend": str,  # backend of the default process group; empty if there is no group
    "threads": int,  # torch's intra-op threads of the process
    "capture": str,  # native, python or nccl (NCCL's plugin; it leaves some versions empty)
    # usable_cpus: indices of the CPUs that the rank may use.
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
    # The same moment on two clocks.
    "clock": {"source": str, "monotonic_ns": int, "realtime_ns": int},
    "ring_prefix": str,  # path of a ring file without number and .ring; empty without rings
    "record_bytes": int,  # always 64
    "kinds": list[str],  # names by code, as in the next three lists
    "ops": list[str],  # c10d's names of operations
    "phases": list[str],  # phases of a step
    "dtypes": list[str],  # empty in a trace of the Python capture
    # For each model given to ``attach``: its inner hooks, in order of first use. A compressor is
    # written as NAME:option=value,...
    "hooks": list[str],
    # TORCHELASTIC_RUN_ID, which the attempts of an elastic job share; empty if unset.
    "elastic_run_id": str | None,
    # torchft's name of the process's replica group; empty without torchft.
    "replica": str | None,
    # SLURM's path of the host in the network, such as "switch.switch.node"; empty if not known.
    "topology": str | None,
    # Level of TORCH_DISTRIBUTED_DEBUG when capture began.
    "debug_level": str | None,
    # Absolute path of the file that the process runs; empty if not known.
    "script_path": str | None,
}
#: More ranks than any job has. Readers do not use larger numbers in a file, because such numbers
#: could make them allocate too much memory.
MOST_RANKS: Final = 1 << 20
_TELEMETRY: Final = ("utilisation_percent", "sm_clock_mhz", "power_w", "memory_used_bytes")
#: Keys that later metadata blocks may set; each block may hold any of these keys.
MORE_METADATA: Final[dict[str, Shape]] = {
    "hooks": list[str],  # as in the first block
    "threads": int,  # only if the script changed the number
    # Written when capture starts (by older versions: when capture ends):
    #   begin_monotonic_ns: earlier traces of the process ended before this time.
    #   network_namespace: empty if not known.
    # Written when capture ends:
    #   interfaces: for each network interface received_bytes and sent_bytes during capture.
    #   mtu_bytes: for each network interface.
    #   rated_mbit_per_s: for interfaces with an IPv4 address, except bridges; 0 if not known.
    #   ddp_models: number of DDP models that were trained, 32 at most.
    #   ddp_logs: for each of these models with a readable log: DDP's own log and these keys.
    #     group_name
    #     own_exchange: hook or method that exchanges gradients in place of DDP's all-reduce.
    #     parameter_bytes: in the order of the indices in DDP's log.
    #     sparse_modules: number of modules with sparse gradients.
    "cross_check_sources": dict,
    # Number of threads that run the collectives of each gloo or commprof group, by its name.
    "gloo_threads": dict,
    # NVML's figures of the rank's GPU, each with mean, minimum and maximum.
    #   limited: number of samples in which the GPU's clock was limited, by reason.
    "device_telemetry": {
        "uuid": str,
        "samples": int,
        **dict.fromkeys(_TELEMETRY, Mapping[str, float] | None),
        "limits_read": int,
        "limited": Mapping[str, int],
        "begin_monotonic_ns": int,
    },
    # Why capture recorded no times on the device; empty if it did, or if there is no device.
    "no_device_times": str,
    # plan: in the format of --trial. first_step: index of the trial's first step. left_out: for
    # each candidate that was not tried, the reason.
    "trial": {"plan": str, "first_step": int, "begin_monotonic_ns": int, "left_out": dict},
    # values: for each step of the trial, the value on which backward() was called, or null.
    "trial_losses": dict,
    # Why a requested trial did not begin.
    "no_trial": {"reason": str, "begin_monotonic_ns": int},
    # error: the exception that ended the capture, as one line, or "SystemExit with exit code N".
    # Empty if a later capture of the process ended without an exception.
    "ending": {"error": str},
    # The first write that failed.
    "write_failed": {"errno": int, "reason": str, "monotonic_ns": int},
    # Absent unless recording has been off for half a second or longer. recording: False if
    # recording went off at monotonic_ns, True if it went on again.
    "capture_state": {"recording": bool, "monotonic_ns": int},
    # True if ring files were requested, but some rings have no file because space was lacking.
    # Absent otherwise.
    "private_rings": bool,
    # Pauses of half a second or more in which the process did not run; each pause also has a
    # record.
    "pauses": {"count": int, "total_ns": int, "longest_ns": int, "longest_begin_ns": int},
    # Garbage collections of 1 ms or more. total_ns: time of all these collections. begin_ns and
    # end_ns: 4,096 at most.
    "garbage": {"total_ns": int, "begin_ns": list[int], "end_ns": list[int]},
    # Times at which DDP synchronised its buffers in forward passes, with the collectives; 4,096 at
    # most.
    "ddp_buffer_syncs": {"begin_ns": list[int], "end_ns": list[int]},
    # Times at which DDP searched the autograd graph for unused parameters, 4,096 at most.
    "ddp_searches": {"begin_ns": list[int], "end_ns": list[int]},
    # Times at which FSDP reduced gradients, with the copies before and after; 4,096 at most.
    "fsdp_reductions": {"begin_ns": list[int], "end_ns": list[int]},
    # Times at which FSDP prepared a unit for backward, mainly by a gather; 4,096 at most.
    "fsdp_backward_gathers": {"begin_ns": list[int], "end_ns": list[int]},
    # Times at which FSDP2 prepared a unit for forward, mainly by a gather; 4,096 at most.
    "fsdp_forward_gathers": {"begin_ns": list[int], "end_ns": list[int]},
    # Times of DTensor.full_tensor, which gathers the shards of a tensor; 4,096 at most.
    "full_tensors": {"begin_ns": list[int], "end_ns": list[int]},
    # Times at which torch pickled Python objects for a collective, 4,096 at most. Objects that
    # follow one another count as one.
    "object_pickles": {"begin_ns": list[int], "end_ns": list[int]},
    # Times at which torch unpickled objects after a collective, 4,096 at most. Objects that follow
    # one another count as one.
    "object_unpickles": {"begin_ns": list[int], "end_ns": list[int]},
    # Times of torch.save on the main thread, from the first byte until the file is closed.
    "saves": {"begin_ns": list[int], "end_ns": list[int]},
    # Times at which a DataLoader started worker processes for a pass over the data.
    "loader_worker_starts": {"begin_ns": list[int], "end_ns": list[int]},
    # Times at which a DataLoader ended its worker processes.
    "loader_worker_stops": {"begin_ns": list[int], "end_ns": list[int]},
    # Times of backward passes with autograd's anomaly detection on.
    "anomaly_backwards": {"begin_ns": list[int], "end_ns": list[int]},
    # Passes over DataLoaders, 1,024 at most.
    #   begin_ns: when the first batch was requested.
    #   end_ns: when the last batch came, or the pass ended.
    #   sampler, epoch: count from 1; 0 without a DistributedSampler that shuffles by its epoch.
    #   seed: a checksum; 0 if sampler is 0.
    #   batches: number of batches.
    #   checksum: of the first 4 batches; 0 if any part of these batches was not compared.
    #   contents: number of different contents of these batches; 0 if checksum is 0.
    #   length (only later versions): number of batches of a whole pass; 0 if not known.
    "data_passes": {
        "begin_ns": list[int],
        "end_ns": list[int],
        "sampler": list[int],
        "epoch": list[int],
        "seed": list[int],
        "batches": list[int],
        "checksum": list[int],
        "contents": list[int],
    },
    # Times of compilations by torch.compile during the capture; torch stores only the last 64.
    "compilations": {"begin_ns": list[int], "end_ns": list[int]},
    # See Trained in trace.exchanged. Later versions also write flat, ddp_model_bytes,
    # updated_models, kept_gradients and untrained_modules. The last key lists outermost modules of
    # DDP models: DDP reduced their gradients, but no update trained their parameters.
    "trained": {
        "parameter_bytes": int,
        "sharded": bool,
        "ddp_bytes": int,
        "ignored_bytes": int,
        "other_libraries": list[str],
    },
    # On rank 0: comparisons of all ranks' models. every: steps from one comparison to the next.
    # first_step: first step after which the models of ``ranks`` differed.
    "sync_checks": {"every": int, "checks": int, "first_step": int, "ranks": list[str]},
}
#: Keys of ``MORE_METADATA`` that ``METADATA`` does not check in the first block.
_ONLY_LATER: Final = frozenset(MORE_METADATA) - {
    key for key in METADATA if METADATA[key] == MORE_METADATA.get(key)
}
#: Python frames that issued an operation, 48 at most: ``file:line function``, innermost first. id
#: counts from 1 in order of first use.
STACK: Final[dict[str, Shape]] = {"id": int, "frames": list[str]}
#: Last block of a closed trace. records: number of records written. dropped: number of records that
#: were lost, for example because a ring was full.
END: Final[dict[str, Shape]] = {"records": int, "dropped": int, "end_monotonic_ns": int}
#: Replaces END if the process died. records: number of records moved from ring files to the trace.
#: dropped: number of records that full rings had dropped.
SALVAGED: Final[dict[str, Shape]] = {"records": int, "dropped": int}


@dataclass(frozen=True)
class Communicator:
    """One communicator of NCCL."""

    #: Id, from 1, in this process.
    id: int
    #: NCCL's hash in hexadecimal digits, equal on all ranks.
    hash: str
    #: Name that the user gave; empty if there is none.
    name: str
    #: This process's rank.
    rank: int
    #: Number of ranks; 0 if not known.
    size: int

    @property
    def label(self) -> str:
        """Name of the communicator in reports."""
        return self.name or self.hash


_OF_GROUP: Final = ("id", "name", "description", "backend", "rank", "size", "token")
_SHOWN_OF_TOKEN: Final = 4


@dataclass(frozen=True)
class Group:
    """One process group, as described by the rank that wrote the trace."""

    #: Id, from 1, in order of first use in this process.
    id: int
    #: c10d's name of the group, equal on all ranks; ``token`` if the group has no name.
    name: str
    description: str
    backend: str
    #: This process's rank in the group.
    rank: int
    size: int
    #: Random text that the ranks of a group without a name agreed on; empty for other groups.
    token: str = ""

    @property
    def label(self) -> str:
        """Name of the group in reports."""
        label = group_label(self.name, self.description)
        if self.token and self.name == self.token and self.description in ("", "undefined"):
            label = f"unnamed {self.token[:_SHOWN_OF_TOKEN]}"
        # In a group with several backends, the name of the CPU part ends with the CPU's backend.
        suffix = f":{self.backend}"
        return label + suffix if label != self.name and self.name.endswith(suffix) else label

    def is_cpu_part_of(self, name: str) -> bool:
        """True if this is the CPU part of the group that c10d calls ``name``."""
        return self.name == f"{name}:{self.backend}"


def group_label(name: str, description: str) -> str:
    """Returns the user's description of a process group, or c10d's name if there is none."""
    return name if description in ("", "undefined", "default_pg") else description


def backends_by_device(name: str, pairs: str) -> dict[str, str]:
    """Returns a process group's backend for each type of device, such as "cuda".

    Empty if the group uses the backend ``name`` on all devices.

    Args:
        name: the backend that the script gave, such as "gloo" or "cpu:gloo,cuda:nccl"; "undefined"
            if the script gave no backend; empty if unknown.
        pairs: the backends that c10d uses, such as "cpu:gloo,cuda:nccl"; empty if unknown.
    """
    if name not in ("", "undefined") and ":" not in name:
        return {}
    listed = [pair.partition(":") for pair in f"{name},{pairs}".split(",") if ":" in pair]
    return {device: backend for device, _, backend in listed}


def read_metadata(payload: memoryview) -> dict[str, Any]:
    """Reads the first block of a trace; keys of ``profile(metadata=...)`` are not checked.

    A key of ``MORE_METADATA`` is left out if its value has a wrong type, because older versions let
    scripts set such keys.

    Raises:
        ValueError: a key is missing or unusable; the message names it.
    """
    value: dict[str, Any] = _alike_metadata().read(payload) or _read(payload, METADATA)
    if value["world_size"] > MOST_RANKS:
        raise ValueError(f"world_size {value['world_size']} is above {MOST_RANKS}")
    if value["rank"] >= value["world_size"]:
        raise ValueError(f"rank {value['rank']} is not below world_size {value['world_size']}")
    for key in () if _ONLY_LATER.isdisjoint(value) else _ONLY_LATER & value.keys():
        try:
            value[key] = checked(value[key], MORE_METADATA[key], key)
        except ValueError:
            del value[key]
    return value


def read_more_metadata(payload: memoryview) -> dict[str, Any]:
    """Reads a later metadata block; ValueError if malformed."""
    value = _read(payload, {})
    given = {key: shape for key, shape in MORE_METADATA.items() if key in value}
    return {key: checked(value[key], shape, key) for key, shape in given.items()}


def read_group(payload: memoryview) -> Group:
    """Reads the description of one process group; ValueError if malformed."""
    members = _alike_groups().read(payload)
    group: Group
    if members is None:
        group = _read(payload, Group)
    else:
        group = Group(**{field: members[field] for field in _OF_GROUP if field in members})
    return group if group.name else replace(group, name=group.token)


def read_communicator(payload: memoryview) -> Communicator:
    """Reads the description of a communicator of NCCL; ValueError if malformed."""
    communicator: Communicator = _read(payload, Communicator)
    return communicator


def read_stack(payload: memoryview) -> tuple[int, tuple[str, ...]]:
    """Reads a stack: its id, and its frames, innermost first; ValueError if malformed."""
    value = _read(payload, STACK)
    return value["id"], tuple(value["frames"])


def read_dropped(payload: memoryview, shape: dict[str, Shape]) -> int:
    """Reads the number of dropped records in an END or SALVAGED block; ValueError if malformed."""
    alike = _alike_ends().read(payload) if shape is END else None
    return int((alike or _read(payload, shape))["dropped"])


def _read(payload: memoryview | bytes, shape: Shape) -> Any:
    try:
        return checked(json.loads(bytes(payload)), shape)
    except RecursionError:
        raise ValueError("JSON nested too deep") from None


class _AlikeDocuments:
    """Reads JSON documents of one shape, such as the metadata that each rank writes.

    If several documents hold a value in the same bytes, the value is parsed once. Results share
    such values, so callers must not change them.
    """

    #: Keys of objects that differ between ranks only in whole numbers.
    _CHANGING: Final = ("clock",)

    def __init__(self, shape: dict[str, Shape], optional: Sequence[str] = ()) -> None:
        """``optional``: keys that may be missing although they may not be null."""
        self._needed = {key for key in shape if key not in optional and not may_be_null(shape[key])}
        self._objects: AlikeObjects | None = None
        with suppress(ImportError):  # the module was not built, or is too old
            from commprof._reading import AlikeObjects

            inner = {key: _AlikeDocuments(shape[key]) for key in self._CHANGING if key in shape}

            def parse(key: str, text: bytes) -> Any:
                if key in inner and (found := inner[key].read(text)) is not None:
                    return found
                value = json.loads(text)
                return checked(value, shape[key], key) if key in shape else value

            integers = [key for key, member in shape.items() if member is int]
            self._objects = AlikeObjects(integers, self._CHANGING, parse)

    def read(self, payload: memoryview | bytes) -> dict[str, Any] | None:
        """Returns the members of a document; None if ``_read`` must read the document."""
        if self._objects is None:
            return None
        try:
            members = self._objects.read(bytes(payload))
        except (ValueError, RecursionError):
            return None
        return members if members is not None and self._needed <= members.keys() else None


@functools.cache
def _alike_metadata() -> _AlikeDocuments:
    return _AlikeDocuments(METADATA)


@functools.cache
def _alike_groups() -> _AlikeDocuments:
    return _AlikeDocuments(get_type_hints(Group), optional=("token",))


@functools.cache
def _alike_ends() -> _AlikeDocuments:
    return _AlikeDocuments(END)
