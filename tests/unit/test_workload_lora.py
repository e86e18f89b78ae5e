"""Counts of the real model and its adapters, on torch's meta device."""

from __future__ import annotations

import pytest
import torch

from commprof.errors import UsageError
from commprof.workloads.lora import Lora, LoraOptions
from commprof.workloads.spec import Shard
from tests.support.alone import alone


def installed() -> bool:
    from importlib.util import find_spec

    return all(find_spec(name) is not None for name in ("transformers", "peft"))


needs_peft = pytest.mark.skipif(not installed(), reason="needs the extra lora")


@needs_peft
def test_the_7b_shape_is_counted_without_being_allocated() -> None:
    workload = Lora(LoraOptions(size="7b"))

    # Per layer 16 x (4096 + 4096) for each of q and o, 16 x (4096 + 1024) for each of k and v.
    assert workload.parameter_count == 32 * 16 * (2 * 8192 + 2 * 5120) == 13_631_488
    assert workload.frozen_count == 7_241_732_096  # Mistral-7B-v0.1's
    assert "54.53 MB of gradients a step" in workload.describe()


@needs_peft
def test_adapters_on_all_layers_and_of_another_rank() -> None:
    attention = 4 * (2 * 512 + 2 * 384)
    mlp = 4 * 3 * (256 + 704)
    assert Lora(LoraOptions(rank=8)).parameter_count == 8 * attention
    assert Lora(LoraOptions(targets="all")).parameter_count == 16 * (attention + mlp)


@needs_peft
def test_only_adapters_are_trained() -> None:
    options = LoraOptions(sequence=8, samples=8, base="bf16")
    shard = Shard(0, 1, 4, steps=2, seed=0)
    trainee = Lora(options).build(shard)
    training = alone(trainee, shard)
    frozen = [p for p in trainee.model.parameters() if not p.requires_grad]
    trained = [p for p in trainee.model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in (*frozen, *trained)]
    for (batch,) in training.batches(0):
        training.backward(training.forward(batch), 1.0)
        training.update()

    assert {p.dtype for p in frozen} == {torch.bfloat16}
    assert {p.dtype for p in trained} == {torch.float32}
    assert sum(p.numel() for p in trained) == Lora(options).parameter_count
    assert len(trainee.blocks) == 4
    same = [torch.equal(*pair) for pair in zip(before, (*frozen, *trained), strict=True)]
    assert all(same[: len(frozen)])
    assert not all(same[len(frozen) :])


@needs_peft
def test_a_model_that_does_not_fit_is_refused() -> None:
    shard = Shard(0, 1000, 4, steps=1, seed=0)
    with pytest.raises(UsageError, match=r"size=7b takes 29 GB of weights in each of 1000 ranks"):
        Lora(LoraOptions(size="7b")).build(shard)


@pytest.mark.skipif(installed(), reason="the extra is there")
def test_without_the_extra_it_says_what_to_install() -> None:
    with pytest.raises(UsageError, match=r"needs \w+, which .* pip install 'commprof\[lora\]'"):
        Lora().describe()


@needs_peft
def test_four_bits_need_bitsandbytes() -> None:
    shard = Shard(0, 1, 4, steps=1, seed=0)
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        with pytest.raises(UsageError, match="needs bitsandbytes"):
            Lora(LoraOptions(base="4bit")).build(shard)
        return
    trainee = Lora(LoraOptions(base="4bit", sequence=8, samples=4)).build(shard)
    training = alone(trainee, shard)
    ((batch,),) = training.batches(0)
    assert 6 < training.forward(batch).item() < 9  # near ln(2048) = 7.6
