"""The tables of docs/strategies.md are those of the committed results."""

from __future__ import annotations

import json

import pytest

from benchmarks.strategies import COMMANDS, PAGE, RESULT, page


def test_the_page_shows_the_committed_results() -> None:
    results = json.loads(RESULT.read_text())
    assert results.keys() == COMMANDS.keys()
    for result in results.values():
        shown = {(row["strategy"], row["world_size"]) for row in result["rows"]}
        assert shown == {(name, size) for name in ("ddp", "fsdp") for size in (1, 2, 4)}
    assert page(PAGE.read_text(), results) == PAGE.read_text()


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="0 blocks"):
        page("no markers", json.loads(RESULT.read_text()))
