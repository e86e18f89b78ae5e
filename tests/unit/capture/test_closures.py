"""Forward and backward inside an optimizer's step are not the optimizer's phase."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from commprof.capture.phases.auto_phases import AutoPhases, outside


class Marker:
    """Writes down into a list that all share."""

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


def test_the_closure_is_outside_wherever_it_stands(seen: list[str]) -> None:
    marker = Marker("optimizer", seen)

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


def test_without_a_closure_nothing_changes(seen: list[str]) -> None:
    marker = Marker("optimizer", seen)
    assert outside(marker, ("self",), {}) is None
    assert outside(marker, ("self", None), {"closure": None}) is None


def test_the_phase_goes_on_after_a_closure_that_failed(seen: list[str]) -> None:
    def closure() -> float:
        raise ValueError("no loss")

    changed = outside(Marker("optimizer", seen), ("self", closure), {})
    assert changed is not None
    with pytest.raises(ValueError, match="no loss"):
        changed[0][1]()
    assert seen == ["optimizer ends", "optimizer begins"]


def test_an_optimizer_that_calls_backward(seen: list[str]) -> None:
    names = ("data", "forward", "backward", "optimizer")
    phases = AutoPhases({name: Marker(name, seen) for name in names})
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
