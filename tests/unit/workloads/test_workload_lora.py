from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from commprof.commands import main
from commprof.errors import UsageError
from commprof.workloads.models.lora import Lora, LoraOptions, _base_model, _default_dtype
from commprof.workloads.spec import Shard
from tests.support.ranks.alone import alone


def installed() -> bool:
    from importlib.util import find_spec

    return all(find_spec(name) is not None for name in ("transformers", "peft"))


needs_peft = pytest.mark.needs("peft", "transformers")


@needs_peft
def test_the_7b_shape_is_counted_without_being_allocated() -> None:
    workload = Lora(LoraOptions(size="7b"))

    # In a layer, q and o have 16 x (4096 + 4096) each, k and v have 16 x (4096 + 1024) each.
    assert workload.parameter_count == 32 * 16 * (2 * 8192 + 2 * 5120) == 13_631_488
    assert workload.frozen_count == 7_241_732_096  # Mistral-7B-v0.1 has as many
    assert "54.53 MB of gradients a step" in workload.describe()


@needs_peft
def test_adapter_parameters_depend_on_rank_and_targets() -> None:
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


@pytest.mark.parametrize(
    ("base", "taken"),
    [
        ("fp32", "29 GB of weights in each rank"),
        ("bf16", "14.5 GB of weights in each rank"),
        ("4bit", "29 GB of weights, in fp32 until they are packed, in each rank"),
    ],
)
def test_a_lora_model_that_exceeds_the_memory_is_refused(
    base: str, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    workload = Lora(LoraOptions(size="7b", base=base))
    monkeypatch.setitem(workload.__dict__, "_counts", (13_631_488, 7_241_732_096))
    with pytest.raises(UsageError, match=f"size=7b needs {taken}, and"):
        workload.build(Shard(0, 2000, 4, steps=1, seed=0))


@needs_peft
def test_a_lora_model_on_the_meta_device_is_not_checked_for_memory() -> None:
    shard = Shard(0, 1000, 4, steps=1, seed=0, device="meta")
    model = Lora(LoraOptions(size="7b")).build(shard).model
    assert {p.device.type for p in model.parameters()} == {"meta"}


class LargestIn32Bits(TorchDispatchMode):
    values = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.dtype == torch.float32:
            self.values = max(self.values, made.numel())
        return made


@needs_peft
def test_bf16_weights_are_never_created_in_fp32() -> None:
    with torch.device("meta"), LargestIn32Bits() as seen:
        model = _base_model(LoraOptions(base="bf16"))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert seen.values < 2048 * 256  # the embedding has 2048 x 256 values
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.skipif(installed(), reason="the extra is there")
def test_without_the_lora_extra_the_pip_command_is_shown() -> None:
    with pytest.raises(UsageError, match=r"needs \w+, which .* pip install \w+"):
        Lora().describe()


def test_the_default_dtype_is_restored_afterwards() -> None:
    with _default_dtype(torch.bfloat16):
        assert torch.zeros(1).dtype == torch.bfloat16
    assert torch.zeros(1).dtype == torch.float32


def test_without_bitsandbytes_4bit_is_refused_before_any_output_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "bitsandbytes" else object()
    )
    words = ["run", "--nproc", "1", "--workload", "lora:base=4bit", "--output", str(tmp_path / "r")]
    assert main(words) == 2
    assert "needs bitsandbytes, which is not installed: pip install bitsandbytes" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "r").exists()


@pytest.mark.needs("bitsandbytes", "peft", "transformers")
def test_a_4bit_lora_model_computes_a_plausible_loss() -> None:
    shard = Shard(0, 1, 4, steps=1, seed=0)
    trainee = Lora(LoraOptions(base="4bit", sequence=8, samples=4)).build(shard)
    training = alone(trainee, shard)
    ((batch,),) = training.batches(0)
    assert 6 < training.forward(batch).item() < 9  # random guesses give ln(2048) = 7.6
