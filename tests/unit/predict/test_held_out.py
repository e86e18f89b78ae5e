"""What the model is tried on has no part in it, or is marked."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from commprof.predict.fit.build import build_profile
from commprof.predict.fit.cost_model import SAME_HOST
from commprof.predict.fit.held_out import checks, model_error
from commprof.predict.replay.recorded import Recorded, compute_by_batch
from commprof.predict.replay.replay import Replay
from commprof.predict.replay.scenario import Scenario
from commprof.predict.replay.schedule import Batch, Schedule
from commprof.predict.what_if.answers import answer
from commprof.report.prediction import as_json as prediction_json
from commprof.report.prediction import table as prediction_table
from tests.support.builders.schedules import hook, profile, schedule

#: 1 MB at 2 ranks takes 10 ms in one of them, and 30 in the other.
FAST, SLOW = 1e-8, 3e-8


def at_rate(ranks: int, beta_s_per_byte: float, **values: object) -> Schedule:
    """Two buckets over a link of this rate, one after the other."""
    made = schedule(ready_ms=(10, 20), ranks=ranks, **values)  # type: ignore[arg-type]
    sent = 2 * (ranks - 1) / ranks * made.bucket_bytes * beta_s_per_byte
    first = 0.010 + sent[0]
    made.end_s[:] = np.array([first, max(first, 0.020) + sent[1]])
    return dataclasses.replace(made, period_s=made.end_s[:, 1].copy())


def runs(source: str = "RUN") -> list[Recorded]:
    """At 4 ranks the link is three times as slow as at 2: no rate is right for both."""
    return [
        Recorded(f"{source}, 2 ranks", at_rate(2, FAST), (), source),
        Recorded(f"{source}, 4 ranks", at_rate(4, SLOW), (), source),
    ]


def test_a_checked_run_of_the_profile_has_no_part_in_its_cost() -> None:
    base, other = runs()
    made, _ = build_profile([], [base, other], ["RUN"])
    found, refused = checks(Replay(base.schedule, made), [other], [base, other])
    assert refused == []
    # 1.5 times the bytes at the rate of 2 ranks: 10 + 15 + 30 ms.
    assert found[1].predicted_s == pytest.approx(0.055, rel=0.02)
    assert [each.held_out for each in found] == [False, True]
    # The same run where the profile is not of it: the profile's own rate.
    elsewhere = dataclasses.replace(made, sources=("OTHER",))
    given, _ = checks(Replay(base.schedule, elsewhere), [other], [base, other])
    assert abs(given[1].predicted_s / 0.055 - 1) > 0.1


def test_what_cannot_be_taken_out_is_marked_and_not_counted() -> None:
    base, other = runs()
    hooked = Recorded("RUN, hooked", at_rate(2, FAST, hook="fp16"), (), "RUN")
    inside = Recorded("RUN, one host", at_rate(2, FAST, link=SAME_HOST), (), "RUN")
    both = profile(hooks=(hook(),), source="run").links | profile(SAME_HOST, source="run").links
    made = dataclasses.replace(profile(hooks=(hook(),)), links=both, sources=("RUN",))
    found, refused = checks(Replay(base.schedule, made), [hooked, inside], [base])
    assert refused == []
    assert [each.held_out for each in found] == [False, False, False]
    assert model_error(found) is None
    measured = dataclasses.replace(made, links=profile().links)
    (_, one), _ = checks(Replay(base.schedule, measured), [other], [base])
    assert one.held_out  # all-reduce's cost is a microbenchmark's


def test_the_checked_batch_has_no_part_in_the_compute() -> None:
    def strong(ranks: int, batch: float, own_ms: float) -> Recorded:
        made = schedule(
            ranks=ranks,
            bytes_=(1, 1),
            ready_ms=(1, 2),
            backward_end_ms=own_ms,
            batch=Batch(batch, 10, "strong"),
        )
        return Recorded(f"{ranks}", made, (), "RUN")

    # 4 ms and 2 per sample; the last one takes 30 ms in the place of 8.
    recorded = [strong(1, 16, 36), strong(2, 8, 20), strong(8, 2, 30)]
    base, other = recorded[1].schedule, recorded[2]
    made = Replay(base, profile(), compute_by_batch(recorded, base))
    found, _ = checks(made, [other], recorded)
    assert found[1].predicted_s == pytest.approx(0.008, rel=1e-3)


def test_readers_are_told_which_check_is_held_out() -> None:
    base, _ = runs()
    hooked = Recorded("RUN, hooked", at_rate(2, FAST, hook="fp16"), (), "RUN")
    made = dataclasses.replace(profile(hooks=(hook(),)), sources=(str(Path("RUN").resolve()),))
    found = answer(Replay(base.schedule, made), [Scenario(2)], [base], [hooked], None, math.nan)
    text = prediction_table.render(found, "RUN", "by hand", [], 100)
    assert "RUN, hooked (not held out)" in text
    assert "Held-out error: not known, because nothing was recorded that the model was not" in text
    document = json.loads(prediction_json.render(found, "RUN", "by hand", []))
    assert [check["held_out"] for check in document["checks"]] == [False, False]
