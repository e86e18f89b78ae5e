"""Kinds of operations in NCCL Inspector's logs, and their properties."""

from __future__ import annotations

from typing import Final

#: c10d's names of NCCL's operations in which every rank waits for all others.
SPLIT: Final = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AllGatherV": "all_gather",
    "AllToAll": "all_to_all",
    "All2All": "all_to_all",
    "AlltoAll": "all_to_all",
}
MESSAGES: Final = ("Send", "Recv")
#: Kind for a send together with its recv.
MESSAGE_PAIR: Final = "SendRecv"
#: c10d's names of operations that are not split, because the logs do not name their root.
UNSPLIT: Final = {"Broadcast": "broadcast", "Reduce": "reduce"}
#: Operations whose size in nccl-tests is the sum over all ranks. NCCL's logs have the size of one
#: rank's part.
_OF_ALL_RANKS: Final = (
    *("AllGather", "AllGatherV", "ReduceScatter", "AllToAll", "All2All", "AlltoAll"),
)


def size_factor(kind: str, ranks: int) -> int:
    """Returns nccl-tests' size divided by the bytes that NCCL counts on one rank."""
    return ranks if kind in _OF_ALL_RANKS else 1
