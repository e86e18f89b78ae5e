from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from commprof.commands import main
from commprof.report.html import data
from commprof.report.html.page import render
from commprof.stats.intervals import Interval
from commprof.tune.report import TrialReport
from tests.support.builders.run_directories import (
    HOSTILE,
    answer,
    ranks_of,
    write_predictions,
    write_run,
    write_strategies,
)
from tests.support.machines.programs.browser import Page, browser, chromium
from tests.unit.tune.trials.test_trial_report import REPORT, sample

pytestmark = pytest.mark.slow

DESKTOP, PHONE = (1100, 800), (360, 740)
#: A screenshot with a picture has at least this many times the bytes of a blank page.
_BLANK_PAGES = 4


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if chromium() is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    base = tmp_path_factory.mktemp("page")
    run = write_run(
        base / "run",
        ranks_of(1, 25),
        ranks_of(4, 25, late_ms=10, group=HOSTILE),
        description=HOSTILE,
    )
    predictions = write_predictions(base / "p.json", answer(8, 150.0), answer(16, 250.0))
    beside = ["--price-per-hour", "2", "--predictions", str(predictions)]
    assert main(["report", str(run), "--format", "html", *beside]) == 0
    with browser(base / "profile") as opened:
        for size in (PHONE, DESKTOP):
            opened.size(*size)
            opened.blank_bytes[size] = len(opened.screenshot())
        opened.open(run / "report.html")
        yield opened


@pytest.fixture(autouse=True)
def quiet(page: Page) -> Iterator[None]:
    yield
    assert page.complaints == []


def text_of(page: Page, selector: str) -> str:
    return str(page.value(f"document.querySelector({selector!r})?.textContent ?? ''"))


def in_sight(page: Page, selector: str) -> tuple[float, float, float, float]:
    box = page.value(
        f"(() => {{ const e = document.querySelector({selector!r}); "
        "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect(); "
        "return [b.left, b.top, b.width, b.height]; })()"
    )
    left, top, width, height = box
    return left, top, width, height


def canvas_colours(page: Page) -> int:
    return int(
        page.value(
            "(() => { const c = document.querySelector('canvas'); "
            "const o = new OffscreenCanvas(c.width, c.height); "
            "const pen = o.getContext('2d', {willReadFrequently: true}); pen.drawImage(c, 0, 0); "
            "const p = pen.getImageData(0, 0, c.width, c.height).data; "
            "const seen = new Set(); for (let i = 0; i < p.length; i += 4) "
            "seen.add((p[i] << 16) | (p[i + 1] << 8) | p[i + 2]); return seen.size; })()"
        )
    )


def shown_axis(page: Page) -> str:
    """Returns the picture in the canvas as a data URL."""
    return str(page.value("document.querySelector('canvas').toDataURL()"))


def test_every_picture_is_drawn(page: Page) -> None:
    for picture in ("#step-picture .bar", "#scaling-picture svg path", "#steps-picture svg rect"):
        assert page.value(f"document.querySelectorAll({picture!r}).length") >= 2, picture
    assert page.value("document.querySelectorAll('#scaling-picture .point.predicted').length") == 2
    assert canvas_colours(page) > 6
    assert page.value("document.querySelectorAll('#waiting td.heat').length") == 16
    assert "At 4 ranks the step is bound by" in text_of(page, "#verdict .lead")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_no_section_is_blank_or_wider_than_the_screen(
    page: Page, theme: str, size: tuple[int, int]
) -> None:
    page.size(*size)
    page.theme(theme)
    for place in ("#verdict", "#step", "#scaling", "#timeline", "#waiting"):
        in_sight(page, place)
        page.painted(_BLANK_PAGES * page.blank_bytes[size])
    assert page.value("document.documentElement.scrollWidth") <= size[0]
    dark = page.value("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    assert dark is (theme == "dark")
    assert canvas_colours(page) > 6
    page.size(*DESKTOP)
    page.theme("light")


def test_hostile_names_are_shown_as_text_not_markup(page: Page) -> None:
    assert page.value("document.querySelectorAll('img').length") == 0
    assert "onerror" in text_of(page, "header p")


def test_the_timeline_responds_to_the_mouse(page: Page) -> None:
    left, top, width, _ = in_sight(page, "canvas")
    before = shown_axis(page)
    for step in range(40):
        page.move(left + 64 + (width - 64) * step / 40, top + 22 + 13 + 14 + 6 + 6)
        if "all_reduce" in text_of(page, "#tooltip"):
            break
    tip = text_of(page, "#tooltip")
    assert "bucket 0: all_reduce 4 MB on rank 0" in tip
    assert "early " in tip
    page.click(left + 64 + (width - 64) * step / 40, top + 22 + 13 + 14 + 6 + 6)
    assert page.value("document.querySelectorAll('#timeline-chosen tbody tr').length") == 4
    page.drag(left + 600, top + 40, left + 400)
    moved = shown_axis(page)
    assert moved != before
    page.wheel(left + 400, top + 60, -100, control=True)
    assert shown_axis(page) != moved


def test_the_timeline_responds_to_the_keyboard(page: Page) -> None:
    in_sight(page, "canvas")
    page.value("document.querySelector('canvas').focus()")
    page.press("Home", 36)
    whole = shown_axis(page)
    page.press("+", 187)
    zoomed = shown_axis(page)
    assert zoomed != whole
    page.press("ArrowRight", 39)
    assert shown_axis(page) != zoomed
    page.press("n")
    chosen = text_of(page, "#timeline-chosen caption")
    assert "all_reduce 4 MB, step " in chosen
    assert "rank 0" in text_of(page, "#tooltip")
    page.press("ArrowDown", 40)
    assert "rank 1" in text_of(page, "#tooltip")
    page.press("Escape", 27)
    assert text_of(page, "#timeline-chosen") == ""


def test_timeline_buttons_zoom_and_change_the_step(page: Page) -> None:
    shown = {shown_axis(page)}
    for title in ("All steps", "Zoom in", "Zoom out", "Next step", "Previous step"):
        left, top, width, height = in_sight(page, f"button[title='{title}']")
        page.click(left + width / 2, top + height / 2)
        shown.add(shown_axis(page))
    assert len(shown) >= 4


def test_choosing_a_world_size_changes_all_pictures(page: Page) -> None:
    choose = (
        "(() => {{ const s = document.querySelector('select.world'); s.value = '{}'; "
        "s.dispatchEvent(new Event('change')); }})()"
    )
    last = "document.querySelectorAll('#step-picture > div:last-child .bar').length"
    assert page.value(last) == 4
    page.value(choose.format(0))
    assert page.value(last) == 1
    chosen = page.value("[...document.querySelectorAll('select.world')].map((s) => s.value)")
    assert chosen == ["0"] * len(chosen)
    assert page.value("document.querySelector('#waiting .scroll').hidden") is True
    page.value(choose.format(1))
    assert page.value(last) == 4


def test_a_click_on_a_step_shows_it_in_the_timeline(page: Page) -> None:
    left, top, width, height = in_sight(page, "#steps-picture svg")
    before = shown_axis(page)
    page.click(left + width * 0.9, top + height / 2)
    assert shown_axis(page) != before
    assert page.value("document.activeElement.tagName") == "CANVAS"


def distinct(page: Page, selector: str) -> list[str]:
    texts = page.value(f"[...document.querySelectorAll({selector!r})].map((e) => e.textContent)")
    assert len(set(texts)) == len(texts) > 1, texts
    return list(texts)


def test_axis_ticks_have_distinct_labels(page: Page) -> None:
    distinct(page, "#scaling-picture .tick[text-anchor=end]")
    distinct(page, "#steps-picture .tick[y][x='48']")


def test_ideal_scaling_is_a_straight_line(page: Page) -> None:
    path = page.value("document.querySelector('.line.ideal').getAttribute('d')")
    points = [tuple(map(float, pair.split())) for pair in re.split("[ML]", path)[1:]]
    assert len(points) >= 4
    (x0, y0), (x1, y1) = points[0], points[-1]
    for x, y in points:
        assert y == pytest.approx(y0 + (x - x0) * (y1 - y0) / (x1 - x0), abs=0.01)


def test_segments_and_bars_are_named_in_words(page: Page) -> None:
    shown = "[...document.querySelectorAll('#step-picture .name')].filter((e) => e.offsetWidth)"
    assert {"forward", "backward", "transfer"} <= set(
        page.value(f"{shown}.map((e) => e.textContent)")
    )


def test_print_keeps_colours_and_cuts_nothing(page: Page) -> None:
    page.theme("dark")
    page.size(680, 900)  # the width of A4 in pixels, without margins
    page.medium("print")
    try:
        for box in (".scroll", ".bars", ".canvas-box"):
            cut = (
                f"[...document.querySelectorAll({box!r})].filter((e) => "
                "e.scrollWidth > e.clientWidth + 1 || getComputedStyle(e).overflowY !== 'visible')"
                ".length"
            )
            assert page.value(cut) == 0, box
        style = "getComputedStyle(document.querySelector('.segment.transfer'))"
        assert page.value(f"{style}.printColorAdjust") == "exact"
        assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.value("document.documentElement.scrollWidth") <= 680
        assert canvas_colours(page) > 6
    finally:
        page.medium("")
        page.size(*DESKTOP)
        page.theme("light")


def focus(page: Page, selector: str) -> None:
    in_sight(page, selector)
    page.value(f"document.querySelector({selector!r}).focus()")


def test_arrow_keys_choose_a_step_and_enter_shows_it_in_the_timeline(page: Page) -> None:
    focus(page, "#steps-picture svg")
    page.press("ArrowRight", 39)
    first = text_of(page, "#tooltip strong")
    page.press("ArrowRight", 39)
    second = text_of(page, "#tooltip strong")
    assert [words.split()[0] for words in (first, second)] == ["step", "step"]
    assert int(second.split()[1]) == int(first.split()[1]) + 1
    page.press("ArrowLeft", 37)
    assert text_of(page, "#tooltip strong") == first
    before = shown_axis(page)
    for _ in range(5):
        page.press("ArrowRight", 39)
    page.press("Enter", 13)
    assert page.value("document.activeElement.tagName") == "CANVAS"
    assert shown_axis(page) != before
    assert text_of(page, "#timeline-chosen") == ""


def test_focus_on_a_point_of_the_scaling_curve_shows_its_tooltip(page: Page) -> None:
    focus(page, "#scaling-picture .point.measured")
    tip = text_of(page, "#tooltip")
    assert tip.startswith("1 rank")
    assert "samples/s measured" in tip
    focus(page, "#scaling-picture .point.predicted")
    assert "8 ranks, predicted" in text_of(page, "#tooltip")
    page.press("Escape", 27)
    assert page.value("document.getElementById('tooltip').hidden") is True


def test_the_world_size_is_chosen_by_keyboard(page: Page) -> None:
    last = "document.querySelectorAll('#step-picture > div:last-child .bar').length"
    focus(page, "#step-picture select.world")
    assert page.value(last) == 4
    page.press("ArrowUp", 38)
    assert page.value(last) == 1
    page.press("ArrowDown", 40)
    assert page.value(last) == 4


def test_the_skip_link_leads_past_the_list_of_sections(page: Page) -> None:
    link = "document.querySelector('a.skip').getBoundingClientRect()"
    page.value("document.activeElement.blur(), scrollTo(0, 0)")
    assert page.value(f"{link}.right") < 0
    focus(page, "a.skip")
    assert page.value(f"{link}.left") >= 0
    page.press("Enter", 13)
    page.until("location.hash === '#content'")
    page.press("Tab", 9)
    assert page.value("document.activeElement.closest('main') !== null")
    assert page.value("document.activeElement.closest('nav') === null")


def test_focus_on_a_bar_shows_its_tooltip(page: Page) -> None:
    page.value("document.querySelector('#step-picture .bar').focus()")
    assert "compute: backward" in text_of(page, "#tooltip")
    label = page.value("document.querySelector('#step-picture .bar').getAttribute('aria-label')")
    assert "compute: backward" in label


# The tests below are last, because they open other pages than the fixture's.


def test_a_page_of_several_strategies_offers_each_strategy_and_world_size(
    page: Page, tmp_path: Path
) -> None:
    run = write_strategies(tmp_path / "run")
    assert main(["report", str(run), "--format", "html"]) == 0
    page.open(run / "report.html")
    labels = page.value(
        "[...document.querySelectorAll('select.world')[0].options].map((o) => o.text)"
    )
    assert labels == ["ddp, 1 rank", "ddp, 2 ranks", "fsdp, 1 rank", "fsdp, 2 ranks"]
    assert page.value("document.querySelectorAll('#scaling-picture path.series-1').length") == 1
    focus(page, "#scaling-picture .point.series-1")
    measured, ideal = re.findall(r"([\d.]+) samples/s (?:m|w)", text_of(page, "#tooltip"))
    assert measured == ideal  # the ideal starts at fsdp's own smallest world size
    hidden = "[...document.querySelectorAll('#waiting .scroll')].map((table) => table.hidden)"
    assert page.value(hidden) == [True, False]
    assert canvas_colours(page) > 6
    for size in (PHONE, DESKTOP):
        page.size(*size)
        assert page.value("document.documentElement.scrollWidth") <= size[0]


def test_a_world_size_without_a_waiting_table_shows_the_reason(page: Page, tmp_path: Path) -> None:
    apart = ranks_of(4, 9)
    for rank in apart:
        rank.metadata["machine"]["boot_id"] = f"boot {rank.rank}"
    run = write_run(tmp_path / "run", ranks_of(1, 9), ranks_of(2, 9), apart)
    assert main(["report", str(run), "--format", "html"]) == 0
    page.open(run / "report.html")
    note = "document.querySelector('#waiting .note')"
    for place, said in ((0, "With one rank"), (1, ""), (2, "The ranks' clocks cannot be compared")):
        page.value(
            f"(() => {{ const s = document.querySelector('select.world'); s.value = {place}; "
            "s.dispatchEvent(new Event('change')); })()"
        )
        assert page.value(f"{note}.hidden") is (said == "")
        assert page.value(f"{note}.textContent").startswith(said)


def test_a_trial_page_draws_its_candidates_with_tooltips(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "trial.html"
    file.write_text(render(REPORT, TrialReport(sample())))
    page.open(file)
    points = "document.querySelectorAll('#trial-picture .point').length"
    assert page.value(points) == len(sample().candidates) - 1
    page.value("document.querySelector('#trial-picture .point.measured').focus()")
    assert "times none's step" in text_of(page, "#tooltip")
    page.value("document.querySelector('#trial-picture .bar').focus()")
    assert "none: " in text_of(page, "#tooltip")
    assert page.value("document.querySelectorAll('#trial-picture .bar').length") == 1
    assert page.value("document.getElementById('steps-picture')") is None
    for size in (PHONE, DESKTOP):
        page.size(*size)
        in_sight(page, "#trial-picture")
        page.painted(_BLANK_PAGES * page.blank_bytes[size])
        assert page.value("document.documentElement.scrollWidth") <= size[0]


def test_candidates_of_nearly_the_same_step_have_distinct_ticks(page: Page, tmp_path: Path) -> None:
    ratio = Interval(1.0, 0.999, 1.002)
    near = tuple(dataclasses.replace(one, ratio=one.ratio and ratio) for one in sample().candidates)
    file = tmp_path / "trial.html"
    file.write_text(render(REPORT, TrialReport(dataclasses.replace(sample(), candidates=near))))
    page.open(file)
    assert "1.001" in distinct(page, "#trial-picture .tick")


def test_a_timeline_of_hundreds_of_ranks_is_drawn_within_a_canvas_s_limits(
    page: Page, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", ranks_of(2, 4))
    assert main(["report", str(run), "--format", "html"]) == 0
    file = run / "report.html"
    before, rest = file.read_text().split('id="data">')
    figures, after = rest.split("</script>", 1)
    shown = json.loads(figures)
    shown["worlds"][0]["timeline"]["ranks"] *= 300
    file.write_text(f'{before}id="data">{json.dumps(shown)}</script>{after}')
    page.open(file)
    assert page.value("document.querySelector('canvas').clientHeight") > 32767
    assert page.value("document.querySelector('canvas').height") <= 32767


@pytest.mark.parametrize(
    ("cell", "said"), [("&lt;0.001", "less than 1 µs per step"), ("-", "not known")]
)
def test_a_wait_that_is_tiny_or_not_known_is_not_said_to_be_0(
    page: Page, tmp_path: Path, cell: str, said: str
) -> None:
    run = write_run(tmp_path / "run", ranks_of(2, 9))
    assert main(["report", str(run), "--format", "html"]) == 0
    file = run / "report.html"
    before, table = file.read_text().split('<section id="waiting"')
    table = re.sub(r"<td>[^<]*</td>", f"<td>{cell}</td>", table, count=1)
    file.write_text(f'{before}<section id="waiting"{table}')
    page.open(file)
    page.value("document.querySelector('#waiting td').dispatchEvent(new Event('pointermove'))")
    assert said in text_of(page, "#tooltip")


def test_the_page_says_which_steps_it_leaves_out(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "MOST_SPANS", 150)
    run = write_run(tmp_path / "run", ranks_of(2, 25))
    assert main(["report", str(run), "--format", "html"]) == 0
    page.open(run / "report.html")
    told = re.match(
        r"Steps (\d+) to (\d+); the other (\d+) of 24 measured steps are left out because",
        text_of(page, "#timeline-about"),
    )
    assert told is not None
    first, last, others = map(int, told.groups())
    assert last - first + 1 + others == 24
