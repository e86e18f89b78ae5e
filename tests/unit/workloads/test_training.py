from __future__ import annotations

from typing import Any

import pytest
import torch

from commprof.errors import UsageError
from commprof.workloads.models.mlp import Mlp, MlpOptions
from commprof.workloads.options import TrainingOptions, check_supported
from commprof.workloads.spec import LearningRate, Shard, cosine, parse_spec, step_decay
from commprof.workloads.training import Training
from tests.support.ranks.alone import Alone, alone

SMALL = MlpOptions(inputs=8, width=16, layers=2, classes=4, samples=64)


def build(batch: int = 16, lr_scale: float = 1.0, steps: int = 4, **options: Any) -> Training:
    shard = Shard(0, 1, batch, steps=steps, seed=0)
    return alone(Mlp(SMALL).build(shard), shard, lr_scale, **options)


def step(training: Training, epoch: int = 0) -> float:
    batches = next(training.batches(epoch))
    samples = sum(batch.samples for batch in batches)
    total = 0.0
    for number, batch in enumerate(batches, 1):
        with training.synchronised(last=number == len(batches)):
            loss = training.forward(batch)
            training.backward(loss, batch.samples / samples)
            total += loss.item() * batch.samples / samples
    training.update()
    return total


def weights(training: Training) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in training.model.parameters()])


def gradients(training: Training) -> torch.Tensor:
    found = [p.grad.flatten() for p in training.model.parameters() if p.grad is not None]
    return torch.cat(found)


def test_accumulation_trains_as_one_large_batch_and_synchronises_once() -> None:
    whole, parts = build(16), build(4, accumulate=4)

    assert step(parts) == pytest.approx(step(whole), rel=1e-6)
    assert weights(parts) == pytest.approx(weights(whole), abs=1e-6)
    strategy = parts._strategy
    assert isinstance(strategy, Alone)
    assert strategy.synchronisations == [False, False, False, True]


def test_the_last_update_of_an_epoch_may_have_fewer_passes() -> None:
    training = build(16, accumulate=3)

    assert [len(batches) for batches in training.batches(0)] == [3, 1]


def test_clipping_limits_the_gradient_norm_to_the_given_value() -> None:
    training = build(clip_norm=1e-3)
    before = weights(training)
    step(training)

    # SGD's first step is the learning rate 0.05 times the gradient's norm 1e-3.
    assert (weights(training) - before).norm().item() == pytest.approx(5e-5, rel=1e-3)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_is_near_fp32_and_keeps_fp32_weights(precision: str) -> None:
    low, full = build(precision=precision), build()
    before = weights(full)
    assert step(low) == pytest.approx(step(full), rel=2e-2)

    assert {p.dtype for p in low.model.parameters()} == {torch.float32}
    moved = (weights(full) - before).norm().item()
    assert moved > 0
    assert (weights(low) - weights(full)).norm().item() < 0.05 * moved
    assert not torch.equal(weights(low), weights(full))


def test_fp16_scales_the_loss_and_skips_an_overflowing_update() -> None:
    training = build(precision="fp16")
    (batch,) = next(training.batches(0))
    before = weights(training)
    training.backward(training.forward(batch), 1.0)
    # The loss scale is 65536.
    assert gradients(training).norm().item() > 100
    gradients_of = [p for p in training.model.parameters() if p.grad is not None]
    assert gradients_of[0].grad is not None
    gradients_of[0].grad[0] = torch.inf
    training.update()

    assert torch.equal(weights(training), before)


def test_activation_checkpointing_does_not_change_the_training() -> None:
    kept, recomputed = build(), build(checkpoint_activations=True)
    calls = []
    first = recomputed._trainee.blocks[0][0]  # type: ignore[index]
    first.register_forward_hook(lambda *_: calls.append(1))
    for epoch in range(2):
        assert step(recomputed, epoch) == step(kept, epoch)

    assert torch.equal(weights(recomputed), weights(kept))
    assert len(calls) == 4  # each of 2 steps runs the block in forward and again in backward
    assert [name for name, _ in recomputed.model.named_parameters()] == [
        name for name, _ in kept.model.named_parameters()
    ]


def test_the_learning_rate_is_scaled_only_with_scale_lr() -> None:
    moved = []
    for options in ({}, {"scale_lr": True}, {"scale_lr": True, "lr_warmup": 4}):
        training = build(lr_scale=8.0, **options)
        before = weights(training)
        step(training)
        moved.append((weights(training) - before).norm().item())

    assert moved[1] == pytest.approx(8 * moved[0], rel=1e-4)
    assert moved[2] == pytest.approx(2 * moved[0], rel=1e-4)


def test_training_reduces_the_loss() -> None:
    training = build(64, steps=60)
    losses = [step(training, epoch) for epoch in range(60)]

    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate": 0}, r"--accumulate 0 is out of range \(allowed: 1 or more\)"),
        ({"clip_norm": -1.0}, "--clip-norm -1.0 is out of range"),
        ({"clip_norm": float("nan")}, "--clip-norm nan is out of range"),
        ({"lr_warmup": -1}, "--lr-warmup -1"),
        ({"precision": "bf61"}, r"'bf61' \(allowed: fp32, bf16, fp16\); did you mean 'bf16'"),
    ],
)
def test_training_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainingOptions(**options)


def test_options_unsupported_by_a_workload_are_refused_with_the_reason() -> None:
    timed = parse_spec("timed")
    check_supported(timed, TrainingOptions(accumulate=4), "fsdp")
    with pytest.raises(
        UsageError, match="--clip-norm cannot be used with the workload timed: it has"
    ):
        check_supported(timed, TrainingOptions(clip_norm=1), "ddp")
    with pytest.raises(UsageError, match="--strategy zero1 cannot be used with the workload timed"):
        check_supported(timed, TrainingOptions(), "zero1")
    packed = parse_spec("lora:base=4bit")
    with pytest.raises(UsageError, match=r"--strategy fsdp .* packed 4-bit weights"):
        check_supported(packed, TrainingOptions(), "fsdp")


def test_chosen_training_options_are_those_that_differ_from_the_defaults() -> None:
    assert TrainingOptions().chosen() == {}
    chosen = TrainingOptions(precision="bf16", checkpoint_activations=True).chosen()
    assert chosen == {"precision": "bf16", "checkpoint_activations": True}


def test_cosine_and_step_decay_have_the_expected_values() -> None:
    assert [cosine(x) for x in (0, 0.5, 1)] == pytest.approx([1, 0.5, 0])
    assert [step_decay(x) for x in (0, 0.49, 0.5, 0.74, 0.75, 1)] == [1, 1, 0.1, 0.1, 0.01, 0.01]


def test_the_learning_rate_is_scaled_warmed_up_and_then_falls() -> None:
    rate = LearningRate(base=0.1, schedule=cosine, steps=8, scale=4, warmup_steps=4)

    # The rate rises in quarters of 0.4, then follows a cosine over the other four steps.
    expected = [0.1, 0.2, 0.3, 0.4, 0.4, 0.4 * 0.853553, 0.2, 0.4 * 0.146447, 0]
    assert [rate.at(step) for step in range(9)] == pytest.approx(expected, abs=1e-6)
    assert rate.at(100) == pytest.approx(0)


def test_without_warm_up_the_first_step_has_the_full_learning_rate() -> None:
    assert LearningRate(0.1, step_decay, steps=4).at(0) == 0.1


def test_the_learning_rate_only_grows_in_a_warm_up_longer_than_the_run() -> None:
    rate = LearningRate(1.0, cosine, steps=2, warmup_steps=4)

    assert [rate.at(step) for step in range(2)] == [0.25, 0.5]
