from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.recordings.known_inputs import (
    KNOWN,
    Known,
    asked,
    at_path,
    demands,
    judge,
    pairs_agree,
)

_PLACES = [place / "shared/data/small" for place in Path(__file__).parents[4:6]]
#: The inputs lie next to the repository, or next to the folder that holds its worktrees.
DATA = next((place for place in _PLACES if place.exists()), _PLACES[0])

IDLE = Known("a", "true", "idle 2 %", r"idle .*2\.0%", never="bottleneck", answer=r"idle \S+")


@pytest.mark.parametrize(
    ("text", "verdict", "said"),
    [
        ("step of 50 ms\nidle 1 ms\n 2.0%", "ok", "idle 1"),
        ("idle 98.0%", "NOT ok", "idle 98.0%"),
        ("idle 1 ms 2.0%; the bottleneck", "NOT ok", "bottleneck"),
        ("no such directory", "NOT ok", "no such directory"),
    ],
)
def test_an_answer_is_judged_by_what_it_must_and_must_not_show(
    text: str, verdict: str, said: str
) -> None:
    answer = judge(IDLE, text)
    assert (answer.verdict, answer.said) == (verdict, said)


def test_an_input_for_later_does_not_fail_the_table_and_a_missing_one_is_shown() -> None:
    later = Known("a", "true", "right", "right", later=True)
    answers = [judge(later, "wrong"), judge(later, "right"), asked(later, Path("nowhere"), "")]
    assert [answer.verdict for answer in answers] == ["later", "ok", "missing"]
    (demand,) = demands(answers)
    assert demand.met
    (demand,) = demands([*answers, judge(IDLE, "idle 98.0%")])
    assert not demand.met


def test_json_and_pairs_of_shares_are_compared() -> None:
    accepted = at_path("runs.0.calls", 24)
    assert accepted(json.dumps({"runs": [{"calls": 24}]}))
    assert not accepted(json.dumps({"runs": [{"calls": 72}]}))
    assert not accepted("commprof: no such directory")
    shares = "Exposed communication: {}, and Exposed communication: {}"
    assert pairs_agree(shares.format("188 ms, 20.7% of the step", "180 ms, 20.1% of the step"))
    assert not pairs_agree(shares.format("188 ms, 20.7% of the step", "none"))
    assert not pairs_agree("no answer within 400 s")


def test_every_pattern_of_the_table_compiles_and_no_entry_is_there_twice() -> None:
    assert len(KNOWN) >= 40
    assert len({(known.path, known.command) for known in KNOWN}) == len(KNOWN)
    for known in KNOWN:
        for pattern in (known.shown, known.never, known.answer):
            if isinstance(pattern, str):
                re.compile(pattern)


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the inputs with known answers")
def test_logs_of_nccl_tests_give_their_known_answers() -> None:
    chosen = [known for known in KNOWN if re.match("f08|nccl/split_mod2.json", known.path)]
    assert len(chosen) == 2
    assert {known.path: asked(known, DATA, "").verdict for known in chosen} == {
        known.path: "ok" for known in chosen
    }
