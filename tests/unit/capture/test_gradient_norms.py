from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import commprof
from commprof.capture.gradient_norms import GradientNorms


def figures(path: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads(path.read_text())
    return found


def train(steps: int, reads_state: bool = False) -> tuple[nn.Module, list[list[torch.Tensor]]]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if reads_state:
        get_optimizer_state_dict(model, optimizer)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().sum().backward()
        seen.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        optimizer.step()
    return model, seen


@pytest.mark.parametrize("reads_state", [False, True])
def test_gradient_norms_are_those_of_the_last_measured_step(
    tmp_path: Path, reads_state: bool
) -> None:
    """Reading the optimizer's state before training is a step for the optimizer's hooks."""
    norms, path = GradientNorms(3), tmp_path / "rank_0.gradients"
    norms.install(path)
    _, seen = train(9, reads_state)
    norms.remove()
    found = figures(path)
    # Of every three steps the second is measured: steps 1, 4 and 7.
    assert found["step"] == 7
    lengths = torch.stack([gradient.norm() for gradient in seen[7]]).double()
    assert found["norm"] == pytest.approx(float(lengths.norm()), rel=1e-6)
    assert found["layer_variance"] == pytest.approx(float(lengths.var(correction=0)), rel=1e-5)
    assert 0 < found["cost_s"] < 1


def test_measuring_gradient_norms_keeps_training_equal_and_leaves_no_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = train(6)
    norms, path = GradientNorms(1), tmp_path / "rank_0.gradients"
    norms.install(path)
    measured, _ = train(6)
    norms.remove()
    before = path.read_bytes()
    for a, b in zip(plain.parameters(), measured.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not b._post_accumulate_grad_hooks
    train(2)
    assert path.read_bytes() == before


def test_an_unwritable_gradient_norms_file_does_not_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms = GradientNorms(1)
    norms.install(tmp_path / "gone" / "rank_0.gradients")
    train(3)
    norms.remove()


def test_norms_of_complex_gradients_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    norms, path = GradientNorms(1), tmp_path / "rank_0.gradients"
    norms.install(path)
    weight = nn.Parameter(torch.tensor([3.0 + 4.0j, 1.0 + 0.0j]))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (weight * (1.0 + 2.0j)).real.sum().backward()
        optimizer.step()
    norms.remove()
    assert weight.grad is not None
    assert figures(path)["norm"] == pytest.approx(float(weight.grad.norm()))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("broken", ["_measure", "_take"])
def test_a_failure_ends_the_gradient_norms_but_not_the_training(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("planted\nin two lines")

    plain, _ = train(5)
    monkeypatch.setattr(GradientNorms, broken, fail)
    norms = GradientNorms(1)
    norms.install(tmp_path / "rank_0.gradients")
    measured, _ = train(5)
    said = capfd.readouterr().err
    assert said == "commprof: gradient norms are no longer measured: RuntimeError: planted\n"
    for a, b in zip(plain.parameters(), measured.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not b._post_accumulate_grad_hooks
    norms.remove()


def test_the_summary_for_trackers_has_step_times_and_gradient_norm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMPROF_GRADIENT_NORMS", "1")
    prof = commprof.profile(tmp_path, find_steps=True)
    assert prof.summary() == {}
    with prof:
        assert prof.summary() == {}
        train(5)
        # Completions from other threads are awaited for this long.
        time.sleep(0.02)
        train(1)
        # The first flush interval has not ended yet.
        assert prof.summary()["commprof/step_seconds"] > 0
    found = prof.summary()
    assert found["commprof/step_seconds"] > 0
    assert found["commprof/gradient_norm"] > 0
    parts = [value for key, value in found.items() if "/step_part_seconds/" in key]
    assert sum(parts) == pytest.approx(found["commprof/step_seconds"])
    assert all(key.startswith("commprof/") and "rank" not in key for key in found)
