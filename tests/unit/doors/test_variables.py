"""Environment variables: an empty one is unset, and nonsense is refused with what is allowed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from commprof import _native
from commprof.capture import gradient_norms, mode, sync_check
from commprof.capture.job import clock
from commprof.capture.variables import check_choices
from commprof.checks import run as health
from commprof.errors import CommprofError
from commprof.trace.run.attempts import restart_count

READ: dict[str, Callable[[], object]] = {
    "COMMPROF_MODE": lambda: mode.mode_code(None),
    "COMMPROF_SIGNAL": mode.switch_signal,
    "COMMPROF_GRADIENT_NORMS": gradient_norms._wanted,
    "COMMPROF_CLOCK": clock.mode,
    "COMMPROF_CHECK_TIMEOUT_S": health._timeout_s,
    "COMMPROF_DEVICE_EVENTS": check_choices,
    "COMMPROF_NATIVE": check_choices,
    "COMMPROF_STACKS": check_choices,
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


_RECORD = """
import sys
import commprof
from commprof.errors import UsageError

try:
    with commprof.profile(sys.argv[1]):
        pass
except UsageError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize(
    ("name", "allowed"), [("COMMPROF_SIMD", "scalar"), ("COMMPROF_KERNEL_THREADS", "1 to 256")]
)
def test_kernels_settings_are_refused_before_anything_is_recorded(
    name: str, allowed: str, tmp_path: Path
) -> None:
    if _native.native is None:
        pytest.skip("needs the C++ module")
    # A process each, for the kernels keep the first answer.
    for value, accepted in (("nonsense", False), ("", True)):
        run = tmp_path / (value or "empty")
        done = subprocess.run(
            [sys.executable, "-c", _RECORD, str(run)],
            env=os.environ | {name: value},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode == 0) == accepted, done.stderr
        assert bool(list(run.glob("*.trace"))) == accepted
        if not accepted:
            said = done.stderr.splitlines()[-1]
            assert said.startswith(f'{name} is "nonsense"; ')
            assert allowed in said
            assert said.endswith("; take one of these, or unset the variable")
