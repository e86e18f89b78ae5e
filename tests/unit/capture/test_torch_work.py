from __future__ import annotations

import io
import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commprof.capture import torch_work
from commprof.capture.patches import replaced
from commprof.capture.torch_work import TorchWork
from commprof.files import checked
from commprof.trace.documents import MORE_METADATA
from tests.support.builders.metadata_recorder import Recorder


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture that ends restores replaced methods only if the process has compiled nothing."""
    monkeypatch.setattr(replaced, "_has_compiled", lambda: False)


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def noted(passes: int, write_errno: int = 0, **settings: bool) -> dict[str, Any]:
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)), **settings
    )
    methods = DistributedDataParallel._sync_buffers, DistributedDataParallel._post_forward
    before = tuple(map(replaced.original_of, methods))
    recorder = Recorder(write_errno)
    work = TorchWork(recorder)  # type: ignore[arg-type]
    work.install()
    try:
        for _ in range(passes):
            model(torch.randn(8, 4)).sum().backward()
    finally:
        work.remove()
    after = DistributedDataParallel._sync_buffers, DistributedDataParallel._post_forward
    assert after == before
    model(torch.randn(8, 4)).sum().backward()
    for key, value in recorder.metadata.items():
        checked(value, MORE_METADATA[key], key)
    return recorder.metadata


def test_each_sending_of_buffers_is_noted_with_its_time() -> None:
    found = noted(3)
    assert list(found) == ["ddp_buffer_syncs"]
    begin, end = found["ddp_buffer_syncs"]["begin_ns"], found["ddp_buffer_syncs"]["end_ns"]
    assert len(begin) == len(end) == 3
    assert all(first < last for first, last in zip(begin, end, strict=True))
    assert begin == sorted(begin)


def test_a_search_is_noted_only_where_ddp_searches() -> None:
    assert len(noted(3, find_unused_parameters=True)["ddp_searches"]["begin_ns"]) == 3
    static = noted(3, static_graph=True)
    assert "ddp_searches" not in static


def test_without_passes_or_on_a_full_disk_nothing_is_written() -> None:
    assert noted(0) == {}
    assert noted(2, write_errno=28) == {}


def test_pickling_of_objects_is_noted_apart_from_the_collectives() -> None:
    recorder = Recorder(0)
    work = TorchWork(recorder)  # type: ignore[arg-type]
    out: list[Any] = [None]
    work.install()
    try:
        begin_ns = time.monotonic_ns()
        for number in range(3):
            dist.all_gather_object(out, {"number": number})
        end_ns = time.monotonic_ns()
    finally:
        work.remove()
    assert out == [{"number": 2}]
    spans = []
    for key in ("object_pickles", "object_unpickles"):
        checked(recorder.metadata[key], MORE_METADATA[key], key)
        assert len(recorder.metadata[key]["begin_ns"]) == 3
        spans += zip(
            recorder.metadata[key]["begin_ns"], recorder.metadata[key]["end_ns"], strict=True
        )
    times = [ns for span in sorted(spans) for ns in span]
    assert times == sorted(times)
    assert begin_ns <= times[0]
    assert times[-1] <= end_ns
    dist.all_gather_object(out, 1)
    assert len(recorder.metadata) == 2


def test_objects_that_are_pickled_at_once_are_noted_as_one() -> None:
    recorder = Recorder(0)
    work = TorchWork(recorder)  # type: ignore[arg-type]
    work.install()
    try:
        dist.broadcast_object_list([1] * 500, src=0)
    finally:
        work.remove()
    assert 1 <= len(recorder.metadata["object_pickles"]["begin_ns"]) < 100


@pytest.mark.parametrize(("persistent", "times"), [(False, 2), (True, 1)])
def test_starts_of_workers_are_noted(persistent: bool, times: int) -> None:
    recorder = Recorder(0)
    work = TorchWork(recorder)  # type: ignore[arg-type]
    loader = torch.utils.data.DataLoader([1, 2], num_workers=1, persistent_workers=persistent)
    work.install()
    try:
        read = [int(batch) for _ in range(2) for batch in loader]
    finally:
        work.remove()
    assert read == [1, 2, 1, 2]
    starts = recorder.metadata["loader_worker_starts"]
    checked(starts, MORE_METADATA["loader_worker_starts"], "loader_worker_starts")
    assert len(starts["begin_ns"]) == times
    assert ("loader_worker_stops" in recorder.metadata) == (not persistent)


def test_compilations_that_torch_remembers_since_capture_began_are_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    utils = ModuleType("torch._dynamo.utils")
    now_us = time.time_ns() // 1000 + 1_000_000
    remembered = [
        SimpleNamespace(start_time_us=now_us - 3_000_000, end_time_us=now_us - 2_500_000),
        SimpleNamespace(start_time_us=now_us - 2000, end_time_us=now_us - 1000),
        SimpleNamespace(start_time_us=now_us, end_time_us=None),  # A failed compilation has no end.
    ]
    utils.get_compilation_metrics = lambda: remembered  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    recorder = Recorder(0)
    work = TorchWork(recorder)  # type: ignore[arg-type]
    work.install()
    begin_ns = time.monotonic_ns()
    work.remove()
    noted_ns = recorder.metadata["compilations"]
    (begin,), (end,) = noted_ns["begin_ns"], noted_ns["end_ns"]
    assert end - begin == 1_000_000
    assert begin_ns < begin < end < begin_ns + 1_000_000_000


def test_a_method_that_torch_inherits_is_noted_and_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Base:
        def sync(self, count: int) -> int:
            return 2 * count

    class Derived(Base):
        pass

    monkeypatch.setattr(torch_work, "_FUNCTIONS", (("syncs", Derived, "sync", torch_work._always),))
    monkeypatch.setattr(replaced, "_has_compiled", lambda: False)
    recorder = Recorder(0)
    work = TorchWork(recorder)  # type: ignore[arg-type]
    work.install()
    assert (Derived().sync(3), Base().sync(4)) == (6, 8)
    work.remove()
    assert len(recorder.metadata["syncs"]["begin_ns"]) == 1
    assert "sync" not in vars(Derived)


def test_work_of_fsdp_is_noted_once_the_script_has_imported_it() -> None:
    recorder = Recorder(0)
    work = TorchWork(recorder)  # type: ignore[arg-type]
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    mesh = dist.init_device_mesh("cpu", (1,))
    for unit in model:
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    work.install()
    assert not {name for _, name, *_ in work.pending} & set(sys.modules)
    try:
        for _ in range(2):
            model(torch.randn(8, 4)).sum().backward()
        for parameter in model.parameters():
            assert isinstance(parameter, DTensor)
            parameter.full_tensor()
            time.sleep(0.001)
    finally:
        work.remove()
    model(torch.randn(8, 4)).sum().backward()
    gathers = {"fsdp_forward_gathers", "fsdp_backward_gathers"}
    assert set(recorder.metadata) == {"fsdp_reductions", "full_tensors", *gathers}
    for key, value in recorder.metadata.items():
        checked(value, MORE_METADATA[key], key)
    assert len(recorder.metadata["fsdp_reductions"]["begin_ns"]) == 4
    assert len(recorder.metadata["full_tensors"]["begin_ns"]) == 4


def test_modules_that_are_imported_later_are_found_by_polling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_work, "_LATER", (("works", "imported_later", "Worker", "work"),))
    recorder = Recorder(0)
    noting = TorchWork(recorder)  # type: ignore[arg-type]
    noting.install()
    assert noting.pending

    class Worker:
        def work(self) -> int:
            return 3

    module = ModuleType("imported_later")
    module.Worker = Worker  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "imported_later", module)
    noting.poll()
    assert not noting.pending
    assert Worker().work() == 3
    noting.remove()
    assert Worker().work() == 3
    assert len(recorder.metadata["works"]["begin_ns"]) == 1


def test_saving_is_noted_on_the_main_thread_only(tmp_path: Path) -> None:
    recorder = Recorder(0)
    work = TorchWork(recorder)  # type: ignore[arg-type]
    work.install()
    try:
        for number in range(2):
            torch.save(torch.ones(4), tmp_path / f"{number}.pt")
            time.sleep(0.001)
        background = threading.Thread(target=torch.save, args=(1, tmp_path / "other.pt"))
        background.start()
        background.join()
    finally:
        work.remove()
    torch.save(1, tmp_path / "later.pt")
    assert torch.load(tmp_path / "1.pt").sum() == 4
    checked(recorder.metadata["saves"], MORE_METADATA["saves"], "saves")
    assert len(recorder.metadata["saves"]["begin_ns"]) == 2


def test_a_save_is_noted_once_if_the_thread_loses_its_core_before_it_closes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(0)
    work = TorchWork(recorder)  # type: ignore[arg-type]
    work.install()
    noted = torch.serialization._save

    def slow(*args: object, **kwargs: object) -> None:
        noted(*args, **kwargs)
        time.sleep(0.005)

    monkeypatch.setattr(torch.serialization, "_save", slow)
    try:
        torch.save(torch.ones(4), tmp_path / "saved.pt")
    finally:
        monkeypatch.undo()
        work.remove()
    (begin_ns,), (end_ns,) = (recorder.metadata["saves"][key] for key in ("begin_ns", "end_ns"))
    assert end_ns - begin_ns > 5_000_000


def test_the_save_function_can_be_pickled_while_saves_are_noted() -> None:
    recorder = Recorder(0)
    work = TorchWork(recorder)  # type: ignore[arg-type]
    before, saved_before = torch.save, pickle.dumps(torch.save)
    work.install()
    try:
        assert torch.save is torch.serialization.save is before
        assert pickle.dumps(torch.save) == pickle.dumps(before) == saved_before
        with ProcessPoolExecutor(1, get_context("fork")) as pool:
            assert pool.submit(torch.save, 1, os.devnull).result() is None
    finally:
        work.remove()


def test_saves_into_open_files_are_noted_until_their_data_are_flushed() -> None:
    class Slow(io.BytesIO):
        flushes: ClassVar[list[int]] = []

        def flush(self) -> None:
            time.sleep(0.01)
            self.flushes.append(time.monotonic_ns())

    recorder = Recorder(0)
    work = TorchWork(recorder)  # type: ignore[arg-type]
    work.install()
    begin_ns = time.monotonic_ns()
    try:
        torch.save(torch.ones(4), Slow())
    finally:
        work.remove()
    saves = recorder.metadata["saves"]
    assert begin_ns <= saves["begin_ns"][0]
    assert saves["end_ns"][-1] >= Slow.flushes[-1] >= begin_ns + 10_000_000


def test_saves_in_the_format_before_zip_files_are_noted() -> None:
    recorder = Recorder(0)
    work = TorchWork(recorder)  # type: ignore[arg-type]
    work.install()
    try:
        torch.save(torch.ones(4), io.BytesIO(), _use_new_zipfile_serialization=False)
    finally:
        work.remove()
    assert len(recorder.metadata["saves"]["begin_ns"]) == 1


@pytest.mark.parametrize("is_on", [True, False])
def test_backward_passes_with_anomaly_detection_are_noted(is_on: bool) -> None:
    recorder = Recorder(0)
    work = TorchWork(recorder)  # type: ignore[arg-type]
    before = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    work.install()
    try:
        for _ in range(3):
            with torch.autograd.set_detect_anomaly(is_on):
                torch.ones(2, requires_grad=True).sum().backward()
            time.sleep(0.001)
    finally:
        work.remove()
    assert torch.autograd._engine_run_backward is before  # type: ignore[attr-defined]
    noted = recorder.metadata.get("anomaly_backwards", {"begin_ns": []})
    assert len(noted["begin_ns"]) == (3 if is_on else 0)
