from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from commprof import _native, variables, wrap
from commprof.capture import boot
from commprof.capture.settings import RankSettings
from commprof.checks import run as health
from commprof.errors import CommprofError, UsageError
from commprof.trace.run.endings import restart_count
from commprof.trace.schema import MODES
from tests.support.machines.commands import finish, fork, without_gloo

READ: dict[str, Callable[[], object]] = {
    **{
        name: RankSettings.from_environment
        for name in (
            *(variables.MODE, variables.SIGNAL, variables.STACKS, variables.CLOCK),
            *(variables.GRADIENT_NORMS, variables.CHECK_SYNC, variables.BUCKET_CAP_MB),
            *(variables.DEVICE_EVENTS, variables.NATIVE, variables.PTRACER),
        )
    },
    variables.CHECK_TIMEOUT_S: health._timeout_s,
    "TORCHELASTIC_RESTART_COUNT": restart_count,
}


@pytest.mark.parametrize("name", READ)
def test_an_empty_environment_variable_counts_as_unset(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    unset = READ[name]()
    monkeypatch.setenv(name, "")
    assert READ[name]() == unset


@pytest.mark.parametrize("value", ["x", "-1"])
@pytest.mark.parametrize("name", READ)
def test_invalid_environment_variables_are_refused_with_the_allowed_values(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(CommprofError, match=rf"^{name}=.*{value}") as caught:
        READ[name]()
    assert "allowed: " in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        RankSettings(),
        RankSettings(
            *("always-on", "none", True, "off", 3, 7, 2.5),
            *("prefetch=2", "int8", "", "--metrics", "60", 7),
        ),
        RankSettings(mode="off", clock="always", bucket_cap_mb=0.25),
    ],
)
def test_ranks_read_back_the_settings_exported_for_them(
    settings: RankSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {variables.MODE: "off", variables.STACKS: "1"})
    settings.leave_for_ranks()
    assert RankSettings.from_environment() == settings


def test_numbers_of_steps_below_the_minimum_are_refused() -> None:
    found = RankSettings.from_environment(
        {variables.GRADIENT_NORMS: "0", variables.CHECK_SYNC: "1"}
    )
    assert (found.gradient_norms_every, found.check_sync_every) == (0, 1)
    with pytest.raises(UsageError, match=r"COMMPROF_CHECK_SYNC='0' .*allowed: 1 or more steps"):
        RankSettings.from_environment({variables.CHECK_SYNC: "0"})
    with pytest.raises(UsageError, match=r"is not valid \(allowed: 1 or more steps\)"):
        RankSettings.from_environment({variables.CHECK_SYNC: "9" * 5000})


def test_the_ptracer_variable_must_be_a_process_id() -> None:
    assert RankSettings.from_environment({variables.PTRACER: "4711"}).tracer == 4711
    for text in ("0", "2147483648", "1e3", "٣", "9" * 5000):
        with pytest.raises(UsageError, match=r"\(allowed: a process ID above 0\)"):
            RankSettings.from_environment({variables.PTRACER: text})


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "much"])
def test_an_invalid_bucket_cap_variable_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not valid \(allowed: MiB above 0\)"):
        RankSettings.from_environment({variables.BUCKET_CAP_MB: text})


def test_names_of_environment_variables_are_defined_in_one_module() -> None:
    root = Path(__file__).parents[3]
    literal = re.compile(r'"(COMMPROF_[A-Z_]+)"')
    found = {
        (path.name, name)
        for path in (root / "commprof").rglob("*.py")
        for name in literal.findall(path.read_text())
        if path.name != "variables.py"
    }
    # These files import nothing of commprof, because every Python of a job runs them.
    assert found == {
        ("__init__.py", variables.OUT),
        ("__init__.py", variables.CPUS),
        ("nccl.py", variables.NCCL),
        ("nccl.py", variables.NATIVE),
        ("nccl.py", variables.NCCL_PLUGIN),
        ("sitecustomize.py", variables.OUT),
    }
    assert (boot.OUT_VARIABLE, boot.CPUS_VARIABLE) == (variables.OUT, variables.CPUS)
    read = {
        name
        for path in (root / "csrc").rglob("*.cpp")
        for name in literal.findall(path.read_text())
    }
    # NCCL's plugin runs in programs without Python, so the plugin itself reads COMMPROF_OUT.
    assert read == {
        *(variables.DEVICE_EVENTS, variables.SIMD, variables.KERNEL_THREADS),
        *(variables.OUT, variables.NCCL, variables.NCCL_PLUGIN),
    }


def test_the_documentation_lists_every_environment_variable() -> None:
    page = (Path(__file__).parents[3] / "docs" / "your_job.md").read_text()
    rows = re.findall(r"^\| `(COMMPROF_\w+)` \| (.*) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [
        (name, name.allowed, name.text(name.default or ""), name.meaning)
        for name in variables.table()
    ]


def test_the_mode_variable_lists_all_modes_and_survives_pickling() -> None:
    assert variables.MODE.allowed == ", ".join(MODES)
    name = pickle.loads(pickle.dumps(variables.MODE))
    assert (name, type(name)) == ("COMMPROF_MODE", str)


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
def test_invalid_kernel_settings_are_refused_before_anything_is_recorded(
    name: str, allowed: str, tmp_path: Path
) -> None:
    if _native.native is None:
        pytest.skip("needs the C++ module")
    # The kernels keep the first value, so each value needs a new process.
    for value, accepted in (("nonsense", False), ("", True)):
        run = tmp_path / (value or "empty")
        done = finish(fork("-c", _RECORD, str(run), spare_count=0, **{name: value}))
        assert (done.returncode == 0) == accepted, done.stderr
        assert bool(list(run.glob("*.trace"))) == accepted
        if not accepted:
            said = done.stderr.splitlines()[-1]
            assert said.startswith(f'{name} is "nonsense"; ')
            assert allowed in said
            assert said.endswith("; choose one of these, or unset the variable")


_JOB = """
import sys
from commprof.capture.boot import arm, pin

pin()
arm(sys.argv[1])
import torch.distributed as dist

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}.store", rank=0, world_size=1)
dist.destroy_process_group()
print("trained")
"""


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (variables.HOOK, "int7", "not recording: unknown compressor 'int7'"),
        (variables.TRIAL, "int8,nonsense", "not recording: "),
        (variables.METRICS, "--nonsense", "not recording: COMMPROF_METRICS: unrecognized"),
        (variables.METRICS, "'", "not recording: COMMPROF_METRICS: No closing quotation"),
        (variables.WATCHDOG, "soon", "not recording: COMMPROF_WATCHDOG"),
        (variables.PTRACER, "me", "not recording: COMMPROF_PTRACER='me' is not valid (allowed: "),
        (variables.MODE, "most", "not recording: COMMPROF_MODE='most' is not valid (allowed: "),
    ],
)
def test_a_job_with_an_invalid_setting_trains_but_records_nothing(
    name: str, value: str, said: str, tmp_path: Path
) -> None:
    of_rank = {name: value, "RANK": "0", "WORLD_SIZE": "1"}
    done = finish(fork("-c", _JOB, str(tmp_path / "out"), spare_count=0, **of_rank))
    assert (done.returncode, without_gloo(done.stdout)) == (0, "trained\n"), done.stderr
    (line,) = [one for one in done.stderr.splitlines() if one.startswith("commprof: ")]
    assert line.startswith(f"commprof: {said}")
    assert not list(tmp_path.rglob("*.trace"))


def test_a_job_records_without_a_trial_that_its_mode_excludes(tmp_path: Path) -> None:
    asked = {variables.TRIAL: "fp16", variables.MODE: "always-on", "RANK": "0", "WORLD_SIZE": "1"}
    done = finish(fork("-c", _JOB, str(tmp_path / "out"), spare_count=0, **asked))
    assert (done.returncode, without_gloo(done.stdout)) == (0, "trained\n"), done.stderr
    assert (
        "commprof: recording, but not all that was asked for: a trial needs every record"
        in done.stderr
    )
    assert list(tmp_path.rglob("*.trace"))


@pytest.mark.parametrize("value", [None, ""])
def test_a_wrapped_script_records_into_the_default_directory(
    value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", {} if value is None else {variables.OUT: value})
    monkeypatch.setattr(sys, "argv", ["commprof.wrap", "train.py"])
    monkeypatch.setattr(sys, "path", sys.path.copy())
    armed: list[str] = []
    monkeypatch.setattr(wrap, "arm", armed.append)
    wrap.main()
    assert armed == [str(tmp_path / "commprof-trace")]


@pytest.mark.parametrize(
    ("given", "kept"),
    [(None, []), ("", []), ("/lib", ["/lib"]), (":/lib", ["", "/lib"]), ("/lib:", ["/lib", ""])],
)
def test_recorded_processes_keep_the_import_path_of_the_script(
    given: str | None, kept: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty entry of PYTHONPATH stands for the working directory."""
    monkeypatch.setattr(os, "environ", {} if given is None else {"PYTHONPATH": given})
    found = boot.environment(Path("out"))["PYTHONPATH"].split(os.pathsep)
    assert found == [str(Path(boot.__file__).parent), *kept]


@pytest.mark.parametrize("value", ["x/y", "0-1", "3-x/1"])
def test_a_rank_without_known_cpus_is_not_pinned(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variables.CPUS, value)
    monkeypatch.setenv("LOCAL_RANK", "0" if value != "0-1" else "1")
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: pytest.fail("pinned"))
    boot.pin()
    said = capsys.readouterr().err
    assert said.startswith(f"commprof: COMMPROF_CPUS={value!r} names no CPUs for local rank ")
    assert said.endswith("; the rank is not pinned\n")
