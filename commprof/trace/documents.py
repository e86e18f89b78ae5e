"""Shapes of a trace's JSON blocks, and functions that read and check them."""

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
    "capture": str,  # native, python, or nccl (NCCL's plugin; versions unknown to it are empty)
    # usable_cpus: indices of the CPUs that the rank may use, or to which it is pinned.
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
    "ring_prefix": str,  # ring files are this prefix, a number and .ring; empty without rings
    "record_bytes": int,  # 64
    "kinds": list[str],  # names by code, as in the next three lists
    "ops": list[str],  # operations, in c10d's words
    "phases": list[str],  # phases of a step
    "dtypes": list[str],  # empty in a trace of the Python capture
    # For each model given to ``attach``: its inner hooks, in order of first use. A compressor is
    # written as NAME:option=value,...
    "hooks": list[str],
    # TORCHELASTIC_RUN_ID, which the attempts of an elastic job share; empty if unset. Traces of
    # older versions do not have it.
    "elastic_run_id": str | None,
    # torchft's name of the replica group that the process belongs to; empty if there is none.
    "replica": str | None,
    # SLURM's path of the host in its network, from the top: "switch.switch.node"; empty without
    # one. Traces of older versions do not have it.
    "topology": str | None,
    # Level of torch's checks of collectives when capture began, TORCH_DISTRIBUTED_DEBUG. Traces of
    # older versions do not have it.
    "debug_level": str | None,
    # Absolute path of the file that the process runs; empty if there is none or it is not found.
    # Traces of older versions do not have it.
    "script_path": str | None,
}
#: More ranks than any job has. Readers use no larger number from a file: it could make them
#: allocate too much memory.
MOST_RANKS: Final = 1 << 20
#: Figures of a GPU, each with its mean, minimum and maximum.
_TELEMETRY: Final = ("utilisation_percent", "sm_clock_mhz", "power_w", "memory_used_bytes")
#: Keys that a later metadata block may set again; a block may hold any of them.
MORE_METADATA: Final[dict[str, Shape]] = {
    # "hooks" and "threads" as in the first block; "threads" only if the script changed the number.
    "hooks": list[str],
    "threads": int,  # as the script set it last
    # Written when capture starts: begin_monotonic_ns (earlier traces of the process ended before
    # it), and network_namespace, empty if unknown. Older versions wrote both at the end of capture.
    # Written when capture ends: three objects whose keys are names of network interfaces, namely
    # interfaces (received_bytes and sent_bytes while capture was on), mtu_bytes, and
    # rated_mbit_per_s (only of interfaces with an IPv4 address that are not bridges; 0 if not
    # known). Also ddp_logs, with an object for each trained DDP model, 32 at most. The object holds
    # DDP's own log of the model and these keys: group_name; own_exchange, the hook or method that
    # exchanges gradients instead of DDP's all-reduce; parameter_bytes, in the order of the indices
    # in DDP's log; and sparse_modules, the number of modules with sparse gradients. ddp_models is
    # the number of DDP models that were trained.
    "cross_check_sources": dict,
    # Number of threads that run the collectives of each gloo group, by the group's name.
    "gloo_threads": dict,
    # NVML's figures of the rank's GPU so far, each with mean, minimum and maximum; and, for each
    # reason to limit the GPU's clock, the number of samples in which this reason applied.
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
    # plan, in the format of --trial; first_step, the index of the trial's first step; left_out, for
    # each candidate that was not tried the reason.
    "trial": {"plan": str, "first_step": int, "begin_monotonic_ns": int, "left_out": dict},
    # values: for each step of the trial the value on which backward() was called, or null.
    "trial_losses": dict,
    # Why a trial that was asked for did not begin.
    "no_trial": {"reason": str, "begin_monotonic_ns": int},
    # The exception that ended the capture, as one line, or "SystemExit with exit code N"; empty if
    # a later capture of the process ended without one.
    "ending": {"error": str},
    # The first write that failed.
    "write_failed": {"errno": int, "reason": str, "monotonic_ns": int},
    # recording is False if recording went off at monotonic_ns and stayed off for half a second or
    # longer, because the mode was "off" or the script switched recording off. It is True if
    # recording went on again at monotonic_ns. Absent until recording has been off for that long.
    "capture_state": {"recording": bool, "monotonic_ns": int},
    # True if ring files were requested but some threads' rings have no file, for lack of space: the
    # existing ring files then do not hold all new records. Absent otherwise.
    "private_rings": bool,
    # Pauses of half a second or more in which the process did not run; each pause also has a
    # record.
    "pauses": {"count": int, "total_ns": int, "longest_ns": int, "longest_begin_ns": int},
    # Garbage collections of 1 ms or more: the begin and end of each, 4,096 at most, and the total.
    "garbage": {"total_ns": int, "begin_ns": list[int], "end_ns": list[int]},
    # Times at which DDP synchronised its buffers in forward passes, including the collectives. Here
    # and in ddp_searches, 4,096 at most.
    "ddp_buffer_syncs": {"begin_ns": list[int], "end_ns": list[int]},
    # Times at which DDP searched the autograd graph for unused parameters.
    "ddp_searches": {"begin_ns": list[int], "end_ns": list[int]},
    # Begin and end of FSDP's reductions of gradients in backward passes: the collectives, and the
    # copies before and after them. Here and in the next three keys, 4,096 at most.
    "fsdp_reductions": {"begin_ns": list[int], "end_ns": list[int]},
    # FSDP's preparation of a unit for backward: gathering it again if it was released.
    "fsdp_backward_gathers": {"begin_ns": list[int], "end_ns": list[int]},
    # FSDP2's preparation of a unit for forward: gathering it if it was released.
    "fsdp_forward_gathers": {"begin_ns": list[int], "end_ns": list[int]},
    # Calls of DTensor.full_tensor, which gathers the shards of a tensor.
    "full_tensors": {"begin_ns": list[int], "end_ns": list[int]},
    # Times at which torch pickled Python objects for a collective, 4,096 at most; objects that
    # follow one another count as one.
    "object_pickles": {"begin_ns": list[int], "end_ns": list[int]},
    # Times at which torch unpickled objects after a collective; limited and joined like
    # object_pickles.
    "object_unpickles": {"begin_ns": list[int], "end_ns": list[int]},
    # Times of torch.save on the main thread, from the first byte until the file is closed.
    "saves": {"begin_ns": list[int], "end_ns": list[int]},
    # Times at which a DataLoader started worker processes for a pass over the data.
    "loader_worker_starts": {"begin_ns": list[int], "end_ns": list[int]},
    # Times at which a DataLoader ended its worker processes.
    "loader_worker_stops": {"begin_ns": list[int], "end_ns": list[int]},
    # Times of backward passes with autograd's anomaly detection on.
    "anomaly_backwards": {"begin_ns": list[int], "end_ns": list[int]},
    # Passes over DataLoaders, 1,024 at most. begin_ns: when the first batch was asked for; end_ns:
    # when the last batch came, or the pass ended. sampler and epoch count from 1, and seed is a
    # checksum; all three are 0 without a DistributedSampler that shuffles by its epoch. batches:
    # number of batches. checksum: of the content of the first 4 batches; contents: number of
    # different contents among them; both are 0 if any part of these batches was not compared.
    # Later versions also write length: the number of batches of a whole pass, or 0 if the data set
    # does not tell it.
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
    # Times of compilations by torch.compile during the capture; torch remembers the last 64.
    "compilations": {"begin_ns": list[int], "end_ns": list[int]},
    # Bytes of the parameters that the optimizers updated in their first updates: of all parameters,
    # of those that DDP models reduce, and of those that DDP models were told to ignore. sharded is
    # True if some parameters are shards. other_libraries: loaded libraries that communicate outside
    # of torch.distributed. Later versions also write flat, ddp_model_bytes, updated_models and
    # kept_gradients, see trace.exchanged, and untrained_modules: the outermost modules of DDP
    # models whose gradients are reduced but whose parameters no update trained.
    "trained": {
        "parameter_bytes": int,
        "sharded": bool,
        "ddp_bytes": int,
        "ignored_bytes": int,
        "other_libraries": list[str],
    },
    # On rank 0: comparisons of all ranks' models, one every ``every`` steps; first_step is the
    # first step after which the models of the listed ranks differed.
    "sync_checks": {"every": int, "checks": int, "first_step": int, "ranks": list[str]},
}
#: Keys of ``MORE_METADATA`` that a check by ``METADATA`` leaves unchecked in the first block.
_ONLY_LATER: Final = frozenset(MORE_METADATA) - {
    key for key in METADATA if METADATA[key] == MORE_METADATA.get(key)
}
#: Python frames that issued operations. id counts from 1 in order of first use. The frames are
#: written as ``file:line function``, innermost first, 48 at most.
STACK: Final[dict[str, Shape]] = {"id": int, "frames": list[str]}
#: Last block of a closed trace: number of records written, number lost (a ring was full, all rings
#: were in use, or the disk stayed full), and the time of closing.
END: Final[dict[str, Shape]] = {"records": int, "dropped": int, "end_monotonic_ns": int}
#: Replaces END if the process died: records moved from ring files into the trace, and records that
#: full rings had dropped.
SALVAGED: Final[dict[str, Shape]] = {"records": int, "dropped": int}


@dataclass(frozen=True)
class Communicator:
    """One communicator of NCCL."""

    #: Id, from 1, in this process.
    id: int
    #: NCCL's hash in hexadecimal digits, equal on all ranks.
    hash: str
    #: The user's name; empty if there is none.
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
#: Number of characters of a group's token that reports show.
_SHOWN_OF_TOKEN: Final = 4


@dataclass(frozen=True)
class Group:
    """One process group, as described by the rank that wrote the trace."""

    #: Id, from 1, in order of first use in this process.
    id: int
    #: c10d's name of the group, equal on all ranks; ``token`` if the group has no name.
    name: str
    #: The user's description of the group.
    description: str
    backend: str
    #: This process's rank in the group.
    rank: int
    #: Number of ranks in the group.
    size: int
    #: Random text that the ranks of a group without a name agreed on; empty for other groups.
    token: str = ""

    @property
    def label(self) -> str:
        """Name of the group in reports."""
        label = group_label(self.name, self.description)
        if self.token and self.name == self.token and self.description in ("", "undefined"):
            label = f"unnamed {self.token[:_SHOWN_OF_TOKEN]}"
        # If a group also has a backend for devices, the name of its CPU part ends with the CPU's
        # backend.
        suffix = f":{self.backend}"
        return label + suffix if label != self.name and self.name.endswith(suffix) else label

    def is_cpu_part_of(self, name: str) -> bool:
        """True if this is the CPU part of the group that c10d calls ``name``."""
        return self.name == f"{name}:{self.backend}"


def group_label(name: str, description: str) -> str:
    """Returns the user's description of a process group, or c10d's name if there is none."""
    return name if description in ("", "undefined", "default_pg") else description


def backends_by_device(name: str, pairs: str) -> dict[str, str]:
    """Returns the backend that a process group uses on each type of device, such as "cuda".

    Empty if ``name`` is a backend, which the group then uses on all devices.

    Args:
        name: the group's backend in c10d's words: its name, "undefined" if the script gave none, or
            "cpu:gloo,cuda:nccl" if it gave one for each type of device; empty if unknown.
        pairs: the backends that c10d uses, such as "cpu:gloo,cuda:nccl"; empty if unknown.
    """
    if name not in ("", "undefined") and ":" not in name:
        return {}
    listed = [pair.partition(":") for pair in f"{name},{pairs}".split(",") if ":" in pair]
    return {device: backend for device, _, backend in listed}


def read_metadata(payload: memoryview) -> dict[str, Any]:
    """Reads the first block of a trace; keys of ``profile(metadata=...)`` are not checked.

    A key of ``MORE_METADATA`` is left out if its value does not have the type given there: older
    versions let a script set such a key to any value.

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
    """Reads a later metadata block, which sets some keys anew; ValueError if malformed."""
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

    A value that several documents hold in the same bytes is parsed once. Results then share it, so
    callers must not change it.
    """

    #: Keys whose values are objects that differ from rank to rank only in whole numbers.
    _CHANGING: Final = ("clock",)

    def __init__(self, shape: dict[str, Shape], optional: Sequence[str] = ()) -> None:
        """``optional``: keys that may be missing, besides those that may be null."""
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
        """Returns the checked members of a document.

        None if ``_read`` must read the document, for example to say what is wrong with it.
        """
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
