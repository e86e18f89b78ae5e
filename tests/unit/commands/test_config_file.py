from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from commprof.commands.options.config_file import key_of, read_config
from commprof.commands.options.parser import Parser
from commprof.commands.running.run_arguments import add_arguments
from commprof.commands.running.run_context import save_config
from commprof.errors import UsageError
from commprof.invocation import quoted
from commprof.launch.pinning import place_ranks
from commprof.trace.run.run_directory import CONFIG_FILE

pytest.importorskip("yaml")


def parser() -> Parser:
    made = Parser(prog="commprof run")
    add_arguments(made)
    return made


def read(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return read_config(path, parser()._actions)


def parsed(tmp_path: Path, text: str, words: Sequence[str] = ()) -> argparse.Namespace:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return parser().parse_args(["--config", str(path), *words])


def test_every_option_but_config_has_a_key(tmp_path: Path) -> None:
    keys = {key_of(action) for action in parser()._actions} - {"help", "config"}
    assert {"nproc", "world-sizes", "pin", "threads-per-rank", "script", "module"} <= keys
    for key in keys:
        assert read(tmp_path, f"{key}: null\n") == {}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("nproc: 4\nclip-norm: 1e-3\n", {"nproc": 4, "clip_norm": 0.001}),
        ("world_sizes: [1, 2, 4]", {"world_sizes": "1,2,4"}),
        ("world-sizes: 2", {"world_sizes": "2"}),
        ("strategy: [ddp, {hsdp: {shard: 2}}]", {"strategy": "ddp,hsdp:shard=2"}),
        (
            "workload: {timed: {backward_ms: [10, 5], gradient_mb: 2}}",
            {"workload": "timed:backward_ms=10/5,gradient_mb=2"},
        ),
        ("workload: {mlp: {}}", {"workload": "mlp"}),
        (
            "trial:\n  - fp16\n  - topk: {ratio: 0.01}\n  - rounds: 12\n",
            {"trial": "fp16,topk:ratio=0.01,rounds=12"},
        ),
        ("hook: int8", {"hook": "int8"}),
        # YAML 1.1 reads "off" as false.
        ("mode: off", {"mode": "off"}),
        ("stacks: true\nscale-lr: false", {"stacks": True, "scale_lr": False}),
        ("output: runs/a", {"output": Path("runs/a")}),
        (
            'script: train.py\nscript-args: [--lr, "0.1", --epochs, 3]',
            {"script": "train.py", "script_args": ["--lr", "0.1", "--epochs", "3"]},
        ),
        ("workload: &w mlp\ntrial: *w\n", {"workload": "mlp", "trial": "mlp"}),
    ],
)
def test_config_values_are_read_as_on_the_command_line(
    tmp_path: Path, text: str, values: dict[str, Any]
) -> None:
    assert read(tmp_path, text) == values


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nproc: 2\nstepz: 3", ["line 2: unknown key 'stepz'", "did you mean 'steps'?"]),
        ("config: other.yaml", ["line 1: unknown key 'config'"]),
        ("steps: ten", ["line 1: steps: 'ten' is not a whole number"]),
        ("\nsteps: '10'", ["line 2: steps: '10' is text (allowed: a whole number)"]),
        ("steps: [1, 2]", ["steps: a list given (allowed: a whole number)"]),
        ("steps: {a: 1}", ["steps: a mapping given (allowed: a whole number)"]),
        ("steps: 1:30", ["steps: '1:30' is not a whole number"]),
        ("clip-norm: high", ["clip-norm: 'high' is not a number"]),
        ("stacks: 1", ["stacks: '1' given (allowed: true, false)"]),
        ("scaling: wek", ["unknown value 'wek' (allowed: weak, strong)", "did you mean 'weak'?"]),
        ("backend: [gloo]", ["backend: a list given (allowed: one value)"]),
        ("script-args: --lr", ["script-args: '--lr' given (allowed: a list)"]),
        ("steps: 1\nsteps: 2", ["line 2: steps is given twice"]),
        ("- nproc", ["line 1: a list given, not `option: value` lines"]),
        ("nproc 4", ["line 1: 'nproc 4' given, not `option: value` lines"]),
        ("nproc: [1\nb: 2", ["line 2: not YAML"]),
        ("workload: !!python/name:os.system", ["YAML tag 'tag:yaml.org,2002:python/name"]),
        ("workload: !mine mlp", ["YAML tag '!mine' given"]),
        ("trial: &t [*t]", ["trial: a list given (allowed: one value)"]),
        ("workload: &w {a: *w}", ["workload: a mapping given (allowed: one value)"]),
        ("[" * 3000, ["nested too deeply"]),
    ],
)
def test_errors_in_the_config_file_are_named_with_their_line(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    for word in [str(tmp_path / "run.yaml"), *words]:
        assert word in str(caught.value)


def test_a_missing_config_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read --config .*missing.yaml: No such file"):
        read_config(tmp_path / "missing.yaml", parser()._actions)


def test_a_config_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes(b"nproc: \xff\xfe\n")
    with pytest.raises(UsageError, match="not YAML"):
        read_config(tmp_path / "run.yaml", parser()._actions)


@pytest.mark.parametrize(
    ("text", "words", "values"),
    [
        ("nproc: 2\nsteps: 5", ["--steps", "7"], {"nproc": 2, "steps": 7}),
        ("nnodes: 2\npin: cores", ["--nnodes", "1", "--pin", "auto"], {"nnodes": 1, "pin": "auto"}),
        ("stacks: true", ["--no-stacks"], {"stacks": False}),
        # ``--epochs`` excludes ``steps``, so the value in the file is dropped.
        ("steps: 5", ["--epochs", "1"], {"steps": None, "epochs": 1}),
        ("world-sizes: [1, 2]", ["--nproc", "4"], {"world_sizes": None, "nproc": 4}),
        ("hook: int8", ["--trial", "fp16"], {"hook": None, "trial": "fp16"}),
        ("trial: fp16", ["--bucket-cap-mb", "5"], {"trial": None, "bucket_cap_mb": 5.0}),
        ("trial: fp16", ["--price-per-hour", "3"], {"trial": None, "price_per_hour": 3.0}),
        (
            "price-per-hour: 3\nprice-per: rank",
            ["--trial", "fp16"],
            {"trial": "fp16", "price_per_hour": None, "price_per": None},
        ),
        ("script: a.py\nscript-args: [x]", [], {"script": "a.py", "script_args": ["x"]}),
        ("script: a.py\nscript-args: [x]", ["b.py"], {"script": "b.py", "script_args": []}),
        ("script: a\nmodule: true", ["b.py", "--y"], {"module": False, "script_args": ["--y"]}),
        (
            "workload: mlp\nseed: 1\nscale-lr: true\nstrategy: fsdp\nnproc: 2",
            ["b.py", "--y"],
            {
                **dict.fromkeys(("workload", "seed", "scale_lr", "strategy")),
                **{"nproc": 2, "script": "b.py", "script_args": ["--y"]},
            },
        ),
        (
            "script: a\nmodule: true\nscript-args: [x]\nnproc: 2",
            ["--workload", "mlp"],
            {"script": None, "module": False, "script_args": [], "workload": "mlp", "nproc": 2},
        ),
        ("workload: mlp\nseed: 1", ["--workload", "timed"], {"workload": "timed", "seed": 1}),
        ("nproc: 2", [], {"nproc": 2, "script": None, "script_args": []}),
    ],
)
def test_the_command_line_overrides_the_config_file(
    tmp_path: Path, text: str, words: list[str], values: dict[str, Any]
) -> None:
    found = parsed(tmp_path, text, words)
    assert {name: getattr(found, name) for name in values} == values


def test_a_wrong_config_file_is_refused_in_one_line_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed(tmp_path, "stepz: 1")
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("commprof run: ")
    assert err.count("\n") == 1


def saved(directory: Path, words: Sequence[str]) -> argparse.Namespace:
    args = parser().parse_args(words)
    args.placement = place_ranks("none", "1", [2], 1)
    save_config(directory, args, [2])
    return args


def test_a_saved_configuration_gives_a_script_the_same_arguments(tmp_path: Path) -> None:
    words = ["train.py", "--name", "run-🚀é", r"\ud83d🚀", "\x7f\x85\u2028", "\udcff"]
    args = saved(tmp_path, words)
    again = parser().parse_args(["--config", str(tmp_path / CONFIG_FILE)])
    assert (again.script, again.script_args) == (args.script, args.script_args)
    assert again.script_args == words[1:]


@pytest.mark.parametrize(("machines", "more"), [("1", ""), ("2", " --output NEW --node-rank N")])
def test_a_saved_configuration_says_how_to_repeat_the_run(
    machines: str, more: str, tmp_path: Path
) -> None:
    saved(tmp_path, ["--nnodes", machines, "train.py"])
    _, command, *_ = (tmp_path / CONFIG_FILE).read_text().splitlines()
    assert command.endswith(f" --config {tmp_path / CONFIG_FILE}{more}")


def test_a_configuration_that_cannot_be_saved_does_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "\udcff" / CONFIG_FILE).mkdir(parents=True)
    saved(tmp_path / "\udcff", ["train.py"])
    where = quoted(tmp_path / "\udcff" / CONFIG_FILE)
    assert capsys.readouterr().err == f"commprof: cannot write {where}: Is a directory\n"


def test_a_config_option_after_the_script_belongs_to_the_script(tmp_path: Path) -> None:
    found = parser().parse_args(["train.py", "--config", str(tmp_path / "its_own.yaml")])
    assert found.config is None
    assert found.script_args == ["--config", str(tmp_path / "its_own.yaml")]


@pytest.mark.parametrize("kind", ["pipe", "device", "long"])
def test_endless_or_huge_config_files_are_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 1 << 40)
    with pytest.raises(
        UsageError, match=r"cannot read --config .*run\.yaml: .*; name another file"
    ):
        read_config(path, parser()._actions)
