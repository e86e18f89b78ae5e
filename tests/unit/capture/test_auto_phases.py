from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.testing._internal.distributed import fake_pg  # noqa: F401  # registers the backend
from torch.utils.data import DataLoader, TensorDataset

from commprof import _native
from commprof.capture.auto_phases import AutoPhases, ShardedForward, outside, samples_read
from commprof.capture.patches.replaced import Patches
from commprof.capture.recorder import recorder
from commprof.capture.step_finder import StepFinder
from commprof.trace.schema import SAMPLES_UNKNOWN, STEP_UPDATED


class SharedMarker:
    def __init__(self, name: str, seen: list[str]) -> None:
        self._name = name
        self._seen = seen

    def begin(self) -> None:
        self._seen.append(f"{self._name} begins")

    def end(self, samples: int = 0) -> None:
        self._seen.append(f"{self._name} ends")

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *exc: object) -> None:
        self.end()


@pytest.fixture
def seen() -> list[str]:
    return []


def test_a_closure_argument_runs_outside_the_optimizer_phase(seen: list[str]) -> None:
    marker = SharedMarker("optimizer", seen)

    def closure() -> float:
        seen.append("closure")
        return 2.5

    changed = outside(marker, ("self", closure, 1), {"a": 2})
    assert changed is not None
    assert changed[0][1]() == 2.5
    assert (changed[0][0], changed[0][2], changed[1]) == ("self", 1, {"a": 2})
    named = outside(marker, ("self",), {"closure": closure, "a": 2})
    assert named is not None
    assert named[1]["closure"]() == 2.5
    assert (named[0], named[1]["a"]) == (("self",), 2)
    assert seen == ["optimizer ends", "closure", "optimizer begins"] * 2


def test_optimizer_arguments_without_a_closure_are_unchanged(seen: list[str]) -> None:
    marker = SharedMarker("optimizer", seen)
    assert outside(marker, ("self",), {}) is None
    assert outside(marker, ("self", None), {"closure": None}) is None


def test_the_optimizer_phase_resumes_after_a_closure_raises(seen: list[str]) -> None:
    def closure() -> float:
        raise ValueError("no loss")

    changed = outside(SharedMarker("optimizer", seen), ("self", closure), {})
    assert changed is not None
    with pytest.raises(ValueError, match="no loss"):
        changed[0][1]()
    assert seen == ["optimizer ends", "optimizer begins"]


@pytest.mark.parametrize("optimizer_type", [torch.optim.Adam, torch.optim.SGD])
def test_a_step_that_only_makes_an_optimizer_s_state_is_no_update(
    seen: list[str], optimizer_type: Any
) -> None:
    """torch's scheduler wraps the optimizer's ``step`` once more."""
    names = ("data", "forward", "backward", "optimizer")
    ends: list[int] = []
    phases = AutoPhases({name: SharedMarker(name, seen) for name in names}, StepFinder(ends.append))
    model = nn.Linear(2, 1)
    optimizer = optimizer_type(model.parameters(), lr=0.1)
    hooks: list[object] = []
    optimizer.register_step_post_hook(lambda *_: hooks.append(None))
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    phases.install()
    try:
        get_optimizer_state_dict(model, optimizer)
        assert (len(hooks), seen, ends) == (1, [], [])
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    finally:
        phases.remove()
    assert seen[-2:] == ["optimizer begins", "optimizer ends"]
    assert ends == [STEP_UPDATED]


def test_backward_in_a_closure_is_outside_the_optimizer_phase(seen: list[str]) -> None:
    names = ("data", "forward", "backward", "optimizer")
    phases = AutoPhases({name: SharedMarker(name, seen) for name in names})
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    phases.install()
    try:
        loss = optimizer.step(closure)
    finally:
        phases.remove()
    assert loss is not None
    assert seen == [
        *("optimizer begins", "optimizer ends", "backward begins", "backward ends"),
        *("optimizer begins", "optimizer ends"),
    ]


UNKNOWN = SAMPLES_UNKNOWN
DATA = TensorDataset(torch.zeros(7, 5), torch.zeros(7))


def counted(loader: DataLoader[Any]) -> list[int]:
    iterator = iter(loader)
    return [samples_read(iterator, batch) for batch in iterator]


def stacked(rows: list[Any]) -> dict[str, torch.Tensor]:
    return {"x": torch.stack([row[0] for row in rows]), "y": torch.stack([row[1] for row in rows])}


def test_samples_are_counted_with_default_collation() -> None:
    assert counted(DataLoader(DATA, batch_size=3)) == [3, 3, 1]


def test_samples_are_counted_with_a_custom_collation_of_matching_size() -> None:
    assert counted(DataLoader(DATA, batch_size=3, collate_fn=stacked)) == [3, 3, 1]


@pytest.mark.parametrize(
    "collate",
    [
        # Dimension 0 of these tensors belongs to a single sample.
        lambda rows: [row[0] for row in rows],
        lambda rows: (torch.zeros(3, 2), torch.zeros(2)),
        lambda rows: torch.zeros(()),
        lambda rows: [1, "text", None],
    ],
)
def test_samples_of_batches_that_do_not_show_their_size_stay_unknown(collate: Any) -> None:
    assert set(counted(DataLoader(DATA, batch_size=3, collate_fn=collate))) == {UNKNOWN}


def test_samples_of_a_loader_without_batches_stay_unknown() -> None:
    assert set(counted(DataLoader(DATA, batch_size=None))) == {UNKNOWN}


def test_samples_of_a_batch_that_raises_stay_unknown() -> None:
    class Broken(dict[str, int]):
        def values(self) -> Any:
            raise RuntimeError("not now")

    assert samples_read(iter(DataLoader(DATA)), Broken()) == UNKNOWN


class Marker:
    def __init__(self) -> None:
        self.seen: list[str] = []
        self._depth = 0

    def begin(self) -> None:
        if self._depth == 0:
            self.seen.append("begins")
        self._depth += 1

    def end(self, samples: int = 0) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seen.append("ends")

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *exc: object) -> None:
        self.end()


class Layer(nn.Linear):
    """Modules of a few libraries have a ``__call__`` of their own, as here."""

    calls = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        Layer.calls += 1
        return super().__call__(x)  # type: ignore[no-any-return]


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such input")


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.fixture
def marker() -> Iterator[Marker]:
    made, patches = Marker(), Patches()
    ShardedForward(made, patches).poll()
    yield made
    patches.remove()


def sharded(*layers: nn.Module) -> nn.Sequential:
    model, mesh = nn.Sequential(*layers), init_device_mesh("cpu", (2,))
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    return model


@pytest.mark.usefixtures("group")
def test_the_forward_phase_is_the_call_of_the_outermost_sharded_module(marker: Marker) -> None:
    model = sharded(Layer(4, 4), nn.ReLU(), nn.Linear(4, 2))
    Layer.calls = 0
    model(torch.ones(3, 4)).sum().backward()
    assert marker.seen == ["begins", "ends"]
    assert Layer.calls == 1
    nn.Linear(4, 2)(torch.ones(3, 4))
    assert marker.seen == ["begins", "ends"]


@pytest.mark.usefixtures("group")
def test_a_sharded_forward_that_raises_ends_its_phase(marker: Marker) -> None:
    model = sharded(nn.Linear(4, 4), Failing())
    with pytest.raises(ValueError, match="no such input"):
        model(torch.ones(3, 4))
    assert marker.seen == ["begins", "ends"]


@pytest.mark.usefixtures("group")
def test_sharded_models_made_before_are_marked_and_removal_is_complete() -> None:
    model, marker, patches = sharded(nn.Linear(4, 4)), Marker(), Patches()
    forward = ShardedForward(marker, patches)
    forward.poll()
    model(torch.ones(3, 4))
    assert marker.seen == ["begins", "ends"]
    patches.remove()
    assert forward.pending
    assert "__call__" not in vars(FSDPModule)
    model(torch.ones(3, 4))
    assert marker.seen == ["begins", "ends"]


@pytest.mark.usefixtures("group")
# Dynamo hides torch's warning about ``.grad``, unless the warning is an error.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_a_compiled_sharded_model_computes_the_same_and_is_marked(marker: Marker) -> None:
    def made() -> nn.Sequential:
        torch.manual_seed(0)
        return sharded(nn.Linear(4, 4), nn.Linear(4, 2))

    x, within = torch.ones(3, 4), made()
    expected = made()(x)
    within.compile(backend="eager")
    # FSDP2's hooks break the graph, so the module's ``__call__`` is not compiled.
    for compiled in (torch.compile(made(), backend="eager"), within):
        marker.seen.clear()
        assert torch.equal(compiled(x), expected)
        assert marker.seen == ["begins", "ends"]


def test_sharded_forward_waits_for_the_fsdp2_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patches = Patches()
    forward = ShardedForward(Marker(), patches)
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "torch.distributed.fsdp")
        forward.poll()
        assert forward.pending
    with monkeypatch.context() as another:
        another.delattr("torch.distributed.fsdp.FSDPModule")
        forward.poll()
        assert forward.pending
    forward.poll()
    assert not forward.pending
    assert "__call__" in vars(FSDPModule)
    patches.remove()


@pytest.mark.skipif(_native.native is None, reason="needs the C++ module")
@pytest.mark.parametrize(
    ("args", "named", "error", "words"),
    [
        ((1, 2), {}, TypeError, "at most 1 argument: samples"),
        ((), {"count": 1}, TypeError, "no argument 'count', only samples"),
        ((1.5,), {}, TypeError, "float"),
        ((-1,), {}, OverflowError, "negative"),
        ((2**32,), {}, OverflowError, "samples exceeds 32 bits"),
    ],
)
def test_wrong_arguments_of_a_phase_marker_are_named(
    args: tuple[Any, ...], named: dict[str, Any], error: type[Exception], words: str
) -> None:
    marker = recorder().PhaseMarker(0)
    with pytest.raises(error, match=words):
        marker.end(*args, **named)
    marker.begin()
    marker.end(samples=2**32 - 1)


@pytest.mark.skipif(_native.native is None, reason="needs the C++ module")
def test_a_phase_marker_without_init_raises() -> None:
    kind: Any = recorder().PhaseMarker
    for method in (kind.begin, kind.end):
        with pytest.raises(TypeError, match="__init__"):
            method(kind.__new__(kind))


@pytest.mark.skipif(_native.native is None, reason="needs the C++ module")
@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        ((1,), TypeError, "2 or 3 arguments: step, ended, found"),
        ((1, True, 0, 0), TypeError, "2 or 3 arguments: step, ended, found"),
        (("1", True), TypeError, "integer"),
        (("1", torch.ones(2)), TypeError, "integer"),
        ((1, torch.ones(2)), RuntimeError, "ambiguous"),
        ((-1, True), OverflowError, "negative"),
        ((1, True, 2**32), OverflowError, "found exceeds 32 bits"),
    ],
)
def test_wrong_arguments_of_mark_step_are_named(
    args: tuple[Any, ...], error: type[Exception], words: str
) -> None:
    mark: Any = recorder().mark_step
    with pytest.raises(error, match=words):
        mark(*args)
