from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

from commprof.analysis import causes
from commprof.analysis.causes.catalogue_cause import CatalogueCause
from commprof.analysis.causes.registry import CAUSES
from commprof.analysis.named_cause import NamedCause, Saving
from commprof.stats.intervals import Interval

#: The first screen has so many columns and lines for a fix.
WIDTH, LINES = 78, 8


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_a_fix_is_code_that_fits_on_the_first_screen(cause: CatalogueCause) -> None:
    for fix in filter(None, (cause.fix, cause.fix_of_fsdp1)):
        ast.parse(fix)
        lines = [line for line in fix.splitlines() if line]
        assert 0 < len(lines) <= LINES
        assert max(map(len, lines)) <= WIDTH


def fixes_of_cases() -> Iterator[tuple[str, str]]:
    for module_info in pkgutil.iter_modules(causes.__path__):
        module = importlib.import_module(f"{causes.__name__}.{module_info.name}")
        for name, fix in vars(module).items():
            if "FIX" in name and isinstance(fix, str) and fix:
                yield f"{module_info.name}.{name}", fix


@pytest.mark.parametrize(("name", "fix"), [*fixes_of_cases()])
def test_a_fix_for_a_special_case_fits_on_the_first_screen_too(name: str, fix: str) -> None:
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
