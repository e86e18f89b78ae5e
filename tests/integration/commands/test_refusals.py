from __future__ import annotations

import dataclasses
import re
import socket
from pathlib import Path

import pytest
import torch

from commprof.commands import main
from commprof.tune.compressors.compressor import SCHEMES
from commprof.tune.trials.candidates import technique_names
from commprof.tune.trials.plan import SETTINGS
from commprof.workloads.spec import WORKLOAD_NAMES, parse_spec
from commprof.workloads.strategies import STRATEGY_NAMES, parse_strategy
from tests.support.machines.commands import RUN, call


def test_help_lists_exactly_the_existing_settings_with_their_defaults() -> None:
    done = call(*RUN, "--help-all", cold=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "commprof run --nproc 8" in done.stdout
    text = re.sub(r"\s+", " ", done.stdout)
    for name in WORKLOAD_NAMES:
        options = type(parse_spec(name)).options_type()
        for field in dataclasses.fields(options):
            value = getattr(options, field.name)
            value = value[0] if isinstance(value, tuple) else value
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            assert re.search(rf"\b{field.name}={re.escape(shown)}(?=[, ])", text), field.name
    start_of, end_of = text.index("Workloads, as"), text.index("options:")
    shown_names = re.findall(r"(\w+)=(?!value)", text[start_of:end_of])
    known = {
        field.name
        for name in WORKLOAD_NAMES
        for field in dataclasses.fields(type(parse_spec(name)).options_type)
    }
    strategies = {
        field.name
        for name in STRATEGY_NAMES
        for field in dataclasses.fields(parse_strategy(name).options_type)
    }
    compressors = {option.name for scheme in SCHEMES.values() for option in scheme.options}
    # The expression above finds only the last word of names such as bucket-cap= or first-bucket=.
    words = [name.partition("=")[0] for name in technique_names() if "=" in name]
    trial = set(SETTINGS) - {"headroom"} | {word.rpartition("-")[2] for word in words}
    assert set(shown_names) == known | strategies | compressors | trial | {"measure_every"}


def check_refused(code: int, out: str, err: str, *words: str) -> None:
    assert code == 2, err
    assert out == ""
    assert err.count("\n") == 1, err
    assert re.match(r"(python -m )?commprof[a-z. ]*: ", err), err
    for word in words:
        assert word in err


BAD_VALUES = [
    ("--nproc 0", ["--nproc 0", "1 or more"]),
    ("--nproc x", ["--nproc", "'x'"]),
    ("--world-sizes 1,a", ["'1,a'", "such as 1,2,4"]),
    ("--world-sizes 0,2", ["--world-sizes 0,2", "1 or more"]),
    ("--nproc 2 --world-sizes 4", ["4 ranks", "--nproc allows only 2", "leave --nproc out"]),
    (
        "--nproc 2 --nnodes 2 --rdzv-endpoint h:1 --world-sizes 8",
        ["8 ranks", "--nproc on 2 machines allows only 4"],
    ),
    ("--scaling foo", ["--scaling", "'foo'", "weak", "strong"]),
    ("--workload transfomer", ["'transfomer'", "did you mean 'transformer'?", "timed"]),
    ("--workload timed:layer=2", ["'layer'", "did you mean 'layers'?"]),
    ("--workload timed:layers=x", ["layers='x'", "1 or more"]),
    ("--workload timed:late_phase=x", ["late_phase='x'", "data, forward, backward"]),
    ("--steps 0", ["--steps 0", "1 or more"]),
    ("--epochs 0", ["--epochs 0", "1 or more"]),
    ("--batch-size 0", ["--batch-size 0", "1 or more"]),
    ("--steps 3 --epochs 2", ["--steps 3", "--epochs 2", "one of them"]),
    ("--nproc 4 --scaling strong --batch-size 6", ["6", "4 ranks", "1, 2, 3, 6", "such as 8"]),
    ("--backend foo", ["'foo'", "gloo"]),
    ("--overhead-steps -1", ["--overhead-steps -1", "0 or more"]),
    ("--threads-per-rank 0", ["--threads-per-rank 0", "1 or more", "auto"]),
    ("--pin core", ["--pin", "'core'", "numa"]),
    ("--price-per-hour 0", ["--price-per-hour 0.0", "more than 0"]),
    ("--config /no/such.yaml", ["cannot read --config /no/such.yaml"]),
    ("--strategy fsd", ["'fsd'", "did you mean 'fsdp'?", "zero1"]),
    ("--strategy ddp,fsdp,ddp", ["names ddp twice"]),
    ("--nproc 4 --strategy hsdp:shard=3", ["shard=3", "1, 2, 4"]),
    ("--strategy fsdp --hook int8", ["--hook int8", "fsdp does not use DDP", "zero1"]),
    ("--strategy ddp --cpu-offload", ["--cpu-offload", "fsdp, hsdp"]),
    ("--strategy fsdp --cpu-offload", ["--cpu-offload", "in the host's memory already"]),
    ("--workload timed --strategy zero1", ["--strategy zero1", "it has no optimizer"]),
    ("--workload timed --precision bf16", ["--precision", "it sleeps"]),
    ("--workload lora:base=4bit --strategy fsdp", ["packed 4-bit", "base=bf16"]),
    ("--workload resnet50:data=/no/such", ["'/no/such'", "synthetic, digits"]),
    ("--accumulate 0", ["--accumulate 0", "1 or more"]),
    ("--precision fp8", ["--precision", "'fp8'", "bf16"]),
    ("--clip-norm -1", ["--clip-norm -1", "0 or more"]),
    ("--lr-warmup -1", ["--lr-warmup -1", "0 or more"]),
    ("--rdzv-endpoint here", ["'here'", "HOST:PORT", "localhost:29500"]),
    ("--no-such-option", ["--no-such-option", "--help"]),
]


@pytest.mark.parametrize(("arguments", "words"), BAD_VALUES, ids=[row[0] for row in BAD_VALUES])
def test_a_bad_value_is_refused_in_one_line(
    arguments: str, words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["run", *arguments.split(), "--output", str(tmp_path / "run")])
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    check_refused(code, *capfd.readouterr(), *words)
    assert not (tmp_path / "run").exists()


def test_a_backend_without_its_device_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    code = main(["run", "--backend", "nccl", "--output", str(tmp_path / "run")])
    check_refused(code, *capfd.readouterr(), "'nccl'", "0 CUDA devices", "gloo")


@pytest.mark.parametrize("arguments", ["--nproc 0", "--workload transfomer", "--scaling foo"])
def test_a_bad_value_ends_the_process_with_exit_code_2(arguments: str) -> None:
    done = call(*RUN, *arguments.split(), cold=True)
    check_refused(done.returncode, done.stdout, done.stderr, arguments.split()[-1])


def test_places_that_cannot_be_written_are_refused_before_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    full = tmp_path / "full"
    full.mkdir()
    (full / "something").write_text("")
    output = ["--output", str(tmp_path / "run")]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        for arguments, words in [
            (["--output", str(in_the_way / "run")], [str(in_the_way), "another directory"]),
            (["--output", str(in_the_way)], [str(in_the_way), "another directory"]),
            (["--output", str(full)], ["not empty", "nothing is overwritten"]),
            ([*output, "--json", str(in_the_way / "x.json")], ["--json", "another file"]),
            ([*output, "--rdzv-endpoint", f"127.0.0.1:{port}"], [port, "in use", "another"]),
        ]:
            code = main(["run", "--nproc", "1", *arguments])
            check_refused(code, *capfd.readouterr(), *words)
    assert not (tmp_path / "run").exists()
    assert in_the_way.read_text() == ""
    assert [path.name for path in full.iterdir()] == ["something"]


@pytest.mark.parametrize("latency", ["", "us", "0x", "-1us"])
def test_a_link_latency_without_a_valid_number_is_refused(
    latency: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code = main(["fit", "RUN", f"--link-latency={latency}"])
    check_refused(code, *capfd.readouterr(), f"--link-latency '{latency}'", "a number with a unit")


def test_report_refuses_a_directory_without_a_readable_run(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    for name in ("missing", "", "broken"):
        done = call("-m", "commprof", "report", str(tmp_path / name), "--all")
        assert done.returncode == 1
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert str(tmp_path / name) in done.stderr
