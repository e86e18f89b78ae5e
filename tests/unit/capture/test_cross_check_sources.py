from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from commprof.capture import cross_check_sources
from commprof.capture.auto_phases import AutoPhases
from commprof.capture.cross_check_sources import CrossCheckSources, interface_bytes
from commprof.capture.recorder import recorder
from commprof.trace.schema import PHASES

PROC_NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop
    lo: 1000       5    0    0    0     0          0         0     2000       5    0    0
  eth0:70 1    0    0    0     0          0         0        90       1    0    0
"""


class Kept:
    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []

    def add_metadata(self, text: str) -> None:
        self.documents.append(json.loads(text)["cross_check_sources"])


def test_interface_bytes_are_read_from_proc_net_dev(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dev").write_text(PROC_NET_DEV)
    monkeypatch.setattr(cross_check_sources, "_COUNTERS", tmp_path / "dev")
    assert interface_bytes() == {"lo": (1000, 2000), "eth0": (70, 90)}
    monkeypatch.setattr(cross_check_sources, "_COUNTERS", tmp_path / "none")
    assert interface_bytes() == {}


def test_interface_bytes_count_only_while_capture_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    # Capture is on from 100 to 150 and from 1000 to 1010 sent bytes. Interface x appears later, so
    # its count at the start is unknown.
    seen = iter(
        [{"lo": (0, 100)}, {"lo": (5, 150)}, {"lo": (5, 1000)}, {"lo": (9, 1010), "x": (1, 1)}]
    )
    monkeypatch.setattr(cross_check_sources, "interface_bytes", lambda: next(seen))
    kept, counting = Kept(), CrossCheckSources()
    counting.start(kept)  # type: ignore[arg-type]
    counting.set_enabled(True)
    counting.set_enabled(False)
    counting.set_enabled(False)
    counting.set_enabled(True)
    counting.stop(kept)  # type: ignore[arg-type]
    assert kept.documents[-1]["interfaces"] == {"lo": {"received_bytes": 9, "sent_bytes": 60}}
    assert kept.documents[-1]["ddp_logs"] == []


def test_the_network_namespace_is_recorded_when_capture_starts() -> None:
    kept, counting = Kept(), CrossCheckSources()
    counting.start(kept)  # type: ignore[arg-type]
    (opening,) = kept.documents
    assert opening["network_namespace"] == os.readlink("/proc/self/ns/net")
    counting.stop(kept)  # type: ignore[arg-type]
    assert opening.items() <= kept.documents[-1].items()


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(steps: int, hook: Any = None, bias: bool = True) -> None:
    model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=bias))
    if hook is not None:
        model.register_comm_hook(None, hook)
    for _ in range(steps):
        model(torch.ones(1, 4)).sum().backward()


def logs_of(*models: Callable[[], None]) -> list[dict[str, Any]]:
    kept, counting = Kept(), CrossCheckSources()
    markers = {name: recorder().PhaseMarker(code) for code, name in enumerate(PHASES)}
    phases = AutoPhases(markers, called=counting.note)
    counting.start(kept)  # type: ignore[arg-type]
    phases.install()
    for train_one in models:
        train_one()
        gc.collect()
    phases.remove()
    counting.stop(kept)  # type: ignore[arg-type]
    logs: list[dict[str, Any]] = kept.documents[-1]["ddp_logs"]
    return logs


@pytest.mark.parametrize("steps", [1, 3, 15])
def test_the_ddp_log_of_a_deleted_model_is_kept(one_rank: None, steps: int) -> None:
    (log,) = logs_of(lambda: train(steps))
    assert log["bucket_sizes"] == "20"
    assert log["parameter_bytes"] == [16, 4]
    assert log.get("iteration", 0) == min(steps - 1, 10)
    assert (log["group_name"], log["own_exchange"]) == ("0", "")


def test_a_model_wrapped_again_has_a_separate_ddp_log(one_rank: None) -> None:
    logs = logs_of(lambda: train(3), lambda: train(3, bias=False))
    assert [log["bucket_sizes"] for log in logs] == ["20", "16"]


def test_a_model_that_was_unfrozen_after_ddp_was_made_has_no_sizes_in_its_log(
    one_rank: None,
) -> None:
    def unfrozen() -> None:
        layers = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 1))
        layers[0].requires_grad_(False)
        model = DistributedDataParallel(layers)
        layers[0].requires_grad_(True)
        model(torch.ones(1, 4)).sum().backward()

    (log,) = logs_of(unfrozen)
    assert log["bucket_sizes"] == "12"
    assert log["parameter_bytes"] == []


def test_the_scripts_communication_hook_is_named_in_the_ddp_log(one_rank: None) -> None:
    (log,) = logs_of(lambda: train(2, default_hooks.fp16_compress_hook))
    assert log["own_exchange"] == "the communication hook fp16_compress_hook"


def train_in_turns() -> None:
    models = [DistributedDataParallel(torch.nn.Linear(4, size)) for size in (1, 2)]
    for _ in range(3):
        for model in models:
            model(torch.ones(1, 4)).sum().backward()
    DistributedDataParallel(torch.nn.Linear(4, 3)).eval()(torch.ones(1, 4))


def test_models_that_train_alternately_have_one_ddp_log_each(one_rank: None) -> None:
    logs = logs_of(train_in_turns)
    assert [log["bucket_sizes"] for log in logs] == ["20", "40"]
    assert [log["iteration"] for log in logs] == [2, 2]


class Branching(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.first(x)
        return found if x[0, 0] > 0 else found + self.second(x)


@pytest.mark.parametrize(("signs", "least"), [((1, 1, 1, 1), 20), ((1, 1, 1, -1), 0)])
def test_the_most_and_the_least_that_passes_left_unused_are_kept(
    one_rank: None, signs: tuple[int, ...], least: int
) -> None:
    def train_branches() -> None:
        model = DistributedDataParallel(Branching(), find_unused_parameters=True)
        # A log describes the pass before, so one more pass is needed.
        for sign in (*signs, 1):
            model(sign * torch.ones(1, 4)).sum().backward()

    (log,) = logs_of(train_branches)
    assert (log["least_unused_parameter_size"], log["most_unused_parameter_size"]) == (least, 20)
