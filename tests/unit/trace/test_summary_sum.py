from __future__ import annotations

import numpy as np
import pytest

from commprof.analysis.late.stragglers import find_late_rank
from commprof.trace.summary import Ints, WaitedFor
from commprof.trace.summary_sum import summed_waits

MS = 1_000_000
BLOCKS = 100


def waits_of(ranks: int, late: int, seed: int) -> WaitedFor:
    random = np.random.default_rng(seed)
    block, rank = np.divmod(np.arange(BLOCKS * ranks), ranks)
    waited = random.exponential(5 * MS / ranks, len(rank)).astype(np.int64)
    waited[rank == late] = random.exponential(20 * MS, BLOCKS).astype(np.int64)
    return WaitedFor(1 << 30, np.column_stack([block, rank, waited]))


def total_by_rank(parts: list[WaitedFor], ranks: int) -> Ints:
    total = np.zeros(ranks, dtype=np.int64)
    for part in parts:
        np.add.at(total, part.cells[:, 1], part.cells[:, 2])
    return total


@pytest.mark.parametrize("ranks", [8, 64, 300, 512, 2000])
def test_the_late_rank_of_many_is_told_from_a_sum_of_few_cells(ranks: int) -> None:
    parts = [waits_of(ranks, 7, seed) for seed in range(4)]
    waits = summed_waits(parts)
    assert len(waits.cells) <= 1024
    blocks, row = np.unique(waits.cells[:, 0], return_inverse=True)
    assert len(blocks) >= 13
    waited_for = np.zeros((len(blocks), ranks))
    waited_for[row, waits.cells[:, 1]] = waits.cells[:, 2]
    assert waited_for.sum() == waits.cells[:, 2].sum()
    late = find_late_rank(waited_for, MS)
    assert late is not None
    assert late.rank == 7
    expected, total = total_by_rank(parts, ranks), total_by_rank([waits], ranks)
    known = np.argsort(-expected, kind="stable")[:512]
    assert (total[known] == expected[known]).all()
    assert total.sum() == expected[known].sum()


def test_a_long_time_has_few_blocks() -> None:
    cells = np.column_stack([np.arange(5_000), np.arange(5_000) % 900, np.full(5_000, MS)])
    waits = summed_waits([WaitedFor(1 << 30, cells)])
    assert len(np.unique(waits.cells[:, 0])) <= 128
    assert waits.block_ns > 1 << 30
