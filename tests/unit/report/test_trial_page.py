"""A trial's page: its verdict and tables, and no mean over steps that candidates shared."""

from __future__ import annotations

from commprof.report import markdown
from commprof.report.document import sections
from commprof.report.full_report import FullReport
from commprof.report.html import page
from tests.support.builders.details import detail
from tests.support.builders.results import run_result, world
from tests.unit.report.test_trial_table import sample

REPORT = FullReport(run_result(world(2)), (detail(2),), None, None)


def test_the_trial_comes_first_and_no_means_follow() -> None:
    found = {section.id: section for section in sections(REPORT, sample())}
    assert next(iter(found)) == "trial"
    assert not {"verdict", "step", "scaling", "collectives", "waiting"} & found.keys()
    assert "steps" not in found  # quartiles over all candidates' steps would be nobody's
    assert "timeline" in found
    assert found["trial"].lead == sample().verdict.sentences[0]


def test_its_tables_and_what_applies_it_are_on_both_pages() -> None:
    for text in (page.render(REPORT, sample()), markdown.render(REPORT, sample())):
        assert "int8" in text
        assert "To apply it: commprof run" in text
        assert "pays below" in text
        assert "Each technique alone and combined" in text
        assert "took no part: its graph is static" in text
        assert text.count("does not apply") == 2  # in the table, and in a note
        assert "does not apply, since the same bytes are sent in other buckets" in text
        assert "left out.:" not in text
        assert "step ms \\[95 %\\]" in text or "<th" in text
