from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from commprof.capture.auto_phases import AutoPhases
from commprof.capture.patches.replaced import original_of
from commprof.capture.recorder import recorder
from commprof.capture.step_finder import StepFinder
from commprof.trace.schema import PHASES, STEP_SKIPPED, STEP_UPDATED


class Loop:
    def __init__(self) -> None:
        self.events: list[str | int] = []
        self.finder = StepFinder(self.events.append)
        self.first, self.second = (torch.ones(1, requires_grad=True) for _ in range(2))
        self.optimizers = [torch.optim.SGD([p], lr=0.1) for p in (self.first, self.second)]
        markers = {name: _Marker(name, self.events) for name in PHASES}
        self.phases = AutoPhases(markers, self.finder)

    def steps(self) -> list[int]:
        return [event for event in self.events if isinstance(event, int)]


class _Marker:
    def __init__(self, name: str, events: list[str | int]) -> None:
        self._name, self._events = name, events

    def begin(self) -> None:
        pass

    def end(self, samples: int = 0) -> None:
        self._events.append(self._name)

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *exc: object) -> None:
        self.end()


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures restore methods only in a process that has compiled nothing."""
    monkeypatch.setattr(torch._dynamo.convert_frame, "FRAME_COUNTER", 0)


@pytest.fixture
def loop():  # type: ignore[no-untyped-def]
    made = Loop()
    made.phases.install()
    yield made
    made.phases.remove()


def test_only_the_first_optimizer_ends_steps(loop: Loop) -> None:
    for _ in range(3):
        for optimizer in loop.optimizers:
            optimizer.step()
    assert loop.events == ["optimizer", STEP_UPDATED, "optimizer"] * 3


def test_the_next_optimizer_takes_over_from_one_that_is_gone(loop: Loop) -> None:
    loop.optimizers[0].step()
    del loop.optimizers[0]
    loop.optimizers[0].step()
    assert loop.steps() == [STEP_UPDATED] * 2


def model(size: int = 1) -> list[torch.Tensor]:
    return [torch.ones(1, requires_grad=True) for _ in range(size)]


@pytest.mark.parametrize(
    ("turns", "steps"),
    [
        pytest.param("ab" * 4, 4, id="gan"),
        pytest.param("abc" * 4, 4, id="three-in-one-iteration"),
        pytest.param("aaaabbbbbbaaaabbbbbb", 20, id="folds"),
        pytest.param("aaaabbbbcccc" * 2, 24, id="three-folds"),
        pytest.param("aaaaaaaabbbbbbbb", 16, id="swap"),
        # The first g counts as a step, because the finder does not know the pattern yet.
        pytest.param("dddddg" * 4, 5 * 4 + 1, id="critic-five-times"),
        # The first b counts as no step, because a GAN begins with the same two updates.
        pytest.param("abbbbbbb", 7, id="swap-after-one"),
        pytest.param("ab" * 4 + "cd" * 4, 7, id="pairs-in-turn"),
    ],
)
def test_one_step_per_iteration_whichever_optimizers_take_turns(
    loop: Loop, turns: str, steps: int
) -> None:
    optimizers = {name: torch.optim.SGD(model(), lr=0.1) for name in sorted(set(turns))}
    for name in turns:
        optimizers[name].step()
    assert loop.steps() == [STEP_UPDATED] * steps


def test_parameter_groups_updated_one_by_one_are_one_step(loop: Loop) -> None:
    groups = [{"params": model(2)}, {"params": model(2)}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    own = optimizer.param_groups
    for _ in range(12):  # DeepSpeed's ZeRO-1 updates its groups in this way.
        for group in own:
            optimizer.param_groups = [group]
            optimizer.step()
        optimizer.param_groups = own
    assert loop.steps() == [STEP_UPDATED] * 12


def test_an_optimizer_with_new_parameters_per_update_is_the_same_one(loop: Loop) -> None:
    optimizer = torch.optim.SGD(model(), lr=0.1)
    for _ in range(5):
        optimizer.param_groups[0]["params"] = model()
        optimizer.step()
    assert loop.steps() == [STEP_UPDATED] * 5


class Wrapper(torch.optim.Optimizer):
    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(model(), {})
        self.inner, self.broken = inner, False

    def step(self, closure: object = None) -> None:
        self.inner.step()
        if self.broken:
            raise MemoryError


def test_only_the_outermost_of_nested_optimizers_ends_steps(loop: Loop) -> None:
    wrapper = Wrapper(loop.optimizers[0])
    for broken in (False, False, True, False, False):
        wrapper.broken = broken
        if broken:
            with pytest.raises(MemoryError):
                wrapper.step()
        else:
            wrapper.step()
    assert loop.steps() == [STEP_UPDATED] * 4


def test_an_update_inside_backward_ends_the_step_after_backward(loop: Loop) -> None:
    loop.first.register_post_accumulate_grad_hook(lambda _: loop.optimizers[0].step())
    for _ in range(2):
        (loop.first * 2).sum().backward()
    assert loop.events == ["optimizer", "backward", STEP_UPDATED] * 2


def test_an_update_skipped_by_a_grad_scaler_ends_a_step(loop: Loop) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for factor in (float("inf"), 1.0, float("inf"), 1.0):
        for parameter, optimizer in zip((loop.first, loop.second), loop.optimizers, strict=True):
            optimizer.zero_grad()
            scaler.scale((parameter * factor).sum()).backward()
            scaler.step(optimizer)
        scaler.update()
    assert loop.steps() == [STEP_SKIPPED, STEP_UPDATED, STEP_SKIPPED, STEP_UPDATED]
    at = loop.events.index(STEP_UPDATED)
    assert loop.events[at - 1] == "optimizer"


def test_no_step_is_found_after_stop_and_removal_is_complete() -> None:
    def functions() -> tuple[object, ...]:
        return torch.autograd.backward, torch.amp.GradScaler.step

    before = tuple(map(original_of, functions()))
    loop = Loop()
    loop.phases.install()
    assert all(now is not then for now, then in zip(functions(), before, strict=True))
    loop.finder.stop()
    loop.optimizers[0].step()
    assert loop.steps() == []
    loop.phases.remove()
    loop.optimizers[0].step()
    assert loop.events == ["optimizer"]
    assert functions() == before


class Called:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


@pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning")  # Python 3.13.0 warns
def test_torch_compile_traces_no_phase_and_removal_does_not_recompile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Called, "forward", Called.forward)
    original, owner = Called.forward, Called()
    ddp_forward = original_of(DistributedDataParallel.forward)
    phases = AutoPhases({name: recorder().PhaseMarker(0) for name in PHASES})
    phases.install()
    phases._patch(Called, "forward", recorder().PhaseMarker(1), lambda *_: nullcontext())
    compiles: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        compiles.append(graph)
        return graph.forward

    run = torch.compile(lambda x: owner.forward(x), backend=backend, fullgraph=True)
    assert run(torch.ones(2)).tolist() == [2, 2]
    phases.remove()
    assert run(torch.ones(2)).tolist() == [2, 2]
    assert len(compiles) == 1
    assert original_of(Called.forward) is original
    # A later capture restores the methods that the first capture left in place.
    torch._dynamo.convert_frame.FRAME_COUNTER = 0
    phases.install()
    phases.remove()
    assert DistributedDataParallel.forward is ddp_forward


def test_torch_compile_sees_the_recorded_forward_in_the_original_file() -> None:
    plain = torch._dynamo.trace_rules.check(DistributedDataParallel.forward)
    file = DistributedDataParallel.forward.__code__.co_filename
    phases = AutoPhases({name: recorder().PhaseMarker(0) for name in PHASES})
    phases.install()
    try:
        recorded = DistributedDataParallel.forward
        assert recorded.__code__.co_filename == file
        assert torch._dynamo.trace_rules.check(recorded) == plain
    finally:
        phases.remove()
