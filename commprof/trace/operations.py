"""Families of operations; the members of a family differ only in their arguments.

A new operation of the trace format needs an entry in ``FAMILIES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from commprof.trace.schema import OPS

#: Family of each operation of ``schema.OPS``, named after its simplest variant; empty for an
#: unknown operation.
FAMILIES: Final[Mapping[str, str]] = {
    "other": "",
    "all_reduce": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_coalesced": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recv_any_source": "recv",
}

#: Families that add up, or otherwise reduce, the inputs of the ranks.
REDUCING: Final = ("all_reduce", "reduce", "reduce_scatter")
#: Families whose operations complete only after all ranks have issued the operation.
SYNCHRONISING: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
#: Families in which the sizes of different ranks may differ.
UNEVEN: Final = ("all_to_all", "gather", "scatter")
#: Families in which each rank sends, receives or keeps only a part of the data.
OF_PARTS: Final = ("all_gather", "reduce_scatter", *UNEVEN)


def family(op: str) -> str:
    """Returns the family of an operation; empty if not known.

    Names of other tools, such as ``all_reduce_barrier``, belong to the synchronising family with
    which the name begins.
    """
    listed = FAMILIES.get(op)
    if listed is not None:
        return listed
    return next(
        (synchronising for synchronising in SYNCHRONISING if op.startswith(synchronising)), ""
    )


def names_of(*families: str) -> tuple[str, ...]:
    """Returns the names of all operations of these families, in order of their codes."""
    return tuple(op for op in OPS if family(op) in families)


def codes_of(*families: str) -> tuple[int, ...]:
    """Returns the codes of all operations of these families, in order."""
    return tuple(map(OPS.index, names_of(*families)))
