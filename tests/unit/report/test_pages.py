from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import escape

from commprof.analysis.card import card
from commprof.analysis.cost import Price, cost
from commprof.analysis.predicted import read_predictions
from commprof.analysis.run import analyse_in_detail
from commprof.analysis.verdict import verdict
from commprof.report import markdown
from commprof.report.card import facts
from commprof.report.card import render as card_text
from commprof.report.full_report import FullReport
from commprof.report.html import data, page
from commprof.report.html.data import as_dict, page_data
from commprof.report.html.page import digest
from commprof.trace.schema import Phase
from commprof.tune.report import TrialReport
from tests.support.builders.run_directories import (
    HOSTILE,
    answer,
    ranks_of,
    write_predictions,
    write_run,
)
from tests.support.builders.traces import MS, Rank
from tests.unit.tune.trials.test_trial_report import sample as trial_sample

GOLDEN = Path(__file__).parents[2] / "golden" / "run_markdown.md"


def full(directory: Path, *worlds: list[Rank], **changes: Any) -> FullReport:
    result, details = analyse_in_detail(write_run(directory, *worlds, **changes))
    paid = cost(result.worlds, details, Price(3.6, "rank"))
    judged = verdict(result, details)
    said = card(result, details, judged, Path("RUN"))
    return FullReport(result, details, judged, paid, card=said)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> FullReport:
    return full(tmp_path_factory.mktemp("p"), ranks_of(1, 9), ranks_of(2, 9, late_ms=10))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> FullReport:
    machine = {"usable_cpu_count": 8, "cpu_model": HOSTILE, "boot_id": "b"}
    names = {"description": HOSTILE, "command": HOSTILE, "torch": HOSTILE, "machine": machine}
    return full(
        tmp_path_factory.mktemp("h"),
        ranks_of(2, 9, group=HOSTILE),
        **names,
        errors={"2": HOSTILE},
    )


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_data(self, data: str) -> None:
        if self._open:
            self.text[self._open[-1]] = self.text.get(self._open[-1], "") + data


def test_the_markdown_report_equals_the_golden_file(plain: FullReport) -> None:
    assert markdown.render(plain) == GOLDEN.read_text()


def test_the_page_and_the_first_screen_have_the_same_figures(plain: FullReport) -> None:
    assert plain.card is not None
    text, shown = page.render(plain), " ".join(card_text(plain.card).split())
    assert len(facts(plain.card)) == 4
    for name, value in facts(plain.card):
        assert f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" in text
        assert f"{name}: {value}" in shown


def test_names_are_escaped_in_markdown(hostile: FullReport) -> None:
    text = markdown.render(hostile)
    assert "<" not in re.sub(r"\\<|&lt;", "", text)
    assert "](" not in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in tables if "all\\_reduce" in line}
    assert len(columns) == 1
    assert "http" not in markdown.escaped("see http://x.y").replace("http:&#47;&#47;", "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b*c", r"a\_b\*c"),
        ("<b>", "&lt;b&gt;"),
        ("a|b\nc", r"a\|b c"),
        ("\x1b[2J", r"\\x1b\[2J"),
        ("see www.x.y", "see www&#46;x.y"),
    ],
)
def test_markdown_escapes_special_characters(text: str, shown: str) -> None:
    assert markdown.escaped(text) == shown


def test_the_page_loads_no_other_files(plain: FullReport) -> None:
    text = page.render(plain)
    elements = Elements(text)
    tags = [tag for tag, _ in elements.found]
    assert not {"link", "img", "iframe", "object", "base", "form"} & set(tags)
    assert all("src" not in attributes for _, attributes in elements.found)
    hrefs = [a["href"] for _, a in elements.found if "href" in a]
    assert hrefs
    ids = {a["id"] for _, a in elements.found if "id" in a}
    assert all(href and href[0] == "#" and href[1:] in ids for href in hrefs)
    assert tags.count("script") == 2
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_the_page_has_all_sections(plain: FullReport) -> None:
    text = page.render(plain)
    for title in ("Verdict", "Where each step goes", "Scaling", "Timeline of the collectives",
                  "Who waits for whom", "Collectives", "Cost"):  # fmt: skip
        assert f">{title}</h2>" in text
    assert "At 2 ranks the step is bound by" in text


def test_names_are_escaped_in_the_page(hostile: FullReport, plain: FullReport) -> None:
    text = page.render(hostile)
    elements = Elements(text)
    known = {tag for tag, _ in Elements(page.render(plain)).found}
    assert {tag for tag, _ in elements.found} <= known
    assert not any(name.startswith("on") for _, a in elements.found for name in a)
    assert text.count("</script>") == 2
    assert "onerror" in text


def test_the_content_security_policy_allows_only_the_page_s_style_and_script(
    plain: FullReport,
) -> None:
    text = page.render(plain)
    script = text.rsplit("<script>", 1)[1].split("</script>")[0]
    style = text.split("<style>")[1].split("</style>")[0]
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert digest(script) in policy[1]
    assert digest(style) in policy[1]
    assert policy[1].startswith("default-src 'none'")
    assert "unsafe" not in policy[1]


PARTS = {
    "rank": int,
    **dict.fromkeys(
        (
            *("step", "data", "forward", "backward", "exposed", "optimizer", "other"),
            *("wait", "transfer", "hidden", "unsplit"),
        ),
        float,
    ),
    **dict.fromkeys(("unphased_compute", "copies", "idle"), (float, type(None))),
}
INTERVALS = (
    *("issue", "kind", "step", "collective", "bucket"),
    *("negotiate", "queue", "wait", "transfer"),
)
STRETCHES = {"begin": [int], "length": [int]}
SCHEMA = {
    "worlds": [
        {
            "name": str,
            "ranks": int,
            "samples_per_s": float,
            "samples_per_s_range": [float],
            "efficiency": float,
            "quartiles_ms": [float],
            "parts": [PARTS],
            "mean": PARTS,
            "steps": {"every": int, "step": [int], "slowest_ms": [float]},
            "timeline": {
                "steps": [int],
                "measured_steps": int,
                "left_out": int,
                "clocks_shared": bool,
                "phases": [str],
                "kinds": [list],
                "ranks": [
                    {
                        "rank": int,
                        "steps": STRETCHES,
                        "phases": {**STRETCHES, "code": [int]},
                        "waiting": STRETCHES,
                        "intervals": {name: [int] for name in INTERVALS},
                    }
                ],
            },
        }
    ],
    "predicted": [
        {
            "setting": str,
            "checked": bool,
            "points": [
                {"ranks": int, "value": float, "low": float, "high": float, "outside": bool}
            ],
        }
    ],
    "trial": [
        {"label": str, "role": str} | dict.fromkeys(("step_ms", "value", "low", "high"), float)
    ],
    "baseline": [{"label": str, **PARTS}],
}


def check(value: Any, schema: Any, where: str) -> None:
    if isinstance(schema, dict):
        assert value.keys() == schema.keys(), where
        for key in schema:
            check(value[key], schema[key], f"{where}.{key}")
    elif isinstance(schema, list):
        assert value, where
        for item in value:
            check(item, schema[0], where)
    else:
        assert isinstance(value, schema), (where, value)


def test_the_page_s_data_match_their_schema(plain: FullReport, tmp_path: Path) -> None:
    file = write_predictions(tmp_path / "p.json", answer(8, 700.0), answer(4, 400.0))
    predicted = dataclasses.replace(plain, predictions=read_predictions(file))
    tried = TrialReport(trial_sample())
    text = page.render(predicted, tried).split('id="data">')[1].split("</script>")[0]
    document = json.loads(text)
    check(document, SCHEMA, "data")
    assert document == json.loads(json.dumps(as_dict([predicted], tried)))
    assert {row["role"] for row in document["trial"]} == {"control", "headroom", "candidate"}
    (baseline,) = document["baseline"]
    assert baseline["label"] == "none"
    assert baseline["step"] == pytest.approx(sum(share.ms for share in tried.trial.parts))
    assert baseline["exposed"] == {share.part: share.ms for share in tried.trial.parts}["exposed"]
    (curve,) = document["predicted"]
    assert curve["setting"] == "as recorded"
    assert predicted.predictions is not None
    for worst_error in (0.13, None):
        known = dataclasses.replace(predicted.predictions, worst_error=worst_error)
        shown = as_dict([dataclasses.replace(plain, predictions=known)], None)
        assert shown["predicted"][0]["checked"] is (worst_error is not None)
    assert [point["ranks"] for point in curve["points"]] == [4, 8]
    intervals = document["worlds"][1]["timeline"]["ranks"][0]["intervals"]
    # Bucket 0 is issued at 40 ms and bucket 1 at 60 ms.
    # Rank 1 is 10 ms late for bucket 1.
    assert intervals["issue"][:2] == [40_000, 20_000]
    assert intervals["bucket"][:4] == [0, 1, 0, 1]
    assert intervals["negotiate"][:2] == [0, 10_000]
    assert intervals["transfer"][:2] == [10_000, 20_000]


def test_the_page_of_a_long_run_of_many_ranks_is_below_1_mb(tmp_path: Path) -> None:
    report = full(tmp_path, ranks_of(1, 200), ranks_of(8, 200, late_ms=5))
    text = page.render(report)
    assert len(text.encode()) < 1_000_000
    timelines = [world["timeline"] for world in as_dict([report])["worlds"]]
    assert [len(timeline["steps"]) for timeline in timelines] == [199, 199]


def test_the_page_thins_steps_and_timelines_beyond_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "MOST_SPANS", 300)
    monkeypatch.setattr(data, "MOST_POINTS", 10)
    report = full(tmp_path, ranks_of(1, 16), ranks_of(2, 31))
    one, two = (world["timeline"] for world in as_dict([report])["worlds"])
    spans = sum(detail.timeline.spans for detail in report.details)
    assert spans > 300
    assert len(one["steps"]) == one["measured_steps"] == 15
    assert 0 < len(two["steps"]) < two["measured_steps"]
    assert np.all(np.diff(two["steps"]) == 1)
    steps = as_dict([report])["worlds"][1]["steps"]
    # The page has the slowest of every three steps; step n takes 100 + n % 4 ms.
    assert (steps["every"], steps["step"]) == (3, [3, 6, 7, 11, 15, 18, 19, 23, 27, 30])
    assert steps["slowest_ms"][:2] == [103.0, 102.0]


def test_a_run_without_figures_has_a_page(tmp_path: Path) -> None:
    report = full(tmp_path, errors={"2": "rank 1 failed"}, world_sizes=[2])
    text = page.render(report)
    assert "rank 1 failed" in text
    assert "rank 1 failed" in markdown.render(report)


def luminance(colour: str) -> float:
    """WCAG 2.2 defines this relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_colour_has_enough_contrast_with_the_page_s_background(theme: str) -> None:
    def colours(style: str) -> dict[str, str]:
        roots = re.findall(
            r":root \{(.*?)\}", (Path(page.__file__).parent / style).read_text(), re.DOTALL
        )
        return dict(re.findall(r"--(\w+): (#\w{6})", roots[theme == "dark"]))

    background = luminance(colours("page.css")["background"])
    for name, colour in colours("charts.css").items():
        darker, lighter = sorted((luminance(colour), background))
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, name


def many_buckets(world_size: int, steps: int, buckets: int = 25) -> list[Rank]:
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


def test_the_page_of_many_buckets_and_long_steps_is_at_most_1_mb(tmp_path: Path) -> None:
    report = full(tmp_path, many_buckets(8, 200))
    text = page.render(report)
    assert 950_000 < len(text.encode()) <= 1_000_000
    figures = text.split('id="data">')[1].split("</script>")[0]
    # The limit on spans alone would not be enough.
    assert len(text.encode()) - len(figures) + len(page_data([report], None, 10**9)) > 1_000_000
    (world,) = json.loads(figures)["worlds"]
    timeline = world["timeline"]
    shown, measured = timeline["steps"], timeline["measured_steps"]
    assert measured == 199
    assert 0 < len(shown) < measured
    assert shown == list(range(shown[0], shown[-1] + 1))
    assert abs((shown[0] - 1) - (measured - shown[-1])) <= 2
    assert timeline["left_out"] == 0
    intervals = [rank["intervals"] for rank in timeline["ranks"]]
    assert [len(each["issue"]) for each in intervals] == [25 * len(shown)] * 8
    assert np.median(intervals[0]["queue"]) > 100_000


def test_with_no_room_the_timeline_still_shows_one_step(tmp_path: Path) -> None:
    report = full(tmp_path, ranks_of(1, 9), ranks_of(2, 9))
    for world in as_dict([report], None, 1)["worlds"]:
        timeline = world["timeline"]
        assert len(timeline["steps"]) == 1
        assert timeline["left_out"] > 0
        for rank in timeline["ranks"]:
            assert len(rank["phases"]["begin"]) == 1
