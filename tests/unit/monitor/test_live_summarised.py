from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commprof.monitor.figures.summarised import Summaries, difference
from commprof.monitor.observer import Observer
from commprof.trace.schema import BlockType
from commprof.trace.summary import read_summary
from tests.support.builders import trace_bytes as made
from tests.support.builders.histograms import histogram_of
from tests.support.builders.traces import MS, document, operation, summary

SECOND = 1_000 * MS


def counted(sequence: int, at_s: int, fast: int, slow: int, **changes: Any) -> dict[str, Any]:
    """Returns a summary until ``at_s``, in which slow steps wait 21 ms longer than fast steps."""
    exposed = [3 * MS] * fast + [24 * MS] * slow
    return summary(
        sequence=sequence,
        end_ns=at_s * SECOND,
        steps=document([10 * MS] * fast + [31 * MS] * slow),
        exposed=document(exposed),
        exposed_wait=document([1 * MS] * fast + [22 * MS] * slow),
        exposed_transfer=document([2 * MS] * (fast + slow)),
        phases=[document([n * MS] * (fast + slow)) for n in (1, 1, 2, 3, 0)],
        operations=[
            operation(
                count=fast + slow,
                bytes=(fast + slow) * 1000,
                duration=document([4 * MS] * fast + [25 * MS] * slow),
            )
        ],
        **changes,
    )


def read(value: dict[str, Any]) -> Any:
    return read_summary(memoryview(json.dumps(value).encode()))


def test_summary_totals_are_of_the_newest_and_recent_ones_of_a_minute() -> None:
    summaries = Summaries()
    assert summaries.total is None
    summaries.add(read(counted(1, 5, 100, 0)))
    for sequence in range(2, 30):
        at_s = 5 * sequence
        summaries.add(read(counted(sequence, at_s, 100, max(0, at_s - 80))))
    total, recent = summaries.total, summaries.recent
    assert total is not None
    assert recent is not None
    assert (total.steps, recent.steps) == (165, 60)
    assert total.step_s == pytest.approx(100 * 0.010 + 65 * 0.031)
    assert (recent.step_s, recent.exposed_s) == pytest.approx((0.031, 0.024))
    assert (recent.wait_s, recent.transfer_s, recent.unsplit_s) == pytest.approx((0.022, 0.002, 0))
    assert (recent.data_s, recent.forward_s, recent.backward_s) == pytest.approx(
        (0.001, 0.002, 0.003)
    )
    assert math.isnan(recent.hidden_s)
    (found,) = summaries.operations(["other", "all_reduce"]).values()
    assert (found.calls, found.bytes, found.timed_calls) == (165, 165_000, 165)
    assert found.recent_mean_s == pytest.approx(0.025)
    assert found.recent_p50_s == pytest.approx(0.025, rel=0.01)


def unfinished(sequence: int, split: int, open_steps: int, **arrivals: int) -> dict[str, Any]:
    """Returns a summary of steps with 3 ms exposed, of which ``open_steps`` are not split yet."""
    counts = {"known": split, "unknown": 0, "unsplit_steps": 0, **arrivals}
    every = split + open_steps + counts["unsplit_steps"]
    return summary(
        sequence=sequence,
        end_ns=sequence * 800 * MS,
        steps=document([10 * MS] * every),
        exposed=document([3 * MS] * every),
        phases=[document([n * MS] * every) for n in (1, 1, 2, 3, 0)],
        arrivals=counts,
        exposed_wait=document([1 * MS] * split),
        exposed_transfer=document([2 * MS] * split),
    )


def test_steps_with_a_pending_split_are_not_counted_as_unsplit() -> None:
    summaries = Summaries()
    found = []
    for split, open_steps, unsplit in ((98, 2, 0), (180, 0, 0), (198, 3, 1), (201, 0, 1)):
        arrivals = {"unsplit_steps": unsplit, "unsplit_ns": 3 * MS * unsplit}
        summaries.add(read(unfinished(len(found) + 1, split, open_steps, **arrivals)))
        total, recent = summaries.total, summaries.recent
        assert total is not None
        assert recent is not None
        assert recent.unsplit_s >= 0
        found.append(total.unsplit_s)
    assert found == pytest.approx([0, 0, 0.003, 0.003])


def test_unsplit_time_of_older_summaries_does_not_decrease() -> None:
    summaries = Summaries()
    found = []
    for split, open_steps in ((98, 2), (180, 0), (197, 3), (202, 0)):
        summaries.add(read(unfinished(len(found) + 1, split, open_steps)))
        total, recent = summaries.total, summaries.recent
        assert total is not None
        assert recent is not None
        assert recent.unsplit_s >= 0
        found.append(total.unsplit_s)
    assert found == pytest.approx([0.006, 0.006, 0.009, 0.009])


def test_few_of_many_frequent_summaries_are_kept() -> None:
    summaries = Summaries()
    for at_s in range(1, 301):
        summaries.add(read(counted(at_s, at_s, at_s, 0)))
        assert len(summaries._kept) <= 15
        assert summaries.newest is not None
        assert summaries.newest.sequence == at_s
        assert summaries.recent is not None
        steps = summaries.recent.steps
        assert steps == max(1, at_s - 1) if at_s <= 60 else 60 <= steps < 66


def test_of_older_summaries_only_sums_and_durations_are_kept() -> None:
    summaries = Summaries()
    for at_s in range(1, 301):
        waits = {"block_ns": 1, "cells": [at_s, 1, 7]}
        summaries.add(read({**counted(at_s, at_s, at_s, 0), "waited_for": waits}))
    *older, newest = summaries._kept
    assert newest.exposed.buckets.size
    assert newest.waited_for.cells.size
    for past in older:
        histograms = [past.steps, past.exposed, past.exposed_wait, *past.phases]
        for call in past.operations:
            histograms += [call.wait, call.until_last, call.transfer]
            assert call.duration.buckets.size
        assert not any(histogram.buckets.size for histogram in histograms)
        assert not past.waited_for.cells.size


def test_recent_figures_of_steps_that_last_minutes_are_those_of_the_last_one() -> None:
    summaries = Summaries()
    for at_s in range(0, 1000, 5):
        done = at_s // 200
        summaries.add(read(counted(at_s // 5 + 1, at_s, min(done, 2), max(0, done - 2))))
        assert len(summaries._kept) <= 15
        recent = summaries.recent
        assert (recent and recent.steps) == (1 if done else None)
        if recent is not None:
            assert recent.step_s == pytest.approx(0.010 if done < 3 else 0.031)


def test_found_steps_are_dropped_once_the_script_marks_fewer_of_its_own() -> None:
    summaries = Summaries()
    for sequence, steps in ((1, 30), (2, 60), (3, 5)):
        summaries.add(read(counted(sequence, 10 * sequence, steps, 0)))
    assert summaries.recent is not None
    assert summaries.recent.steps == 5


def test_found_steps_are_dropped_once_the_script_marks_more_of_its_own() -> None:
    summaries = Summaries()
    summaries.add(read(counted(1, 15, 3, 0, steps_end="update")))
    summaries.add(read(counted(2, 20, 30, 0)))
    assert summaries.recent is not None
    assert summaries.recent.steps == 30


def test_a_repeated_or_older_summary_changes_nothing() -> None:
    summaries = Summaries()
    summaries.add(read(counted(2, 10, 5, 0)))
    summaries.add(read(counted(2, 10, 5, 0)))
    summaries.add(read(counted(1, 5, 2, 0)))
    recent = summaries.recent
    assert recent is not None
    assert recent.steps == 5


def test_calls_of_an_operation_include_its_rare_groups_and_sizes() -> None:
    summaries = Summaries()
    parts = [
        operation(count=5),
        operation(group=0, size_class=0, count=2),
        operation(op=0, group=0),
    ]
    summaries.add(read(counted(1, 5, 20, 0) | {"operations": parts}))
    found = summaries.operations(["other", "all_reduce"])
    assert {op: state.calls for op, state in found.items()} == {"all_reduce": 7, "other": 2}


@pytest.mark.parametrize("seed", range(5))
def test_the_difference_of_two_histograms_is_that_of_the_newer_values(seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 10**9, 300).tolist()
    found = difference(histogram_of(values), histogram_of(values[:100]))
    expected = histogram_of(values[100:])
    assert (found.count, found.sum_ns) == (200, expected.sum_ns)
    assert found.buckets.tolist() == expected.buckets.tolist()
    assert found.counts.tolist() == expected.counts.tolist()


def test_no_step_is_shown_before_a_summary_counts_one(tmp_path: Path) -> None:
    block = made.block(BlockType.SUMMARY, json.dumps(counted(1, 1, 0, 0)).encode())
    (tmp_path / "rank_0.trace").write_bytes(made.trace(block, rank=0, world_size=1))
    observer = Observer(tmp_path)
    state = observer.poll()
    observer.close()
    assert state is not None
    assert (state.ranks[0].step, state.ranks[0].total) == (-1, None)


def test_the_waiting_in_each_summary_is_added_up_once_per_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adding up more often would make a look quadratic in the number of ranks."""
    for rank in range(4):
        cells = [number for other in range(4) if other != rank for number in (0, other, SECOND)]
        value = counted(1, 5, 20, 0, waited_for={"block_ns": 1 << 24, "cells": cells})
        block = made.block(BlockType.SUMMARY, json.dumps(value).encode())
        (tmp_path / f"rank_{rank}.trace").write_bytes(made.trace(block, rank=rank, world_size=4))
    read_from: list[Summaries] = []
    original = Summaries.waited_for_ns

    def noted(summaries: Summaries) -> dict[int, int]:
        read_from.append(summaries)
        return original(summaries)

    monkeypatch.setattr(Summaries, "waited_for_ns", noted)
    observer = Observer(tmp_path)
    state = observer.poll()
    observer.close()
    assert state is not None
    assert [rank.waited_for_s for rank in state.ranks] == [3, 3, 3, 3]
    assert len(read_from) == 4


def test_a_job_in_always_on_mode_is_observed_from_its_summaries(tmp_path: Path) -> None:
    for rank in range(2):
        cells = [0, 1 - rank, 7 * SECOND * rank]
        value = counted(1, 5, 20, 0, waited_for={"block_ns": 1 << 24, "cells": cells})
        block = made.block(BlockType.SUMMARY, json.dumps(value).encode())
        path = tmp_path / f"rank_{rank}.trace"
        ops = {"ops": ["other", "all_reduce"]}
        path.write_bytes(made.trace(block, rank=rank, world_size=2, **ops))
    observer = Observer(tmp_path)
    state = observer.poll()
    assert state is not None
    assert state.mode == "always-on"
    assert [rank.step for rank in state.ranks] == [20, 20]
    assert [rank.waited_for_s for rank in state.ranks] == [7, 0]
    assert list(state.ranks[0].operations) == ["all_reduce"]
    assert state.bandwidth == {}
    observer.close()
