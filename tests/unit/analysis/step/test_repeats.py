"""How often a step runs its backward pass, its update and DDP's exchange."""

from __future__ import annotations

import numpy as np

from commprof.analysis.step.repeats import Repeats, repeats
from commprof.trace.schema import Phase
from tests.support.builders.traces import MS, Rank


def test_phases_are_counted_in_the_step_that_they_begin_in() -> None:
    rank = Rank(0, 2)
    for step in range(3):
        begin = step * 100 * MS
        for turn in range(4):
            rank.phase(Phase.BACKWARD, begin + (10 + 20 * turn) * MS, begin + (20 + 20 * turn) * MS)
        rank.phase(Phase.OPTIMIZER, begin + 95 * MS, begin + 100 * MS)
        rank.step(begin, begin + 100 * MS)
    assert repeats(rank.trace(), np.arange(3)) == Repeats(4, 1, 0)
    assert repeats(rank.trace(), np.array([], dtype=np.int64)) == Repeats()


def test_only_what_is_out_of_the_ordinary_is_said() -> None:
    assert Repeats().sentences == Repeats(1, 1, 1).sentences == Repeats(2, 2, 2).sentences[1:] == []
    (several,) = Repeats(2, 2, 2).sentences
    assert several.startswith("A step has 2 optimizer updates, as with several optimizers;")
    (accumulated,) = Repeats(4, 1, 1).sentences
    assert "4 backward passes before its update: gradients are accumulated" in accumulated
    assert accumulated.endswith("DDP exchanged them in 1 of 4.")
    assert Repeats(4, 1, 0).sentences[0].endswith("accumulated.")
