from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from benchmarks.attribution import blind_cards
from commprof.workloads.models.timed import TimedOptions


@pytest.mark.parametrize("cause", blind_cards.CAUSES)
def test_each_plan_can_be_run_and_has_only_its_own_cause(cause: str) -> None:
    for seed in range(20):
        plan = blind_cards._plan(cause, random.Random(seed))
        options = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in plan["options"].items()
        }
        made = TimedOptions(**options)
        assert 2 <= plan.get("hosts", plan["ranks"]) <= 4
        late = {"late in data": "data", "paused host": "pause"}.get(cause)
        assert (made.late_rank >= 0) == (late is not None)
        assert late in (None, made.late_phase)
        assert made.late_rank < plan["ranks"]
        assert bool(plan["slow"]) == (cause == "slow rank")
        assert ("mbit" in plan.get("rate", "")) == (cause == "slow link")
        assert (plan.get("interface") == "eth1") == (cause == "wrong interface")
        assert (made.layers > 100) == (cause == "tiny buckets")
        assert (made.bucket_cap_mb > 100) == (cause == "no overlap")


@pytest.mark.parametrize(
    ("said", "code", "shown"),
    [
        ({}, 0, "40 of 40 right; 0 runs accused"),
        ({"01": "no overlap", "02": "slow link"}, 0, "38 of 40 right; 0 runs accused"),
        ({f"{i:02}": "x" for i in range(1, 6)}, 1, "35 of 40 right"),
        ({"40": "slow link"}, 1, "39 of 40 right; 1 runs accused"),
    ],
)
def test_answers_are_counted_against_the_key(
    said: dict[str, str], code: int, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = {f"{i + 1:02}": blind_cards.CAUSES[i // 5] for i in range(40)}
    (tmp_path / "key.json").write_text(json.dumps(key))
    assert blind_cards._judge(tmp_path, {**key, **said}) == code
    assert shown in capsys.readouterr().out
