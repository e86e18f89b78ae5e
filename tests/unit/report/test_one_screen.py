from __future__ import annotations

import random
import string

import pytest

from commprof.report.one_screen import WIDTH, cut

LONG = "/tmp/tmp.vJ1/venvs_of_a_user_with_a_long_name/lib/python3.11/site-packages/launcher"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("short, as it is", "short, as it is"),
        (
            f"Recorded by commprof: {LONG}/train_my_model.py",
            "Recorded by commprof: .../launcher/train_my_model.py",
        ),
        (
            f"Recorded by commprof: {LONG}/{'x' * 60}.py --lr 1",
            f"Recorded by commprof: .../{'x' * 60}.py"[: WIDTH - 4] + " ...",
        ),
        ("Recorded by commprof: " + "word" * 20, "Recorded by commprof: " + "word" * 13 + "wo ..."),
        ("words of a sentence " * 5, "words of a sentence " * 3 + "words of a ..."),
    ],
)
def test_a_cut_line_keeps_what_names_the_script(line: str, expected: str) -> None:
    assert cut(line) == expected


def test_no_header_ends_after_its_name() -> None:
    draw = random.Random(3)
    letters = string.ascii_lowercase + "-_."
    for _ in range(2_000):
        words = [
            "/" * draw.randint(0, 1)
            + "/".join(
                "".join(draw.choices(letters, k=draw.randint(1, 50)))
                for _ in range(draw.randint(1, 9))
            )
            for _ in range(draw.randint(1, 6))
        ]
        line = f"Recorded by commprof: {' '.join(words)}"
        shown = cut(line)
        assert len(shown) <= WIDTH
        assert any(letter in shown.removeprefix("Recorded by commprof:") for letter in letters[:26])
