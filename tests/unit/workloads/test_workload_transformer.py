from __future__ import annotations

from collections import Counter

import pytest
import torch

from commprof.workloads.models.transformer import Transformer, TransformerOptions
from commprof.workloads.spec import Shard, Trainee
from tests.support.ranks.alone import alone

SMALL = TransformerOptions(vocab=32, d_model=8, heads=2, layers=1, feedforward=8, sequence=4)


def parameters_on_paper(options: TransformerOptions) -> int:
    vocab, width, ff = options.vocab, options.d_model, options.feedforward
    attention = 4 * width * width + 4 * width
    feedforward = 2 * width * ff + ff + width
    norms = 4 * width
    layers = options.layers * (attention + feedforward + norms)
    return vocab * width + options.sequence * width + layers + width * vocab + vocab


def build(
    options: TransformerOptions, rank: int = 0, world_size: int = 1, batch: int = 16, seed: int = 0
) -> Trainee:
    return Transformer(options).build(Shard(rank, world_size, batch, steps=10, seed=seed))


def tokens_of(trainee: Trainee, epoch: int) -> list[torch.Tensor]:
    batches = list(trainee.batches(epoch))
    assert all(torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1]) for batch in batches)
    return [sample for batch in batches for sample in batch.inputs]


def test_default_parameter_count_is_exact() -> None:
    workload = Transformer()

    assert workload.parameter_count == parameters_on_paper(workload.options) == 2_137_600


def test_the_transformer_description_has_sizes_and_parameter_count() -> None:
    assert Transformer().describe() == (
        "transformer: 2,137,600 parameters (vocab 2048, d_model 256, 4 heads, 2 layers, "
        "feedforward 512, sequence 128), 320 samples of random tokens."
    )


def test_built_model_has_the_counted_parameters() -> None:
    model = build(SMALL).model

    assert sum(p.numel() for p in model.parameters()) == parameters_on_paper(SMALL)


def test_ranks_divide_one_data_set_among_them() -> None:
    whole = tokens_of(build(SMALL), epoch=0)
    shares = [tokens_of(build(SMALL, rank, world_size=4), epoch=0) for rank in range(4)]

    def keys(samples: list[torch.Tensor]) -> Counter[tuple[int, ...]]:
        return Counter(tuple(sample.tolist()) for sample in samples)

    assert len(whole) == SMALL.samples
    assert [len(share) for share in shares] == [80] * 4
    assert keys([sample for share in shares for sample in share]) == keys(whole)


def test_epochs_are_shuffled_and_repeatable() -> None:
    first = torch.stack(tokens_of(build(SMALL), epoch=0))
    again = torch.stack(tokens_of(build(SMALL), epoch=0))
    second = torch.stack(tokens_of(build(SMALL), epoch=1))
    other_seed = torch.stack(tokens_of(build(SMALL, seed=1), epoch=0))

    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other_seed)


@pytest.mark.parametrize(
    ("world_size", "batch", "steps"), [(1, 16, 20), (2, 16, 10), (3, 16, 7), (8, 16, 3), (8, 2, 20)]
)
def test_steps_per_epoch_equal_the_batches_of_the_loader(
    world_size: int, batch: int, steps: int
) -> None:
    trainee = build(SMALL, world_size - 1, world_size, batch)

    assert Transformer(SMALL).steps_per_epoch(world_size, batch) == steps
    assert len(list(trainee.batches(0))) == steps


def test_tokens_are_predicted_from_earlier_ones_only() -> None:
    model = build(SMALL).model
    tokens = torch.tensor([[1, 2, 3, 4]])
    changed = torch.tensor([[1, 2, 3, 5]])

    assert torch.equal(model(tokens)[:, :3], model(changed)[:, :3])
    assert not torch.equal(model(tokens)[:, 3], model(changed)[:, 3])


def test_learning_rate_falls_along_a_cosine_to_zero() -> None:
    shard = Shard(0, 1, 320, steps=4, seed=0)
    trainee = Transformer(SMALL).build(shard)
    training = alone(trainee, shard)
    ((batch,),) = training.batches(0)
    weight = next(trainee.model.parameters())
    rates = []
    for _ in range(4):
        before = weight.detach().clone()
        training.backward(training.forward(batch), 1.0)
        training.update()
        # Adam's largest change in a step is the learning rate while the gradients stay the same.
        rates.append((weight - before).abs().max().item())

    assert rates[0] == pytest.approx(5e-4, rel=1e-3)
    assert rates == sorted(rates, reverse=True)
    assert rates[3] < 0.16 * rates[0]  # the schedule gives (1 + cos(3 pi / 4)) / 2 = 0.146
    assert weight.grad is None
