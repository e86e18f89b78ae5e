"""``--bucket-cap-mb``: every DDP model gets it that names none, and what is refused."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commprof.capture.patches.every_model import cap_every_model
from commprof.commands import main


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(
        DistributedDataParallel, "__init__", DistributedDataParallel.__init__
    )  # what is put in its place goes away with the test
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def cap_of(*args: object, **options: object) -> int:
    """Of a model made like this, in bytes."""
    ddp = DistributedDataParallel(torch.nn.Linear(8, 8), *args, **options)
    return int(ddp.bucket_bytes_cap)


@pytest.mark.usefixtures("one_rank")
def test_models_that_name_no_cap_get_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cap_of() == 25 << 20
    cap_every_model(2.5)
    assert cap_of() == cap_of(bucket_cap_mb=None) == 2.5 * (1 << 20)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("one_rank")
def test_a_model_that_names_its_own_keeps_it_and_that_is_said_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cap_every_model(2.5)
    positional = (None, None, 0, None, True, None, 3)
    assert cap_of(bucket_cap_mb=3) == cap_of(*positional) == 3 << 20
    assert cap_of(bucket_cap_mb=0) == 0
    err = capsys.readouterr().err
    assert err.count("a model names its own bucket_cap_mb=3 and keeps it") == 1


@pytest.mark.usefixtures("one_rank")
def test_a_list_of_caps_is_named_too(capsys: pytest.CaptureFixture[str]) -> None:
    if "bucket_cap_mb_list" not in inspect.signature(DistributedDataParallel).parameters:
        pytest.skip("this torch takes no list of caps")
    cap_every_model(2.5)
    assert cap_of(bucket_cap_mb_list=[1, 4]) == 4 << 20
    assert "its own bucket_cap_mb_list=[1, 4] and keeps it" in capsys.readouterr().err


@pytest.mark.usefixtures("one_rank")
def test_wrong_arguments_are_refused_by_ddp_itself() -> None:
    cap_every_model(2.5)
    with pytest.raises(TypeError, match="no_such_option"):
        cap_of(no_such_option=1)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--bucket-cap-mb", "0"], "--bucket-cap-mb 0 is out of range (allowed: MiB above 0)"),
        (["--bucket-cap-mb", "nan"], "is out of range"),
        (["--bucket-cap-mb", "5", "--trial", "int8"], "name bucket-cap=MB in --trial"),
        (["--bucket-cap-mb", "5", "--strategy", "ddp,fsdp"], "--strategy fsdp has none"),
    ],
)
def test_the_command_refuses_before_anything_starts(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COMMPROF_BUCKET_CAP_MB", "")
    output = tmp_path / "run"
    assert main(["run", "--nproc", "2", "--output", str(output), *words]) == 2
    assert complaint in capsys.readouterr().err
    assert not output.exists()
