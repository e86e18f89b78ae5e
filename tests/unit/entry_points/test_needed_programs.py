"""A test that needs what is not installed is left out, unless that is promised."""

from __future__ import annotations

import pytest

from tests.support.machines.programs.programs import PROMETHEUS_VARIABLE, how_to_run, missing, needs


@pytest.fixture
def item(request: pytest.FixtureRequest) -> pytest.Item:
    found: pytest.Item = request.node
    return found


@pytest.mark.parametrize(
    ("promised", "left"), [(None, {"promtool"}), ("0", {"promtool"}), ("1", set())]
)
def test_what_is_missing(
    promised: str | None, left: set[str], item: pytest.Item, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PROMETHEUS_VARIABLE, raising=False)
    if promised is not None:
        monkeypatch.setenv(PROMETHEUS_VARIABLE, promised)
    monkeypatch.setenv("PATH", "")
    item.add_marker(needs("promtool", "torch", "no_such_library")[0])
    assert missing(item) == left | {"no_such_library"}


def test_a_program_that_is_there_is_not_missing(item: pytest.Item) -> None:
    item.add_marker(needs("env")[0])
    assert missing(item) == set()


def test_what_needs_nothing_is_not_marked() -> None:
    assert needs("", "") == ()


def test_how_to_run_what_was_left_out() -> None:
    assert how_to_run({"peft"}) == "make integrations"
    assert how_to_run({"promtool"}) == "apt-get install prometheus && make test-all"
