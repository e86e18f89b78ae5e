"""Recognises collectives by the names of kernels, ranges and operators in a torch.profiler trace.

The name of a collective's range consists of the backend and the operation, as in
``gloo:all_reduce`` or ``nccl:_all_gather_base``. Backends outside of torch follow the same rule, so
any name of a backend is accepted.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from commprof.trace.schema import OPS

#: Pairs of a word and c10d's name of the operation. The first word that occurs in the letters of a
#: name counts. So a long word comes before the shorter words that it contains.
_OPS_BY_WORD: Final = (
    # This kernel of FlashInfer only ends an all-reduce, although the kernel's namespace contains
    # the word "allreduce".
    ("rmsnormlamport", "other"),
    ("allreducecoalesced", "all_reduce_coalesced"),
    ("allreduce", "all_reduce"),
    ("allgatherintotensorcoalesced", "all_gather_into_tensor_coalesced"),
    ("allgathercoalesced", "all_gather_coalesced"),
    ("allgatherbase", "all_gather_into_tensor"),
    ("allgatherinto", "all_gather_into_tensor"),
    ("allgather", "all_gather"),
    # This kernel of AITER reduces a part on each rank, and stores the reduced part on all ranks.
    ("reducescattercrossdevicestore", "all_reduce"),
    ("reducescattertensorcoalesced", "reduce_scatter_tensor_coalesced"),
    ("reducescatterbase", "reduce_scatter_tensor"),
    ("reducescattertensor", "reduce_scatter_tensor"),
    ("reducescatter", "reduce_scatter"),
    ("alltoallbase", "all_to_all_single"),
    ("alltoallv", "all_to_all_single"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("monitoredbarrier", "monitored_barrier"),
    ("barrier", "barrier"),
    ("scatter", "scatter"),
    ("gather", "gather"),
    ("sendrecv", "other"),
    ("recvanysource", "recv_any_source"),
    ("send", "send"),
    ("recv", "recv"),
    ("crossdevicereduce", "all_reduce"),
    ("reduce", "reduce"),
)
_NO_LETTER = re.compile(r"[^a-z]")
#: Operations with several forms. The names of ranges do not distinguish the forms.
_FORMS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
#: Begins of the names of ranges that torch's own backends open. All these ranges communicate.
_OF_TORCH = re.compile(r"(?:nccl|gloo|mpi|ucc|xccl|ccl):", re.IGNORECASE)
#: Words that occur only in names of collectives.
_SPECIFIC: Final = r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|monitored_?barrier"
#: Words that a script may also use in the names of other ranges.
_COMMON: Final = r"broadcast|reduce|gather|scatter|barrier|send_?recv|send|recv_?any_?source|recv"
_OF_ANY = re.compile(
    rf"[a-z]\w*:_?(?:sparse_?)?(?:(?P<specific>{_SPECIFIC})|{_COMMON})"
    r"(?:_?(?:v|base|single|coalesced|into_?tensor|tensor|oop|sparse|barrier|uneven))*"
    r"(?: \d+ ?(?:->|<-) ?\d+)?",
    re.IGNORECASE,
)


@lru_cache(maxsize=1 << 12)
def operation(name: str) -> str:
    """Returns c10d's name of the operation that a name contains; "other" if unknown."""
    letters = _NO_LETTER.sub("", name.lower())
    for word, op in _OPS_BY_WORD:
        if word in letters:
            return op
    return "other"


def form_of(op: str) -> str:
    """Returns one name for all forms: "all_gather" for "all_gather_into_tensor"."""
    return next((form for form in _FORMS if op.startswith(form)), op)


@lru_cache(maxsize=1 << 12)
def is_collective_range(name: str) -> bool:
    """True if the name of a range consists of a backend and a collective operation."""
    return _OF_TORCH.match(name) is not None or _OF_ANY.fullmatch(name) is not None


def is_operator_of_c10d(name: str) -> bool:
    """True for an operator of c10d, such as ``c10d::allreduce_``."""
    return name.startswith("c10d::")


def has_certain_word(range_name: str) -> bool:
    """True if the name has a word that only collectives use; ``data:gather`` has none."""
    match = _OF_ANY.fullmatch(range_name)
    return match is not None and bool(match["specific"])


def is_backend_of_torch(range_name: str) -> bool:
    """True if the range belongs to one of torch's own backends."""
    return _OF_TORCH.match(range_name) is not None


def backend_of(range_name: str) -> str:
    """Returns the backend in the name of a collective's range, in lower case."""
    return range_name.partition(":")[0].lower()


assert {op for _, op in _OPS_BY_WORD} <= set(OPS)
