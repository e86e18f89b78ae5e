"""The HTML page of a long run: its size, and what is left out to keep it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from commprof.report.html import page
from commprof.report.html.data import as_dict, page_data
from commprof.trace.schema import Phase
from tests.support.builders.run_directories import ranks_of
from tests.support.builders.traces import MS, Rank
from tests.unit.report.test_pages import full


def many_buckets(world_size: int, steps: int, buckets: int = 25) -> list[Rank]:
    """Steps of 1 s bound by a slow link, at times that are no round figures.

    Ranks are late by up to 150 ms. A bucket is issued every 15 ms and one is done every 23 ms, so
    each waits longer in the queue of gloo's two threads. The training thread waits for the last.
    """
    made = [Rank(r, world_size) for r in range(world_size)]
    draw = np.random.default_rng(7)
    for step in range(steps):
        at = step * 1000 * MS
        done = at + (400 + 23 * np.arange(buckets)) * MS + draw.integers(0, 9 * MS, buckets)
        for rank in made:
            late = int(draw.integers(0, 150 * MS))
            rank.step(at, at + 1000 * MS)
            rank.phase(Phase.DATA, at, at + 50 * MS)
            rank.phase(Phase.FORWARD, at + 50 * MS, at + 150 * MS)
            rank.phase(Phase.BACKWARD, at + 150 * MS, at + 990 * MS)
            for i in range(buckets):
                issue = at + (200 + 15 * i) * MS + late + int(draw.integers(0, 9 * MS))
                end = int(done[i] + draw.integers(0, 5 * MS))
                same = {"bytes": 25_000_000, "graph_task": step}
                rank.collective(buckets * step + i, issue, end, **same)
            rank.finalize(at + 950 * MS, at + 970 * MS, cpu=0, graph_task=step)
    return made


def test_many_buckets_and_long_steps_keep_to_the_limit(tmp_path: Path) -> None:
    report = full(tmp_path, many_buckets(8, 200))
    text = page.render(report)
    assert 950_000 < len(text.encode()) <= 1_000_000
    figures = text.split('id="data">')[1].split("</script>")[0]
    # The limit of spans alone would not do.
    assert len(text.encode()) - len(figures) + len(page_data([report], None, 10**9)) > 1_000_000
    (world,) = json.loads(figures)["worlds"]
    timeline = world["timeline"]
    shown, measured = timeline["steps"], timeline["measured_steps"]
    assert measured == 199
    assert 0 < len(shown) < measured
    assert shown == list(range(shown[0], shown[-1] + 1))
    assert abs((shown[0] - 1) - (measured - shown[-1])) <= 2  # from both ends alike
    assert timeline["left_out"] == 0  # whole steps are
    flights = [rank["flights"] for rank in timeline["ranks"]]
    assert [len(each["issue"]) for each in flights] == [25 * len(shown)] * 8
    assert np.median(flights[0]["queue"]) > 100_000


def test_in_no_room_at_all_the_least_is_drawn(tmp_path: Path) -> None:
    report = full(tmp_path, ranks_of(1, 9), ranks_of(2, 9))
    for world in as_dict([report], None, 1)["worlds"]:
        timeline = world["timeline"]
        assert len(timeline["steps"]) == 1
        assert timeline["left_out"] > 0
        for rank in timeline["ranks"]:
            assert len(rank["phases"]["begin"]) == 1
