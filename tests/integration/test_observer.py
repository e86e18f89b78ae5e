"""The observer sees every collective, with its sizes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.ranks import run_module

SIX, TWELVE = 6 * 4, 12 * 4
FLOAT, DOUBLE = "Float", "Double"

#: op, group size, seq in its group, dtype, bytes in, bytes out on rank 0, on rank 1.
EXPECTED = [
    ("all_reduce", 2, 0, FLOAT, (SIX, SIX), (SIX, SIX)),
    ("all_reduce", 2, 1, DOUBLE, (2 * SIX, 2 * SIX), (2 * SIX, 2 * SIX)),
    ("all_reduce", 2, 0, FLOAT, (SIX, SIX), (SIX, SIX)),
    ("broadcast", 2, 2, FLOAT, (SIX, SIX), (SIX, SIX)),
    ("reduce", 2, 3, FLOAT, (SIX, SIX), (SIX, SIX)),
    ("all_gather", 2, 4, FLOAT, (SIX, TWELVE), (SIX, TWELVE)),
    ("all_gather_into_tensor", 2, 5, FLOAT, (SIX, TWELVE), (SIX, TWELVE)),
    ("reduce_scatter_tensor", 2, 6, FLOAT, (TWELVE, SIX), (TWELVE, SIX)),
    ("all_to_all_single", 2, 7, FLOAT, (TWELVE, TWELVE), (TWELVE, TWELVE)),
    ("gather", 2, 8, FLOAT, (SIX, TWELVE), (SIX, 0)),
    ("scatter", 2, 9, FLOAT, (TWELVE, SIX), (0, SIX)),
    ("barrier", 2, 10, None, (0, 0), (0, 0)),
    ("send or recv", 2, 0, FLOAT, (SIX, 0), (0, SIX)),
    ("monitored_barrier", 2, 11, None, (0, 0), (0, 0)),
]


#: Their wait is recorded however short it was.
ALWAYS_WAITED = ("send", "recv", "monitored_barrier")


def test_every_collective_is_seen_with_its_sizes(tmp_path: Path) -> None:
    outputs = run_module("tests.support.every_collective", [str(tmp_path)], 2)
    for rank, output in enumerate(outputs):
        found = json.loads(output.strip().splitlines()[-1])
        assert [row[0] for row in found] == [
            ("send", "recv")[rank] if op == "send or recv" else op for op, *_ in EXPECTED
        ]
        for row, (_, size, seq, dtype, *by_rank) in zip(found, EXPECTED, strict=True):
            _, found_size, found_seq, found_dtype, bytes_in, bytes_out, completed, waited = row
            assert (found_size, found_seq) == (size, seq), row
            assert dtype in (None, found_dtype), row
            assert (bytes_in, bytes_out) == by_rank[rank], row
            assert completed, row
            if row[0] in ALWAYS_WAITED:
                assert waited, row
        # Each blocks its caller, but for one whose rank had no core until the work was done.
        assert sum(bool(row[-1]) for row in found) >= len(found) // 2
