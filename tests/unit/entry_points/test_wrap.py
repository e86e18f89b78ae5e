"""What ``commprof.wrap`` hands to the script."""

from __future__ import annotations

import pytest

from commprof.wrap import script_first


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
        # The script's own option of this name stays where it is.
        (["train.py", "--local_rank=0"], ["train.py", "--local_rank=0"]),
        (["--local_rank=0"], ["--local_rank=0"]),
        ([], []),
    ],
)
def test_local_rank_of_a_launcher_goes_to_the_script(words: list[str], expected: list[str]) -> None:
    assert script_first(words) == expected
