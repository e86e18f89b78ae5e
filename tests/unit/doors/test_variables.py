"""Environment variables: an empty one is unset, and nonsense is refused with what is allowed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commprof.capture import gradient_norms, mode, sync_check
from commprof.capture.job import clock
from commprof.checks import run as health
from commprof.errors import CommprofError
from commprof.trace.run.attempts import restart_count

READ: dict[str, Callable[[], object]] = {
    "COMMPROF_MODE": lambda: mode.mode_code(None),
    "COMMPROF_SIGNAL": mode.switch_signal,
    "COMMPROF_GRADIENT_NORMS": gradient_norms._wanted,
    "COMMPROF_CLOCK": clock.mode,
    "COMMPROF_CHECK_TIMEOUT_S": health._timeout_s,
    "COMMPROF_CHECK_SYNC": lambda: sync_check.check_models(None),  # type: ignore[arg-type]
    "TORCHELASTIC_RESTART_COUNT": restart_count,
}


@pytest.mark.parametrize("name", READ)
def test_an_empty_value_is_unset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    unset = READ[name]()
    monkeypatch.setenv(name, "")
    assert READ[name]() == unset


@pytest.mark.parametrize("value", ["x", "-1"])
@pytest.mark.parametrize("name", READ)
def test_nonsense_is_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(CommprofError, match=rf"^{name}=.*{value}") as caught:
        READ[name]()
    assert "allowed: " in str(caught.value) or " none of " in str(caught.value)
