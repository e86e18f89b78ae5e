from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commprof import commands
from commprof.launched import script_first


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train.py", "--lr", "0.1"], ["train.py", "--lr", "0.1"]),
        (["-m", "package.train", "7"], ["-m", "package.train", "7"]),
        # torch.distributed.launch and deepspeed --module put their option before the script.
        (["--local-rank=1", "train.py", "7"], ["train.py", "--local-rank=1", "7"]),
        (["--local_rank=0", "train.py"], ["train.py", "--local_rank=0"]),
        (["--local_rank", "0", "train.py"], ["train.py", "--local_rank", "0"]),
        (["--local_rank=-1", "-m", "a.b", "x"], ["-m", "a.b", "--local_rank=-1", "x"]),
        (["train.py", "--local_rank=0"], ["train.py", "--local_rank=0"]),
        (["--local_rank=0"], ["--local_rank=0"]),
        ([], []),
    ],
)
def test_local_rank_of_a_launcher_goes_to_the_script(words: list[str], expected: list[str]) -> None:
    assert script_first(words) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # deepspeed --no_python puts the option before the command.
        (["--local_rank=1", "wrap", "train.py", "7"], ["train.py", "--local_rank=1", "7"]),
        (["wrap", "--local-rank", "1", "train.py"], ["train.py", "--local-rank", "1"]),
        (["wrap", "--local_rank=1", "-m", "a.b"], ["-m", "a.b", "--local_rank=1"]),
        (["wrap", "train.py", "--local_rank=1"], ["train.py", "--local_rank=1"]),
    ],
)
def test_the_command_hands_a_launchers_local_rank_to_the_script(
    words: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, arguments: ran.append(arguments) or sys.exit(0))
    with pytest.raises(SystemExit):
        commands.main(words)
    assert ran == [[sys.executable, "-m", "commprof.wrap", *expected]]


@pytest.mark.parametrize(
    "words", [["report", "wrap"], ["--local_rank=0", "check"], ["--version"], []]
)
def test_other_commands_get_their_words_unchanged(words: list[str]) -> None:
    assert commands._of_wrap(words) == words


@pytest.mark.parametrize("words", [(), ("-m", "commprof.wrap")])
def test_a_script_finds_the_same_names_as_without_wrap(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "import sys, pickle\n"
        "class Model: pass\n"
        "assert pickle.loads(pickle.dumps(Model())).__class__ is Model\n"
        "print(__file__, sys.argv, __name__, __package__, sys._getframe().f_code.co_filename)\n"
    )
    environment = {**os.environ, "COMMPROF_OUT": str(tmp_path / "out")}
    ended = subprocess.run(
        [sys.executable, *words, "train.py", "7"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    script = tmp_path / "train.py"
    assert ended.stdout == f"{script} ['train.py', '7'] __main__ None {script}\n"
