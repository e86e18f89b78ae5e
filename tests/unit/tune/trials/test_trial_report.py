from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest

from commprof.report import markdown
from commprof.report.export import as_json
from commprof.report.full_report import FullReport
from commprof.report.html import page
from commprof.report.section import PAGE
from commprof.report.sections.order import sections
from commprof.stats.intervals import Interval
from commprof.tune import report as trial_table
from commprof.tune.report import TrialReport, render_screen
from commprof.tune.trials.result import BreakEven, TrialResult
from tests.support.builders.results import detail, run_result, world
from tests.support.builders.trial_results import trial

GOLDEN = Path(__file__).parents[3] / "golden" / "trial_table.txt"
QUIET = 0.005


def sample() -> TrialResult:
    steps = {
        **{"none": (100.0, QUIET), "none again": (100.2, QUIET), "noop": (40.0, QUIET)},
        **{"int8": (50.0, QUIET), "bucket-cap=5": (90.0, QUIET)},
        **{"topk:ratio=0.01+bucket-cap=5": (60.0, QUIET)},
    }
    made = trial(steps, left_out=(("bucket-cap=1", "its graph is static"),))
    more = {
        "int8": {
            "break_even": BreakEven("below", Interval(3.2, 2.5, float("inf"))),
            "no_break_even": None,
            "overhead_reduction": Interval(0.8333, 0.82, 0.85),
            "loss_effect": Interval(0.01, -0.02, 0.04),
        },
        "bucket-cap=5": {"overhead_reduction": Interval(0.1667, 0.15, 0.18)},
        "topk:ratio=0.01+bucket-cap=5": {
            "break_even": BreakEven("never", None),
            "no_break_even": None,
            "overhead_reduction": Interval(0.6667, 0.65, 0.68),
        },
    }
    changed = tuple(dataclasses.replace(one, **more.get(one.label, {})) for one in made.candidates)
    return dataclasses.replace(made, candidates=changed)


def test_the_trial_report_equals_the_golden_file() -> None:
    # To update: python -m tests.unit.tune.trials.test_trial_report > tests/golden/trial_table.txt
    assert trial_table.render(sample(), "timed: sleeps.", 100) == GOLDEN.read_text()


def test_the_trial_report_ends_with_remarks_on_the_run() -> None:
    text = trial_table.render(sample(), "x", 100, ["More ranks than cores."])
    assert text.endswith(" Gbit/s.\n* More ranks than cores.\n")


def test_techniques_alone_come_before_those_combined() -> None:
    lines = trial_table.render(sample(), "x", 100).splitlines()
    (begin,) = [i for i, line in enumerate(lines) if line.startswith("techniques")]
    rows = [line.split() for line in lines[begin + 3 : begin + 6]]
    assert [row[1] for row in rows] == ["alone", "alone", "combined"]
    assert rows[0][:3] == ["int8", "alone", "83%"]


def test_columns_without_values_are_left_out_of_the_trial_table() -> None:
    steps = {
        **{"none": (100.0, QUIET), "none again": (100.2, QUIET), "noop": (40.0, QUIET)},
        "bucket-cap=5": (90.0, QUIET),
    }
    text = trial_table.render(trial(steps), "x", 100)
    assert "cosine" not in text
    assert "encode" not in text.partition("step: median step of a block")[0]
    assert "exposed" in text


def test_a_missing_break_even_has_its_reason_in_table_and_json() -> None:
    steps = {
        **{"none": (100.0, QUIET), "none again": (100.2, QUIET), "noop": (40.0, QUIET)},
        **{"hierarchical": (70.0, QUIET), "bucket-cap=5": (90.0, QUIET)},
        **{"bucket-cap=1": (95.0, QUIET), "no-overlap": (110.0, QUIET)},
    }
    made = trial(steps)
    table = trial_table.candidates_grid(made)
    column = list(table.headers).index("pays below\nGbit/s [95 %]")
    assert [row[column] for row in table.rows] == [*["-"] * 3, *["does not apply"] * 4]
    notes = trial_table.notes(made)
    assert (
        '"pays below" for hierarchical: does not apply, since bytes within a host go through '
        "memory, not over the network, and the number of bytes that leave the host is not recorded."
    ) in notes
    assert (
        '"pays below" for bucket-cap=5 and bucket-cap=1: does not apply, since the same bytes are '
        "sent in other buckets, and none are saved."
    ) in notes
    assert (
        "no-overlap is never recommended: no-overlap exists in trials only, for comparison, and "
        "no option applies it."
    ) in notes
    value = json.loads(as_json.render(run_result(world(1)), added=TrialReport(made)))["trial"]
    told = {one["label"]: one["no_break_even"] for one in value["candidates"]}
    assert told["none"] is told["none again"] is told["noop"] is None
    assert told["bucket-cap=1"] == {
        "answer": "does not apply",
        "reason": "the same bytes are sent in other buckets, and none are saved",
    }
    barred = {one["label"]: one["barred"] for one in value["candidates"]}
    assert [label for label, why in barred.items() if why] == ["no-overlap"]


def test_the_trial_s_json_has_its_figures_without_nan() -> None:
    value = json.loads(as_json.render(run_result(world(1)), added=TrialReport(sample())))["trial"]
    assert value["verdict"]["choice"] == "int8"
    assert value["left_out"] == [{"candidate": "bucket-cap=1", "reason": "its graph is static"}]
    int8 = value["candidates"][3]
    assert int8["label"] == "int8"
    assert int8["break_even"]["gbit_per_s"] == {"value": 3.2, "low": 2.5, "high": None}
    assert int8["gain"]["value"] == 1 - int8["joint_ratio"]["value"]
    assert int8["no_break_even"] is None
    assert value["candidates"][0]["gain"] is None
    interval = value["candidates"][0]["step_ms_interval"]
    assert 99 < interval["low"] < value["candidates"][0]["step_ms"] < interval["high"] < 101


COMMAND = "commprof report RUN --all"


def test_the_trial_screen_shows_the_verdict_before_the_candidates() -> None:
    lines = render_screen(sample(), "timed: sleeps.", COMMAND, 3).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    text = " ".join(lines)
    order = [
        "Use int8: a step is 50.0 % [49.5, 50.4] shorter",
        "To apply it:",
        "none again",
        COMMAND,
    ]
    assert sorted(order, key=text.index) == order
    assert "0.500 [0.497, 0.504]" in text
    assert lines[-3].startswith("! ")
    assert lines[-1] == f"  {COMMAND}"


def test_no_control_character_of_the_description_reaches_the_trial_screen() -> None:
    lines = render_screen(sample(), "python -c 'a\n\x1b[2J'", COMMAND).splitlines()
    assert lines[0] == "python -c 'a \\x1b[2J'"


@pytest.mark.parametrize("count", [1, 3, 40])
def test_the_trial_screen_says_that_there_are_more_candidates_than_shown(count: int) -> None:
    trial = sample()
    one = replace(trial.candidates[-1], label="a candidate with a long name " * 3)
    trial = replace(trial, candidates=(*trial.candidates[:1], *[one] * count))
    lines = render_screen(trial, "word " * 50, COMMAND).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("... and ") for line in lines) == (count > 3)


REPORT = FullReport(run_result(world(2)), (detail(2),), None, None)


def test_the_trial_s_section_comes_first_and_sections_of_means_are_left_out() -> None:
    found = {section.id: section for section in sections(REPORT, PAGE, TrialReport(sample()))}
    assert next(iter(found)) == "trial"
    assert not {"verdict", "step", "scaling", "collectives", "waiting"} & found.keys()
    assert "steps" not in found
    assert "timeline" in found
    assert found["trial"].lead == sample().verdict.sentences[0]


def test_a_trial_that_ended_before_its_first_step_has_no_picture_without_figures() -> None:
    ended = FullReport(run_result(), (), None, None)
    assert [section.id for section in sections(ended, PAGE, TrialReport(sample()))] == ["trial"]
    assert "-picture" in page.render(ended, TrialReport(sample()))


def test_html_and_markdown_have_the_trial_s_tables_and_the_command_to_apply_it() -> None:
    for text in (
        page.render(REPORT, TrialReport(sample())),
        markdown.render(REPORT, TrialReport(sample())),
    ):
        assert "int8" in text
        assert "To apply it: commprof run" in text
        assert "pays below" in text
        assert "Each technique alone and combined" in text
        assert "was left out: its graph is static" in text
        assert text.count("does not apply") == 2
        assert "does not apply, since the same bytes are sent in other buckets" in text
        assert "left out.:" not in text
        assert "step ms \\[95 %\\]" in text or "<th" in text


def test_a_candidate_that_was_still_settling_is_named() -> None:
    made = sample()
    *others, last = made.candidates
    for halves, said in (
        (None, False),
        (Interval(0.93, 0.9, 0.96), True),
        (Interval(0.93, 0.86, 1.01), False),
        (Interval(0.99, 0.985, 0.995), False),
    ):
        one = dataclasses.replace(last, later_over_earlier=halves)
        notes = trial_table.notes(dataclasses.replace(made, candidates=(*others, one)))
        named = [note for note in notes if "still settling" in note]
        assert bool(named) is said
        if said:
            assert named[0].startswith(f"{one.label} was still settling after a switch: the second")
            assert "took 0.930 [0.900, 0.960] times as long as the first half" in named[0]


if __name__ == "__main__":
    print(trial_table.render(sample(), "timed: sleeps.", 100), end="")
