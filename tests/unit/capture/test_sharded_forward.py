"""The forward phase of modules that `fully_shard` was applied to, in one process."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.testing._internal.distributed import fake_pg  # noqa: F401  # registers the backend

from commprof.capture.patches.replaced import Patches
from commprof.capture.phases.auto_phases import ShardedForward


class Marker:
    """Notes when the outermost begins and ends."""

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
    """Has a `__call__` of its own, as a few libraries' modules do."""

    calls = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        Layer.calls += 1
        return super().__call__(x)  # type: ignore[no-any-return]


class Failing(nn.Module):
    """A forward that does not come to its end."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such input")


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.fixture
def marker() -> Iterator[Marker]:
    """Of a capture that runs while the test does."""
    made, patches = Marker(), Patches()
    ShardedForward(made, patches).look()
    yield made
    patches.remove()


def sharded(*layers: nn.Module) -> nn.Sequential:
    model, mesh = nn.Sequential(*layers), init_device_mesh("cpu", (2,))
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    return model


@pytest.mark.usefixtures("group")
def test_the_whole_model_s_call_is_the_phase(marker: Marker) -> None:
    model = sharded(Layer(4, 4), nn.ReLU(), nn.Linear(4, 2))
    Layer.calls = 0
    model(torch.ones(3, 4)).sum().backward()
    assert marker.seen == ["begins", "ends"]
    assert Layer.calls == 1
    nn.Linear(4, 2)(torch.ones(3, 4))  # of nobody's
    assert marker.seen == ["begins", "ends"]


@pytest.mark.usefixtures("group")
def test_a_forward_that_fails_ends_its_phase(marker: Marker) -> None:
    model = sharded(nn.Linear(4, 4), Failing())
    with pytest.raises(ValueError, match="no such input"):
        model(torch.ones(3, 4))
    assert marker.seen == ["begins", "ends"]


@pytest.mark.usefixtures("group")
def test_nothing_stays_and_models_made_before_are_seen() -> None:
    model, marker, patches = sharded(nn.Linear(4, 4)), Marker(), Patches()
    forward = ShardedForward(marker, patches)
    forward.look()
    model(torch.ones(3, 4))
    assert marker.seen == ["begins", "ends"]
    patches.remove()
    assert forward.pending
    assert "__call__" not in vars(FSDPModule)
    model(torch.ones(3, 4))
    assert marker.seen == ["begins", "ends"]


@pytest.mark.usefixtures("group")
# Dynamo looks at each tensor's gradient and hides what torch says to that, unless it is an error.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_a_compiled_model_computes_the_same(marker: Marker) -> None:
    def made() -> nn.Sequential:
        torch.manual_seed(0)
        return sharded(nn.Linear(4, 4), nn.Linear(4, 2))

    x, within = torch.ones(3, 4), made()
    expected = made()(x)
    # As a whole it is one frame of torch's, in which no phase is marked.
    marker.seen.clear()
    assert torch.equal(torch.compile(made(), backend="eager")(x), expected)
    assert marker.seen == []
    within.compile(backend="eager")
    assert torch.equal(within(x), expected)
    assert marker.seen == ["begins", "ends"]


def test_a_script_without_fsdp2_and_a_torch_without_the_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patches = Patches()
    forward = ShardedForward(Marker(), patches)
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "torch.distributed.fsdp")
        forward.look()
        assert forward.pending
    with monkeypatch.context() as another:
        another.delattr("torch.distributed.fsdp.FSDPModule")
        forward.look()
        assert forward.pending
    forward.look()  # the script has imported it meanwhile
    assert not forward.pending
    assert "__call__" in vars(FSDPModule)
    patches.remove()
