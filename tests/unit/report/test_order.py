from __future__ import annotations

import importlib
import inspect
from dataclasses import replace
from pathlib import Path

from commprof.report import sections as folder
from commprof.report.full_report import FullReport
from commprof.report.section import PAGE, terminal
from commprof.report.sections.order import ORDER, sections
from tests.support.builders.random_results import case
from tests.support.builders.results import summary

WITHOUT_SECTION = {"__init__", "order", "predicted", "reproduce", "setup"}
#: A page shows these sections further up than a terminal does.
MOVED = {"notes"}


def ids(report: FullReport, is_page: bool) -> list[str]:
    medium = PAGE if is_page else terminal(100)
    return [section.id for section in sections(report, medium)]


def test_each_file_of_a_section_is_in_the_order() -> None:
    assert folder.__file__ is not None
    names = {path.stem for path in Path(folder.__file__).parent.glob("*.py")} - WITHOUT_SECTION
    for name in names:
        module = importlib.import_module(f"commprof.report.sections.{name}")
        makers = [made for made in ORDER if inspect.getmodule(made) is module]
        assert makers, f"commprof/report/sections/{name}.py is not in ORDER"
    assert len(set(ORDER)) == len(ORDER)


def test_a_terminal_and_a_page_have_their_common_sections_in_the_same_order() -> None:
    common = set()
    for seed in range(20):
        run = case(seed)
        result = replace(run.result, summaries=(summary(2), summary(4)))
        details = tuple(size.detail for size in run.sizes)
        report = FullReport(result, details, run.verdict, run.paid, card=run.card)
        page, text = ids(report, is_page=True), ids(report, is_page=False)
        assert len(set(page)) == len(page)
        both = (set(page) & set(text)) - MOVED
        common |= both
        assert [place for place in page if place in both] == [
            place for place in text if place in both
        ]
        assert ("notes" in page) == ("notes" in text)
    assert {"verdict", "step", "scaling", "collectives", "always-on"} <= common
