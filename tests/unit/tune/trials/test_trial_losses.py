from __future__ import annotations

import torch

from commprof.tune.trials.live.controller import Losses


def test_losses_are_summed_over_a_step_s_backward_passes() -> None:
    losses = Losses()
    losses.start()
    weight = torch.ones(2, requires_grad=True)
    (3 * weight).sum().backward()
    weight[0].backward()
    losses.end_step()
    losses.end_step()
    (weight * 2).backward(torch.ones(2))
    losses.end_step()
    (weight.sum() * float("nan")).backward()
    losses.end_step()
    losses.stop()
    weight.sum().backward()
    losses.end_step()
    assert losses.values() == [7.0, None, None, None, None]


def test_no_losses_are_kept_after_the_trial_if_a_library_wrapped_backward_meanwhile() -> None:
    original, losses = torch.autograd.backward, Losses()
    losses.start()
    watched = torch.autograd.backward
    torch.autograd.backward = lambda *args, **options: watched(*args, **options)
    try:
        losses.stop()
        torch.ones(2, requires_grad=True).sum().backward()
    finally:
        torch.autograd.backward = original
    losses.end_step()
    assert losses.values() == [None]


def test_losses_are_those_before_the_gradient_scaler() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    losses = Losses()
    losses.start([scaler])
    weight = torch.ones(2, requires_grad=True)
    for _ in range(2):
        scaler.scale(3 * weight.sum()).backward()
        losses.end_step()
        scaler.update(32.0)
    losses.stop()
    assert scaler.get_scale() == 32.0
    assert losses.values() == [6.0, 6.0]
