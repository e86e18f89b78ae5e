"""Tables are drawn as the package tabulate draws its simple ones."""

from __future__ import annotations

import random

import pytest
import tabulate

from commprof.report.tabulated import tabulated

HEADERS = ("ranks", "step ms\nmedian", "\np95", "back-\nward", "", "µs")
CELLS = ("all_reduce", "1.5", "-", "<0.001", "", "two\nlines", 12, 3.25, True, "long words here")


@pytest.mark.parametrize("seed", range(20))
def test_it_is_drawn_as_tabulate_draws_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    count = chance.randint(1, 6)
    headers = chance.choices(HEADERS, k=count)
    rows = [["x", *chance.choices(CELLS, k=count - 1)] for _ in range(chance.randint(1, 5))]
    left = [column for column in range(count) if chance.random() < 0.5]
    monkeypatch.setattr(tabulate, "MIN_PADDING", 0)
    assert tabulated(rows, headers, left) == tabulate.tabulate(
        rows,
        headers=headers,
        tablefmt="simple",
        disable_numparse=True,
        colalign=["left" if column in left else "right" for column in range(count)],
    )
