"""A test that needs a program skips without it, unless the program is promised."""

from __future__ import annotations

import pytest

from tests.support.machines.programs import PROMETHEUS_VARIABLE, need_prometheus


@pytest.mark.parametrize(
    ("value", "ends"),
    [
        (None, pytest.skip.Exception),
        ("0", pytest.skip.Exception),
        ("1", pytest.fail.Exception),
    ],
)
def test_a_missing_program(
    value: str | None, ends: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PROMETHEUS_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(PROMETHEUS_VARIABLE, value)
    with pytest.raises(ends, match="needs no-such-program"):
        need_prometheus("no-such-program")


def test_one_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROMETHEUS_VARIABLE, "1")
    need_prometheus("python3")
