"""Which faults ``benchmarks/faults.py`` tries."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import faults as matrix


def names(only: str | None) -> list[str]:
    return [row.name for row in matrix.chosen(argparse.ArgumentParser(), only)]


def test_every_fault_has_a_name_of_its_own() -> None:
    found = names(None)
    assert len(set(found)) == len(found) >= 24


def test_faults_are_chosen_by_name_also_with_a_comma_in_it() -> None:
    chosen = ["SIGKILL", "SIGSTOP, SIGCONT", "SIGKILL at any moment", "Ctrl-C at any moment"]
    assert names(",".join(chosen)) == chosen
    assert names("full disk, SIGKILL") == ["full disk", "SIGKILL"]


@pytest.mark.parametrize("only", ["SIGKIL", "SIGKILL,", "SIGKILL,full", "SIGKILL;full disk", ""])
def test_an_unknown_one_is_refused(only: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        names(only)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "--only: no fault " in said
    assert all(name in said for name in names(None))
