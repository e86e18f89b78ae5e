from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.late.dumped_hang import diagnosis
from commprof.errors import TraceError
from tests.support.builders.flight_dumps import dump, entry, write_dumps

PAIR = {"0": [0, 1]}


@pytest.mark.parametrize(
    ("first", "begins", "kind", "accused"),
    [
        (0, 90, "absent", [1]),
        (7, 10, "absent", [1]),  # entries were dropped only before rank 0 began to wait
        (7, 90, "unmatched", []),  # the send may be among the dropped entries
    ],
)
def test_a_message_that_a_full_buffer_dropped_was_not_missed(
    tmp_path: Path, first: int, begins: int, kind: str, accused: list[int]
) -> None:
    waits = entry("0", 0, "recv 0<-1", at=50)
    others = [
        {**entry("0", number, state="completed", at=begins + number), "record_id": first + number}
        for number in range(3)
    ]
    done = [entry("0", number, state="completed", at=1 + number) for number in range(3)]
    write_dumps(tmp_path, dump(PAIR, *done, waits), dump(PAIR, *others))
    found = diagnosis(tmp_path)
    assert (found.kind, [one.rank for one in found.culprits]) == (kind, accused)


def test_a_collective_that_a_full_buffer_dropped_is_known_by_its_number(tmp_path: Path) -> None:
    waits = entry("0", 9, at=50)
    later = {**entry("0", 8, state="completed", at=90), "record_id": 7}
    write_dumps(
        tmp_path, dump(PAIR, entry("0", 8, state="completed", at=1), waits), dump(PAIR, later)
    )
    found = diagnosis(tmp_path)
    assert [one.rank for one in found.culprits] == [1]


def unnamed(*entries: dict[str, Any]) -> dict[str, Any]:
    kept = [{k: v for k, v in each.items() if k != "process_group"} for each in entries]
    return dump({}, *kept)


def test_groups_without_names_are_not_joined_by_each_ranks_own_numbers(tmp_path: Path) -> None:
    first = unnamed(entry("0", 0, state="completed"), entry("1", 0, "all_gather"))
    second = unnamed(entry("0", 0, state="completed"), entry("2", 0, "all_gather"))
    with pytest.raises(TraceError, match="have indices instead of names for 3 process groups"):
        diagnosis(write_dumps(tmp_path / "several", first, second))
    alone = diagnosis(write_dumps(tmp_path / "alone", first))
    assert alone.mismatches == ()
    one = unnamed(entry("0", 0, state="completed"), entry("0", 1))
    other = unnamed(entry("0", 0, state="completed"))
    found = diagnosis(write_dumps(tmp_path / "one", one, other))
    assert [each.rank for each in found.culprits] == [1]
