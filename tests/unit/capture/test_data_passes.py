from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler

from commprof.capture.auto_phases import AutoPhases
from commprof.capture.data_passes import PassNotes, checksum
from commprof.files import checked
from commprof.trace.documents import MORE_METADATA
from commprof.trace.schema import PHASES
from tests.support.builders.metadata_recorder import Recorder

DATA = TensorDataset(torch.arange(640.0).reshape(64, 10))


def noted(loaders: Iterable[Any], write_errno: int = 0, until: int = 99) -> dict[str, Any]:
    recorder = Recorder(write_errno)
    passes = PassNotes(recorder)  # type: ignore[arg-type]
    marker = types.SimpleNamespace(begin=lambda: None, end=lambda *_: None)
    phases = AutoPhases(dict.fromkeys(PHASES, marker), loaded=passes.loaded)  # type: ignore[arg-type]
    passes.start()
    phases.install()
    try:
        for loader in loaders:
            for number, _ in enumerate(loader, 1):
                if number == until:
                    break
    finally:
        phases.remove()
        passes.stop()
    found: dict[str, Any] = recorder.metadata.get("data_passes", {})
    if found:
        checked(found, MORE_METADATA["data_passes"], "data_passes")
    return found


def sampled(rank: int, epoch: int = 0, **settings: Any) -> DataLoader[Any]:
    sampler = DistributedSampler(DATA, 2, rank, **settings)
    sampler.set_epoch(epoch)
    return DataLoader(DATA, 8, sampler=sampler)


def test_two_ranks_that_read_the_same_have_the_same_checksums() -> None:
    loader = DataLoader(DATA, 8)
    first, second = noted([loader, loader]), noted([DataLoader(DATA, 8)])
    assert first["batches"] == first["length"] == [8, 8]
    assert first["checksum"] == [second["checksum"][0]] * 2
    assert first["contents"] == [4, 4]
    begin, end = zip(first["begin_ns"], first["end_ns"], strict=True)
    assert begin[0] < begin[1] <= end[0] < end[1]


def test_ranks_that_hold_data_of_their_own_differ_though_their_indices_are_equal() -> None:
    other = TensorDataset(torch.arange(640.0).reshape(64, 10) + 1)
    assert noted([DataLoader(DATA, 8)])["checksum"] != noted([DataLoader(other, 8)])["checksum"]


def test_parts_of_a_distributed_sampler_differ() -> None:
    found = noted([sampled(0), sampled(1), sampled(0), sampled(0, shuffle=False)])
    first, other, again, _ = found["checksum"]
    assert first == again != other
    assert found["sampler"] == [1, 2, 3, 0]
    assert found["epoch"] == [1, 1, 1, 0]


def test_the_epoch_of_each_pass_is_noted() -> None:
    loader = sampled(0)

    def epochs() -> Iterator[DataLoader[Any]]:
        for epoch in (0, 0, 3):
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            yield loader

    found = noted(epochs())
    assert (found["sampler"], found["epoch"]) == ([1, 1, 1], [1, 1, 4])
    assert found["checksum"][0] == found["checksum"][1] != found["checksum"][2]


def test_the_seed_of_each_pass_is_noted() -> None:
    loader = sampled(0)

    def seeds() -> Iterator[DataLoader[Any]]:
        for seed in (0, 0, 7):
            loader.sampler.seed = seed  # type: ignore[attr-defined]
            yield loader

    found = noted(seeds())
    first, again, other = found["seed"]
    assert first == again != other


def test_passes_of_persistent_workers_that_are_left_early_are_noted_apart() -> None:
    loader = DataLoader(DATA, 8, num_workers=1, persistent_workers=True)
    found = noted([loader] * 3, until=3)
    assert found["batches"] == [3, 3, 3]
    assert len(set(found["checksum"])) == 1


def test_a_sampler_with_an_order_of_its_own_has_no_epoch() -> None:
    class Own(DistributedSampler[Any]):
        def __iter__(self) -> Iterator[int]:
            return iter([3, 1, 2])

    assert noted([DataLoader(DATA, 1, sampler=Own(DATA, 2, 0))])["sampler"] == [0]


def test_a_pass_that_the_script_leaves_ends_with_its_last_batch() -> None:
    found = noted([DataLoader(DATA, 8)] * 2, until=3)
    assert found["batches"] == [3, 3]
    assert found["end_ns"][0] <= found["begin_ns"][1]


def test_batches_of_constant_data_do_not_differ() -> None:
    constant = TensorDataset(torch.ones(64, 10))
    assert noted([DataLoader(constant, 8)])["contents"] == [1]


def test_a_list_of_batches_and_samples_of_other_kinds_do_not_stop_the_script() -> None:
    listed = DataLoader(DATA, batch_sampler=[[1, 2], [3]])  # type: ignore[arg-type]
    others: Any = DataLoader([object(), object()], 1, collate_fn=lambda batch: batch)
    found = noted([listed, others])
    assert found["batches"] == [2, 2]
    assert found["contents"] == [2, 0]


def test_without_passes_or_space_on_the_disk_nothing_is_written() -> None:
    assert noted([]) == {}
    assert noted([DataLoader(DATA, 8)], write_errno=28) == {}


@pytest.mark.parametrize(
    "other",
    [
        {"x": torch.arange(4000) + (torch.arange(4000) == 3999), "name": ["a"]},
        {"x": torch.arange(4000), "name": ["b"]},
        {"x": torch.arange(3999), "name": ["a"]},
    ],
)
def test_a_checksum_holds_tensors_and_texts(other: dict[str, Any]) -> None:
    batch = {"x": torch.arange(4000), "name": ["a"]}
    assert checksum(batch) == checksum({"x": torch.arange(4000), "name": ["a"]})
    assert checksum(other) != checksum(batch)


def test_large_tensors_enter_with_elements_at_equal_distances() -> None:
    large = torch.arange(40_000)
    between, at = large.clone(), large.clone()
    # Every tenth element of a large tensor enters the checksum.
    between[11], at[10] = 0, 0
    assert checksum(between) == checksum(large) != checksum(at)


@pytest.mark.parametrize(
    "part",
    [
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3, requires_grad=True),
        torch.ones(3, device="meta"),
        torch.ones(3).to_sparse(),
        np.array([object()]),
        object(),
        "x" * 5000,
        list(range(100)),
    ],
)
def test_a_batch_of_which_a_part_is_not_compared_has_no_checksum(part: Any) -> None:
    assert checksum({"part": part, "number": torch.ones(3)}) is None
    found = noted([DataLoader([part] * 2, 1, collate_fn=lambda batch: batch)])  # type: ignore[arg-type]
    assert (found["checksum"], found["contents"], found["batches"]) == ([0], [0], [2])


def test_a_pass_of_which_a_later_batch_is_not_compared_has_no_checksum() -> None:
    found = noted([DataLoader([1, object(), 2], 1, collate_fn=lambda batch: batch)])  # type: ignore[arg-type]
    assert (found["checksum"], found["contents"], found["batches"]) == ([0], [0], [3])


@pytest.mark.parametrize(
    ("batch", "has_content"),
    [
        (torch.arange(8), False),
        ({"index": np.arange(8), "of": [3, True]}, False),
        (list(range(100)), False),
        ([torch.arange(8).reshape(2, 4), torch.arange(2)], True),
        ([torch.rand(8)], True),
        (np.ones(8), True),
        (("a text", 3), True),
    ],
)
def test_batches_of_indices_into_a_ranks_own_data_are_not_compared(
    batch: Any, has_content: bool
) -> None:
    found = noted([DataLoader([batch], None)])  # type: ignore[arg-type]
    assert (found["contents"], found["batches"]) == ([int(has_content)], [1])


def test_arrays_are_compared_as_tensors_are() -> None:
    numbers = np.arange(6.0).reshape(2, 3)
    assert checksum([numbers]) == checksum([torch.from_numpy(numbers)])
    assert checksum([numbers]) != checksum([numbers + 1])


def test_tensors_with_another_order_in_memory_are_read_without_a_copy() -> None:
    rows = torch.arange(8 * 3 * 64 * 64.0).reshape(8, 3, 64, 64)
    last = rows.to(memory_format=torch.channels_last)
    assert checksum(last) == checksum(rows)
    assert checksum(rows.flip(0)) != checksum(rows)
    # A copy of this tensor would take 256 TB.
    assert checksum(torch.zeros(1).expand(1 << 46)) == checksum(torch.zeros(4096))


def test_a_pass_that_is_left_tells_how_long_it_would_be() -> None:
    class Endless(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            yield from torch.ones(64, 2)

    class Unsized(BatchSampler):
        def __len__(self) -> int:
            raise RuntimeError("not known")

    sampler = Unsized(SequentialSampler(DATA), 8, drop_last=False)
    left = noted([DataLoader(DATA, 8), DataLoader(DATA, 8, num_workers=1)], until=1)
    assert (left["batches"], left["length"]) == ([1, 1], [8, 8])
    assert noted([DataLoader(Endless(), 8)])["length"] == [0]
    assert noted([DataLoader(DATA, batch_sampler=sampler)])["length"] == [0]
