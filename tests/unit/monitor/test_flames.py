"""py-spy's samples joined with the phases, and the picture of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from commprof.errors import UsageError
from commprof.monitor.watchdog.flames import parse_ranks
from commprof.monitor.watchdog.phase_flames import NO_PHASE, Stretch, fold, read_stretches
from commprof.report import flame_svg

MS = 1_000_000


def event(ph: str, ts_us: int, name: str, tid: int = 0) -> dict[str, Any]:
    return {"ph": ph, "ts": ts_us, "name": name, "tid": tid, "pid": 1, "args": {"filename": "a.py"}}


def thread(tid: int, name: str) -> dict[str, Any]:
    return {**event("M", 0, "thread_name", tid), "args": {"filename": "", "name": name}}


def test_stretches_of_the_main_thread() -> None:
    events = [
        thread(0, "140: Thread-1"),
        event("B", 0, "other", 0),
        thread(1, "139: MainThread"),
        event("B", 10, "main", 1),
        event("B", 10, "f", 1),
        event("E", 30, "f", 1),
        event("B", 30, "g", 1),
        event("E", 40, "g", 1),
        event("E", 50, "main", 1),
    ]
    assert read_stretches(json.dumps(events)) == [
        Stretch(10_000, 30_000, ("main (a.py)", "f (a.py)")),
        Stretch(30_000, 40_000, ("main (a.py)", "g (a.py)")),
        Stretch(40_000, 50_000, ("main (a.py)",)),
    ]


def test_the_main_thread_without_its_name() -> None:
    events = [
        event("B", 0, "Thread._bootstrap", 0),
        event("B", 0, "main", 1),
        event("E", 7, "Thread._bootstrap", 0),
        event("E", 9, "main", 1),
    ]
    assert read_stretches(json.dumps(events)) == [Stretch(0, 9_000, ("main (a.py)",))]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"ph": "B"}]'])
def test_another_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_stretches(text)


def test_each_sample_counts_in_the_phase_of_its_moment() -> None:
    f, g = Stretch(0, 60 * MS, ("f",)), Stretch(60 * MS, 100 * MS, ("g",))
    begin = 5000 * MS
    phases = [
        (begin - 2 * MS, begin + 28 * MS, "forward"),
        (begin + 35 * MS, begin + 84 * MS, "backward"),
    ]
    found = fold([f, g], phases, begin, 10 * MS, error_ns=5 * MS)
    assert found.time_ns == {
        ("forward", "f"): 30 * MS,  # at 0, 10, 20
        (NO_PHASE, "f"): 10 * MS,  # at 30
        ("backward", "f"): 20 * MS,
        ("backward", "g"): 30 * MS,  # at 60, 70, 80
        (NO_PHASE, "g"): 10 * MS,
    }
    assert found.samples == 10
    # At 0 (begin 2 ms away), 30 (2 and 5 ms), 80 (4 ms); those at 40 and 90 are 5 and 6 away.
    assert found.doubtful == 3


def test_the_picture() -> None:
    picture = flame_svg.render(
        {("forward", "f <x>"): 30 * MS, ("forward", "g"): 10 * MS, ("backward", "h"): 60 * MS},
        "commprof: rank 0",
        "100 samples",
    )
    assert picture.startswith("<svg ")
    assert "<title>f &lt;x&gt;: 30 ms, 30.0%</title>" in picture
    assert "<title>backward: 60 ms, 60.0%</title>" in picture
    assert "<script" not in picture
    # The larger one comes first, and is as wide as its share of 1180.
    assert 'x="10.0" y="69" width="708.0"' in picture
    assert 'x="718.0" y="69" width="472.0"' in picture
    assert flame_svg.render({}, "t", "s").endswith("</svg>\n")


def test_ranks() -> None:
    assert parse_ranks("3, 0,3") == (0, 3)
    for text in ("", "a", "-1", "1,,2"):
        with pytest.raises(UsageError, match="whole numbers such as 0,3"):
            parse_ranks(text)
