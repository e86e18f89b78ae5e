"""Samples are counted where a batch says how many it holds, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from commprof.capture.phases.auto_phases import samples_read
from commprof.trace.schema import SAMPLES_UNKNOWN

UNKNOWN = SAMPLES_UNKNOWN
DATA = TensorDataset(torch.zeros(7, 5), torch.zeros(7))


def counted(loader: DataLoader[Any]) -> list[int]:
    iterator = iter(loader)
    return [samples_read(iterator, batch) for batch in iterator]


def stacked(rows: list[Any]) -> dict[str, torch.Tensor]:
    return {"x": torch.stack([row[0] for row in rows]), "y": torch.stack([row[1] for row in rows])}


def test_default_collation() -> None:
    assert counted(DataLoader(DATA, batch_size=3)) == [3, 3, 1]


def test_own_collation_counts_if_it_agrees_with_the_loader() -> None:
    assert counted(DataLoader(DATA, batch_size=3, collate_fn=stacked)) == [3, 3, 1]


@pytest.mark.parametrize(
    "collate",
    [
        lambda rows: [row[0] for row in rows],  # dimension 0 is the sample's own
        lambda rows: (torch.zeros(3, 2), torch.zeros(2)),
        lambda rows: torch.zeros(()),
        lambda rows: [1, "text", None],
    ],
)
def test_other_batches_stay_unknown(collate: Any) -> None:
    assert set(counted(DataLoader(DATA, batch_size=3, collate_fn=collate))) == {UNKNOWN}


def test_a_loader_that_does_not_batch_stays_unknown() -> None:
    assert set(counted(DataLoader(DATA, batch_size=None))) == {UNKNOWN}


def test_a_batch_that_raises_stays_unknown() -> None:
    class Broken(dict[str, int]):
        def values(self) -> Any:
            raise RuntimeError("not now")

    assert samples_read(iter(DataLoader(DATA)), Broken()) == UNKNOWN
