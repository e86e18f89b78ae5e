"""The page about the JSON result names every field of it, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.support.builders.documents.full_document import full_run

DESCRIPTION = Path(__file__).parents[3] / "docs" / "json_format.md"


def fields_of(value: Any) -> set[str]:
    """All keys, at any depth, but for those of the context."""
    if isinstance(value, list):
        return set().union(*map(fields_of, value))
    if isinstance(value, dict):
        return set(value).union(*(fields_of(v) for k, v in value.items() if k != "context"))
    return set()


def test_the_description_names_every_field_and_no_other() -> None:
    described = set(re.findall(r"`([a-z0-9_]+)`", DESCRIPTION.read_text())) - {"null"}
    assert described == fields_of(full_run())


def test_the_description_s_tables_have_the_fields_in_their_places() -> None:
    text = DESCRIPTION.read_text()
    outer, inner = (
        {
            tuple(re.findall(r"`(\w+)`", first)): set(re.findall(r"`(\w+)`", second))
            for first, second in re.findall(r"^\| (`[^|]+) \| (.+) \|$", table, re.M)
        }
        for table in text.split("Each of `runs`:")
    )
    document = full_run()
    assert {name for names in outer for name in names} == document.keys()
    run = document["runs"][0]
    assert {name for names in inner for name in names} == run.keys()
    assert inner["aggregated_metrics",] == run["aggregated_metrics"].keys()
    assert inner["rank_results",] == run["rank_results"][0].keys()
