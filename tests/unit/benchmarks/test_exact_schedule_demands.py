from __future__ import annotations

from typing import Any

import pytest

from benchmarks.attribution.exact_schedules import demands

_RIGHT = {"cost error %": 0.1, "wait error %": 0.1, "transfer error %": 0.1}


def in_turn(named: int | None, share: float | None) -> dict[str, Any]:
    about = {"kind": "in turn", "late": [3, 5], "rank": 3, "cause": "forward", **_RIGHT}
    return {**about, "named": named, "named cause": None, "true share": share}


@pytest.mark.parametrize(
    ("named", "share", "right"),
    [(None, None, 1), (5, 0.7, 1), (3, 0.61, 1), (5, 0.5, 0), (4, 0.9, 0)],
)
def test_of_two_late_in_turn_only_the_cause_of_most_waiting_may_be_named(
    named: int | None, share: float | None, right: int
) -> None:
    first, *_ = demands([in_turn(named, share)])
    assert first.figure == f"{right} of 1"
