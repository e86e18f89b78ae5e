from __future__ import annotations

import pytest

from commprof.text import percent_digits


@pytest.mark.parametrize(
    ("share", "said"), [(0.1234, "12.3"), (-0.0004, "0.0"), (0.0, "0.0"), (-0.02, "-2.0")]
)
def test_percent_digits(share: float, said: str) -> None:
    assert percent_digits(share) == said
