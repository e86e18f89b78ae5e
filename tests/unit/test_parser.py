"""A wrong flag on the command line: one line, with the nearest one there is."""

from __future__ import annotations

import pytest

from commprof.commands import make_parser


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run --nprc 2", "commprof run: unrecognized arguments: --nprc; did you mean --nproc? "),
        (
            "predict run --world-sise=3",
            "unrecognized arguments: --world-sise=3; did you mean --world-size? ",
        ),
        ("report --zzzz x", "commprof report: unrecognized arguments: --zzzz (see "),
        ("check --nproc 2 extra", "commprof check: unrecognized arguments: extra (see "),
    ],
)
def test_names_the_nearest(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(line.split())
    assert ended.value.code == 2
    written = capsys.readouterr().err
    assert said in written
    assert written.count("\n") == 1
