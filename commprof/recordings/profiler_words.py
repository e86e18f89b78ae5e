"""c10d's words in the names of kernels, ranges, operators and metadata of a torch.profiler trace.

A backend names the range of a collective after itself and the operation, such as
``gloo:all_reduce`` or ``nccl:_all_gather_base``. Backends outside of torch do the same, so the
operation's word counts, whatever name stands before it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from commprof.trace.schema import OPS

#: Word to be found in the lower-case letters of a name, and c10d's name of the operation. The first
#: match counts, so a word that contains another word comes before that word.
_OPS_BY_WORD: Final = (
    # Kernel of FlashInfer that only ends an all-reduce: it is no all-reduce of its own, although
    # the name of its namespace contains "allreduce".
    ("rmsnormlamport", "other"),
    ("allreducecoalesced", "all_reduce_coalesced"),
    ("allreduce", "all_reduce"),
    ("allgatherintotensorcoalesced", "all_gather_into_tensor_coalesced"),
    ("allgathercoalesced", "all_gather_coalesced"),
    ("allgatherbase", "all_gather_into_tensor"),
    ("allgatherinto", "all_gather_into_tensor"),
    ("allgather", "all_gather"),
    # Kernel of AITER that reduces a part on each rank, and stores it on all of them.
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
#: Operations with several forms, which the names of ranges do not distinguish.
_FORMS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
#: Backends of torch: all of their ranges are of communication.
_OF_TORCH = re.compile(r"(?:nccl|gloo|mpi|ucc|xccl|ccl):", re.IGNORECASE)
#: Words that only names of collectives have; then words that a script may use for a range of its
#: own.
_SPECIFIC: Final = r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|monitored_?barrier"
_COMMON: Final = r"broadcast|reduce|gather|scatter|barrier|send_?recv|send|recv_?any_?source|recv"
_OF_ANY = re.compile(
    rf"[a-z]\w*:_?(?:sparse_?)?(?:(?P<specific>{_SPECIFIC})|{_COMMON})"
    r"(?:_?(?:v|base|single|coalesced|into_?tensor|tensor|oop|sparse|barrier|uneven))*"
    r"(?: \d+ ?(?:->|<-) ?\d+)?",
    re.IGNORECASE,
)


@lru_cache(maxsize=1 << 12)
def operation(name: str) -> str:
    """Maps a name of a kernel, range or metadata entry to c10d's name; "other" if unknown."""
    letters = _NO_LETTER.sub("", name.lower())
    for word, op in _OPS_BY_WORD:
        if word in letters:
            return op
    return "other"


def form_of(op: str) -> str:
    """Returns one name for all forms of an operation; names of ranges do not distinguish forms.

    For example, "all_gather" for "all_gather_into_tensor".
    """
    return next((form for form in _FORMS if op.startswith(form)), op)


@lru_cache(maxsize=1 << 12)
def is_collective_range(name: str) -> bool:
    """True if a range's name is that of a backend and an operation, in c10d's words."""
    return _OF_TORCH.match(name) is not None or _OF_ANY.fullmatch(name) is not None


def is_operator_of_c10d(name: str) -> bool:
    """True for an operator of c10d, such as ``c10d::allreduce_``."""
    return name.startswith("c10d::")


def has_certain_word(range_name: str) -> bool:
    """True if the name has a word that only collectives have, unlike ``data:gather``."""
    match = _OF_ANY.fullmatch(range_name)
    return match is not None and bool(match["specific"])


def is_backend_of_torch(range_name: str) -> bool:
    """True if the range belongs to one of torch's own backends."""
    return _OF_TORCH.match(range_name) is not None


def backend_of(range_name: str) -> str:
    """Returns the backend in the name of a collective's range, in lower case."""
    return range_name.partition(":")[0].lower()


assert {op for _, op in _OPS_BY_WORD} <= set(OPS)
