"""Checks the form of the catalogue: every cause can be pasted, printed and looked up."""

from __future__ import annotations

import ast
import re

import pytest

from commprof.analysis.causes import pickled_objects, rank_alone, statistics_each_layer
from commprof.analysis.causes.catalogue_cause import CatalogueCause
from commprof.analysis.causes.registry import CAUSES
from commprof.analysis.named_cause import NamedCause, Saving
from commprof.stats.intervals import Interval

#: Columns and lines that the first screen has for a fix.
WIDTH, LINES = 78, 8


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_a_fix_is_code_that_fits_on_the_first_screen(cause: CatalogueCause) -> None:
    for fix in filter(None, (cause.fix, cause.fix_of_fsdp1)):
        ast.parse(fix)
        lines = [line for line in fix.splitlines() if line]
        assert 0 < len(lines) <= LINES
        assert max(map(len, lines)) <= WIDTH


OF_JOBS = [
    rank_alone._FIX_OF_PREPARING,
    statistics_each_layer._FIX_OF_BUFFERS,
    pickled_objects._FIX_OF_CHECKPOINTS,
    pickled_objects._FIX_OF_LIBRARIES,
]


@pytest.mark.parametrize("fix", OF_JOBS)
def test_a_fix_of_some_jobs_is_code_that_fits_on_the_first_screen(fix: str) -> None:
    ast.parse(fix)
    lines = [line for line in fix.splitlines() if line]
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_a_cause_has_its_words_and_a_public_report(cause: CatalogueCause) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", cause.id)
    assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", cause.source)
    assert cause.looks_like.endswith(".")
    assert cause.why.endswith(".")
    assert not cause.title.endswith(".")


def test_names_are_unique() -> None:
    assert len({cause.id for cause in CAUSES}) == len(CAUSES)


def test_a_gain_that_is_hardly_below_nothing_is_written_as_nothing() -> None:
    saving = Saving(Interval(0.146, -1e-5, 0.2449), "replayed")
    cause = NamedCause("a", "A", "A.", "", "", 0.2, saving, "", is_wrong=False)
    assert cause.wins == "saves 14.6 % of the step [0.0, 24.5] (replayed)"
