"""Determines the kinds of events of a torch.profiler trace, from category and name."""

from __future__ import annotations

import re
from enum import IntEnum, auto
from functools import lru_cache
from typing import Final

from commprof.recordings.profiler_words import is_collective_range

#: Names of communication kernels of NCCL, RCCL, oneCCL, MSCCL, inference servers and symmetric
#: memory.
_COMMUNICATION = re.compile(
    r"nccl|rccl|msccl|oneccl|(?:^|[^a-z])ccl_|multimem_\w*(?:reduce|gather)|"
    r"rmsnormlamport|(?:barrier|put_signal|wait_signal)_kernel\(unsigned int\*\*",
    re.IGNORECASE,
)
#: Words in the function names of other communication kernels (vLLM, SGLang, TensorRT-LLM,
#: FlashInfer, AITER). Template arguments are not searched, because they may name a computation.
_OF_MANY_RANKS = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|cross_device_(?:reduce|store)", re.IGNORECASE
)
#: Functions that run on one rank although their names match ``_OF_MANY_RANKS``, such as kernels of
#: Inductor and reductions among the threads of a block.
_OF_ONE_RANK = re.compile(
    r"^(?:void )?(?:triton_[a-z]+_fused_|at::)|copy_(?:in|out)|"
    r"(?:warp|block|thread|cta|lane)_?(?:all|reduce_?scatter)",
    re.IGNORECASE,
)
_ANONYMOUS = "(anonymous namespace)::"
#: Words in the names of communicating kernels of which a recording has no details.
_UNREADABLE = re.compile(
    r"deep_?ep|nvshmem|rocshmem|intranode::|internode::|symm_mem|userbuffers_|pplx|flux::|mori::|"
    r"ep(?:dispatch|combine)(?:intra|inter)node|moe_?(?:a2a|all_?to_?all)|mega_moe|"
    r"a2a_(?:dispatch|combine|pack|unpack)|uccl",
    re.IGNORECASE,
)
#: Words in the names of kernels that both compute and communicate.
_FUSED = re.compile(r"gemm|matmul", re.IGNORECASE)
#: Words in the names of copies within a device, by CUDA, HIP and Level Zero.
_WITHIN_DEVICE = re.compile(r"DtoD|D2D|DeviceToDevice|Device -> Device", re.IGNORECASE)
#: Words in the names of copies between two devices.
_BETWEEN_DEVICES = re.compile(r"PtoP|P2P|Peer", re.IGNORECASE)
#: Kernels that copy or fill memory: ROCm before 7.2 records copies as kernels.
_COPYING_KERNEL = re.compile(r"^MEMORY_COPY_|^__amd_rocclr_(?:copy|fill)Buffer")
#: Names of launches of graphs; CUPTI may append a version.
_GRAPH_LAUNCH = re.compile(r"(?:cuda|cu|hip)GraphLaunch(?:_\w+)?")
_RANGES = re.compile(
    r"ProfilerStep#\d|DistributedDataParallel\.forward|"
    r"FullyShardedDataParallel\.forward|FSDP::|Optimizer\.step#|enumerate\(DataLoader\)|"
    r"^#* ?(?:forward|backward|optimizer)(?: \d+)? ?#*$|^PP:\d",
    re.IGNORECASE,
)
_BACKWARD_OP = "autograd::engine::evaluate_function"
#: First part of the names of autograd's own nodes.
_NODES = "torch::autograd::"
#: Operator in which DDP copies a bucket back into the gradients.
_COPIED_BACK = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
#: Operator that splits a tensor. gloo's reduce-scatter uses it.
_CHUNK = "aten::chunk"
#: Name of an operator that waits, such as ``_c10d_functional::wait_tensor``.
_WAITS = re.compile(r"(?:^|[^a-z])waits?(?:$|[^a-z])", re.IGNORECASE)


class Category(IntEnum):
    """Kind of an event's category (``cat``). Events of all other categories are ignored."""

    KERNEL = 0
    COPY = auto()
    LAUNCH = auto()
    RANGE = auto()
    OPERATOR = auto()
    #: Category of device events that commprof cannot interpret.
    OTHER_DEVICE = auto()


#: Kinds by the names of categories, which differ between versions and devices.
CATEGORIES: Final[dict[str, Category]] = {
    **dict.fromkeys(("kernel", "Kernel"), Category.KERNEL),
    **dict.fromkeys(("gpu_memcpy", "Memcpy", "gpu_memset", "Memset"), Category.COPY),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime"), Category.LAUNCH),
    **dict.fromkeys(("xpu_runtime", "xpu_driver"), Category.LAUNCH),
    **dict.fromkeys(("privateuse1_runtime", "privateuse1_driver"), Category.LAUNCH),
    "user_annotation": Category.RANGE,
    **dict.fromkeys(("cpu_op", "Operator"), Category.OPERATOR),
    **dict.fromkeys(("mtia_ccp_events", "hpu_op", "collective_comm"), Category.OTHER_DEVICE),
}


class EventKind(IntEnum):
    """Kind of an event, which determines where the event is kept."""

    UNUSED = 0
    COMMUNICATION = auto()
    KERNEL = auto()
    #: Communicating kernel of which the recording has no details.
    UNREADABLE_KERNEL = auto()
    COPY_WITHIN = auto()
    COPY_BETWEEN = auto()
    OTHER_COPY = auto()
    LAUNCH = auto()
    GRAPH_LAUNCH = auto()
    #: Range of communication, steps or phases.
    RANGE = auto()
    #: Operator of c10d.
    ISSUE = auto()
    WAIT = auto()
    BACKWARD = auto()
    CALLER = auto()
    OPERATOR = auto()
    COPY_BACK = auto()
    CHUNK = auto()
    #: Device event that commprof cannot interpret; such events are only counted.
    OTHER_DEVICE = auto()


#: Field of ``ProfilerEvents`` that stores the events of a kind without their names.
COLUMN_OF: Final = {
    **dict.fromkeys((EventKind.KERNEL, EventKind.UNREADABLE_KERNEL), "kernels"),
    EventKind.COPY_WITHIN: "copies",
    **dict.fromkeys((EventKind.OTHER_COPY, EventKind.COPY_BETWEEN), "other_copies"),
    **{EventKind.WAIT: "waits", EventKind.BACKWARD: "backward", EventKind.CALLER: "callers"},
    **dict.fromkeys((EventKind.OPERATOR, EventKind.COPY_BACK, EventKind.CHUNK), "operators"),
}
#: Field of ``ProfilerEvents`` that stores the begins of the events of a kind.
BEGINS_OF: Final = {EventKind.COPY_BACK: "copied_back_ns", EventKind.CHUNK: "chunked_ns"}
#: Field of ``ProfilerEvents`` that stores the events of a kind with their names.
LIST_OF: Final = {
    EventKind.COMMUNICATION: "communication",
    EventKind.COPY_BETWEEN: "between_devices",
    EventKind.RANGE: "ranges",
    EventKind.ISSUE: "issued",
}
_OPERATORS: Final = {_COPIED_BACK: EventKind.COPY_BACK, _CHUNK: EventKind.CHUNK}
#: Kinds of events of a device, which have a correlation id and a stream.
OF_DEVICE: Final = (
    *(EventKind.COMMUNICATION, EventKind.KERNEL, EventKind.UNREADABLE_KERNEL),
    *(EventKind.COPY_WITHIN, EventKind.COPY_BETWEEN, EventKind.OTHER_COPY),
)
LAUNCHES: Final = (EventKind.LAUNCH, EventKind.GRAPH_LAUNCH)
#: Argument that names the collective to which an event belongs.
COLLECTIVE: Final = "Collective name"
#: Argument of copies with values such as "DtoD". The value is appended to the copy's name, because
#: torch 2.13 may give every copy the name "Memcpy". The C++ scanner uses the same argument.
COPY_KIND: Final = "copy kind"
#: Arguments that are stored for events of the kinds in ``LIST_OF``.
KEPT_ARGUMENTS: Final[tuple[str, ...]] = (
    *(COLLECTIVE, "Process Group Name", "Process Group Description", "Group size", "Seq"),
    *("dtype", "In msg nelems", "Out msg nelems", "Process Group Ranks", "Src Rank", "Dst Rank"),
    *("Rank", "Input Dims", "Input type", "Concrete Inputs", "External id", "external id"),
)


def is_communication(kernel_name: str) -> bool:
    """True for the name of a communication kernel, for example of NCCL."""
    if _COMMUNICATION.search(kernel_name):
        return True
    return _has_collective(kernel_name) and not _FUSED.search(kernel_name)


def _has_collective(kernel_name: str) -> bool:
    function = re.split(r"[<(]", kernel_name.replace(_ANONYMOUS, ""), maxsplit=1)[0]
    is_of_one_rank = _OF_ONE_RANK.search(function) is not None
    return _OF_MANY_RANKS.search(function) is not None and not is_of_one_rank


@lru_cache(maxsize=1 << 14)
def kind_of(category: Category, name: str, is_collective: bool) -> EventKind:
    """Returns the kind of an event.

    Args:
        category: kind of the event's category.
        name: the event's name.
        is_collective: True if the event's arguments name a collective.
    """
    return _KIND_OF[category](name, is_collective)


def _kernel(name: str, is_collective: bool) -> EventKind:
    if is_collective or is_communication(name):
        return EventKind.COMMUNICATION
    if _COPYING_KERNEL.search(name):
        within = "copyBuffer" in name or "DEVICE_TO_DEVICE" in name
        return EventKind.COPY_WITHIN if within else EventKind.OTHER_COPY
    is_unreadable = _UNREADABLE.search(name) is not None or _has_collective(name)
    return EventKind.UNREADABLE_KERNEL if is_unreadable else EventKind.KERNEL


def _copy(name: str, is_collective: bool) -> EventKind:
    if is_collective or _BETWEEN_DEVICES.search(name):
        return EventKind.COPY_BETWEEN
    return EventKind.COPY_WITHIN if _WITHIN_DEVICE.search(name) else EventKind.OTHER_COPY


def _launch(name: str, is_collective: bool) -> EventKind:
    if _GRAPH_LAUNCH.fullmatch(name):
        return EventKind.GRAPH_LAUNCH
    is_launch = ("aunch" in name and "HostFunc" not in name) or "emcpy" in name
    return EventKind.LAUNCH if is_launch else EventKind.UNUSED


def _other_device(name: str, is_collective: bool) -> EventKind:
    return EventKind.OTHER_DEVICE


def _range(name: str, is_collective: bool) -> EventKind:
    return (
        EventKind.RANGE if _RANGES.search(name) or is_collective_range(name) else EventKind.UNUSED
    )


def _operator(name: str, is_collective: bool) -> EventKind:
    has_namespace = "::" in name
    if not has_namespace and _range(name, is_collective) is EventKind.RANGE:
        return EventKind.RANGE  # torch up to 1.11 writes ranges as operators
    if has_namespace and _WAITS.search(name.rpartition("::")[2]):
        return EventKind.WAIT
    if name.startswith("c10d::") or name == "record_param_comms":
        return EventKind.ISSUE
    if name.startswith(_BACKWARD_OP):
        return EventKind.BACKWARD
    if not has_namespace or name.startswith(_NODES):
        return EventKind.CALLER
    return _OPERATORS.get(name, EventKind.OPERATOR)


_KIND_OF: Final = {
    Category.KERNEL: _kernel,
    Category.COPY: _copy,
    Category.LAUNCH: _launch,
    Category.RANGE: _range,
    Category.OPERATOR: _operator,
    Category.OTHER_DEVICE: _other_device,
}
