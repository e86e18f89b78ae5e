from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.builders.removals import Cases

_CASES, _OF_A_TEST = 240, 40
#: With these seeds commprof once made a statement that rested on the removed part.
_ONCE_WRONG = (3877,)


@pytest.mark.parametrize("first", range(0, _CASES, _OF_A_TEST))
def test_nothing_that_is_said_rests_on_a_removed_part(tmp_path: Path, first: int) -> None:
    cases = Cases(tmp_path)
    for seed in range(first, first + _OF_A_TEST):
        case, found = cases.complaints(seed)
        assert found == [], f"seed {seed}: a recording ({case.kind}) without {case.removed}"


@pytest.mark.parametrize("seed", _ONCE_WRONG)
def test_what_was_once_said_is_said_no_more(tmp_path: Path, seed: int) -> None:
    case, found = Cases(tmp_path).complaints(seed)
    assert found == [], f"a recording ({case.kind}) without {case.removed}"
