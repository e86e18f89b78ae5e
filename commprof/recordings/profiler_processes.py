"""Reads events without a category. The name of their process shows what they are.

Ascend's profiler (torch_npu, msprof) writes one Chrome trace for the host and the NPU. Events of
the NPU have no category. Process "Overlap Analysis" has the times in which an operator computed.
Process "HCCL" (in newer versions "Communication") has the collectives. Process "Ascend Hardware"
has every task of a stream; commprof reads only the copies. The trace does not show the sizes of
groups.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from commprof.recordings.profiler_kinds import COLLECTIVE, EventKind
from commprof.text import printable

_COMPUTE: Final = "Overlap Analysis"
_COMMUNICATION: Final = ("HCCL", "Communication")
_TASKS: Final = "Ascend Hardware"
#: Name of a collective: operation, group, number in the group, then a number of HCCL's own.
_COLLECTIVE: Final = re.compile(r"hcom_([A-Za-z]+)_+(\d+)_\d+_\d+")
#: c10d's names of HCCL's operations, where the names differ.
_WORDS: Final = {"receive": "recv", "alltoallvc": "alltoallv", "batchSendRecv": "sendrecv"}
#: Operations whose ``count`` is the number of elements of the input.
_COUNT_OF_INPUT: Final = ("allReduce", "allGather", "broadcast", "reduce", "send", "receive")
#: Counts of elements from this number on are ignored.
_MOST_ELEMENTS: Final = 1 << 48
#: Names of element types in torch, by HCCL's names.
_TYPES: Final = {
    **{"FP64": "Double", "FP32": "Float", "FP16": "Half", "BFP16": "BFloat16"},
    **{"INT64": "Long", "INT32": "Int", "INT16": "Short", "INT8": "Char", "UINT8": "Byte"},
}
#: Process ids in traces of torch before 1.8. Such traces do not name their processes.
_BEFORE_KINETO: Final = ("CPU functions", "CUDA functions")
#: First parts of the names of XLA's processes.
_OF_XLA: Final = ("/device:", "/host:")
_MOST_NAMED: Final = 3
_COPY: Final = "MEMCPY_ASYNC"
_COPY_WITHIN: Final = "SDMA"


class Processes:
    """Names of a trace's processes, which show the kinds of events without a category."""

    def __init__(self) -> None:
        """Begins without names."""
        self._names: dict[str | int, str] = {}
        #: Number of tasks of an NPU.
        self.tasks = 0

    def learn(self, metadata: dict[str, Any]) -> None:
        """Keeps the name of a process."""
        pid, arguments = metadata.get("pid"), metadata.get("args")
        name = arguments.get("name") if type(arguments) is dict else None
        if metadata.get("name") != "process_name" or not isinstance(name, str):
            return
        if isinstance(pid, str | int):
            self._names[pid] = name

    @property
    def names(self) -> list[str]:
        """Names of the processes, in order."""
        return list(dict.fromkeys(self._names.values()))

    def kind_of(self, event: dict[str, Any]) -> tuple[EventKind, dict[str, Any]]:
        """Returns the kind of an event without a category, and its arguments with torch's names."""
        name, pid, arguments = event.get("name"), event.get("pid"), event.get("args")
        if pid in _BEFORE_KINETO:
            self._names.setdefault(pid, pid)
        process = self._names.get(pid) if isinstance(pid, str | int) else None
        arguments = arguments if type(arguments) is dict else {}
        if process is None or type(name) is not str:
            return EventKind.UNUSED, {}
        here = {"device": 0, "stream": event.get("tid")}
        if process == _COMPUTE:
            return EventKind.KERNEL if name == "Computing" else EventKind.UNUSED, here
        if process in _COMMUNICATION:
            return _communication(name, arguments, here)
        if process == _TASKS:
            self.tasks += 1
            if name == _COPY:
                is_within = str(arguments.get("Task Type", "")).startswith(_COPY_WITHIN)
                return EventKind.COPY_WITHIN if is_within else EventKind.OTHER_COPY, here
        return EventKind.UNUSED, {}


def _communication(
    name: str, arguments: dict[str, Any], here: dict[str, Any]
) -> tuple[EventKind, dict[str, Any]]:
    match = _COLLECTIVE.fullmatch(name)
    if match is None:  # a message, or a part of a collective
        return EventKind.UNUSED, {}
    operation, group = match.groups()
    told = {**here, COLLECTIVE: _WORDS.get(operation, operation), "Process Group Name": group}
    dtype, count = _TYPES.get(str(arguments.get("data_type"))), arguments.get("count")
    is_count = type(count) is int and 0 < count < _MOST_ELEMENTS
    if operation in _COUNT_OF_INPUT and dtype and is_count:
        told |= {"dtype": dtype, "In msg nelems": count}
    return EventKind.COMMUNICATION, told


def written_by(processes: Sequence[str]) -> str:
    """Returns a clause that says which program wrote a trace; empty if there are no processes."""
    if not processes:
        return ""
    named = ", ".join(printable(name[:40]) for name in processes[:_MOST_NAMED])
    if any(name.startswith(_OF_XLA) for name in processes):
        return f"it is a profile of XLA (JAX, TensorFlow), whose processes are {named}"
    if any(name in _BEFORE_KINETO for name in processes):
        return (
            "it is a trace of torch's profiler without Kineto; record with torch.profiler.profile"
        )
    return f"it is not a trace of torch.profiler: its processes are {named}"
