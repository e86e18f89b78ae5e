"""Cases of ``coverage.py`` that send Python objects: first how long they are, then the bytes."""

from __future__ import annotations

import io
import pickle

import torch
import torch.distributed as dist

from tests.support.builders.coverage.coverage_rows import L, N, Prepared, Row

#: How ``all_gather_object`` collects, by torch's version.
NEW = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
GATHERED = "all_gather_into_tensor" if NEW else "all_gather"
#: Sent as an object.
VALUE = {"rank": "any"}


def pickled_bytes() -> int:
    """Of it, as torch writes it."""
    written = io.BytesIO()
    pickle.Pickler(written).dump(VALUE)
    return len(written.getvalue())


def objects(rank: int) -> Prepared:
    size, root = pickled_bytes(), rank == 0

    def issue() -> None:
        dist.all_gather_object([None] * N, VALUE)
        dist.broadcast_object_list([VALUE if root else None], src=0)
        dist.gather_object(VALUE, [None] * N if root else None, dst=0)
        dist.scatter_object_list([None], [VALUE] * N if root else None, src=0)

    return issue, [
        Row(GATHERED, L, N * L, "Long"),  # how long each is, then all at the longest's length
        Row(GATHERED, size, N * size, "Byte"),
        Row("broadcast", L, L, "Long"),
        Row("broadcast", size, size, "Byte"),
        Row("all_gather", L, N * L, "Long"),
        Row("gather", size, N * size if root else 0, "Byte"),
        Row("broadcast", L, L, "Long"),  # the longest's length, the objects, then each one's own
        Row("scatter", N * size if root else 0, size, "Byte"),
        Row("scatter", N * L if root else 0, L, "Long"),
    ]


def messages_of_objects(rank: int) -> Prepared:
    def issue() -> None:
        if rank == 0:
            dist.send_object_list([VALUE], dst=1)
        else:
            dist.recv_object_list([None], src=0)

    parts = ((L, "Long"), (pickled_bytes(), "Byte"))
    sent = [Row("send", size, 0, dtype) for size, dtype in parts]
    return issue, sent if rank == 0 else [Row("recv", 0, size, dtype) for size, dtype in parts]
