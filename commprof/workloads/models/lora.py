"""Workload `lora`: low-rank adapters (Hu et al. 2021, arXiv 2106.09685) on a Mistral model.

The model comes from transformers, with random weights, and the adapters come from peft. Only the
adapters are trained, so ranks exchange few bytes of gradients.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from commprof import invocation
from commprof.errors import UsageError
from commprof.workloads.options import available_bytes
from commprof.workloads.spec import OptimizerPlan, Shard, Trainee, cosine
from commprof.workloads.trainees import DataTrainee, OfSamples, random_tokens

_SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden": 256, "layers": 4, "heads": 8, "kv_heads": 4, "mlp": 704, "vocab": 2048},
    "small": {"hidden": 768, "layers": 12, "heads": 12, "kv_heads": 4, "mlp": 2048, "vocab": 8192},
    # Mistral-7B-v0.1's config.json
    "7b": {
        **{"hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "mlp": 14336},
        "vocab": 32000,
    },
}
_ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
_TARGETS = {"attention": _ATTENTION, "all": [*_ATTENTION, "gate_proj", "up_proj", "down_proj"]}
#: Bytes per frozen parameter when the model is created. Packing into 4 bits comes later.
_MADE_BYTES = {"fp32": 4, "bf16": 2, "4bit": 4}
_ALPHA_PER_RANK = 2


@dataclass(frozen=True)
class LoraOptions:
    """Sizes of the model, its adapters and its data."""

    size: str = field(default="tiny", metadata={"choices": tuple(_SIZES)})
    """Shape of the Mistral model: tiny, small, or 7b, the shape of Mistral-7B."""
    rank: int = field(default=16, metadata={"minimum": 1})
    """Matrix rank of the adapters. LoRA's alpha is twice this rank."""
    targets: str = field(default="attention", metadata={"choices": tuple(_TARGETS)})
    """Linear modules that get adapters: only the modules of attention, or all of each layer."""
    base: str = field(default="fp32", metadata={"choices": tuple(_MADE_BYTES)})
    """Type of the frozen weights; 4bit is nf4 of bitsandbytes."""
    sequence: int = field(default=128, metadata={"minimum": 1})
    """Number of predicted tokens per sample."""
    samples: int = field(default=160, metadata={"minimum": 1})
    """Number of samples in the data set, over all ranks."""
    learning_rate: float = 2e-4
    """Learning rate of AdamW; it falls to 0 along a cosine over the steps of the run."""

    @property
    def vocab(self) -> int:
        """Number of distinct tokens."""
        return _SIZES[self.size]["vocab"]


class Lora(OfSamples):
    """Workload that trains adapters on a frozen Mistral model."""

    name: ClassVar[str] = "lora"
    options_type: ClassVar[type[Any]] = LoraOptions
    build_imports: ClassVar[tuple[str, ...]] = (
        "transformers.models.mistral.modeling_mistral",
        "peft",
    )
    default_batch_size: ClassVar[int] = 8
    split_dependence: ClassVar[str] = ""

    def __init__(self, options: LoraOptions | None = None) -> None:
        self.options = options or LoraOptions()

    @property
    def parameter_count(self) -> int:
        """Number of trainable parameters, all in adapters.

        Raises UsageError if transformers or peft is missing.
        """
        return self._counts[0]

    @property
    def frozen_count(self) -> int:
        """Number of parameters of the base model.

        Raises UsageError if transformers or peft is missing.
        """
        return self._counts[1]

    def describe(self) -> str:
        """Describes sizes, counts, and the bytes of the adapters' gradients.

        Raises UsageError if a package that `build` needs is missing.
        """
        chosen = self.options
        if chosen.base == "4bit":
            _require("bitsandbytes")
        return (
            f"lora: {self.parameter_count:,} parameters in adapters of rank {chosen.rank} "
            f"({chosen.targets} layers; {4 * self.parameter_count / 1e6:,.4g} MB of gradients a "
            f"step) on a frozen Mistral of {self.frozen_count:,} parameters (size {chosen.size}, "
            f"{chosen.base}), {chosen.samples} samples of {chosen.sequence} random tokens."
        )

    def refused(self) -> Mapping[str, str]:
        """Maps the name of each refused strategy to the reason.

        base=4bit refuses fsdp and hsdp, which shard parameters.
        """
        if self.options.base != "4bit":
            return {}
        reason = "packed 4-bit weights cannot be sharded; use base=bf16"
        return {"fsdp": reason, "hsdp": reason}

    def build(self, shard: Shard) -> Trainee:
        """Builds model and data of one rank.

        Raises UsageError if the host or the GPU has too little memory.
        """
        self._check_memory(shard)
        return _LoraTrainee(self.options, shard)

    @cached_property
    def _counts(self) -> tuple[int, int]:
        with torch.device("meta"):
            model = _adapted(_base_model(self.options), self.options)
        counts = {True: 0, False: 0}
        for parameter in model.parameters():
            counts[parameter.requires_grad] += parameter.numel()
        return counts[True], counts[False]

    def _check_memory(self, shard: Shard) -> None:
        """Raises UsageError if the base model's weights need more memory than is free.

        On a CPU, the kernel's OOM killer would otherwise end the rank.
        """
        if torch.device(shard.device).type == "meta":
            return
        per_rank = self.frozen_count * _MADE_BYTES[self.options.base]
        local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", shard.world_size))
        if torch.device(shard.device).type == "cuda":
            available, local_ranks = torch.cuda.mem_get_info(shard.device)[0], 1
        else:
            available = available_bytes()
        if per_rank * local_ranks > available:
            whole = ", in fp32 until they are packed," if self.options.base == "4bit" else ""
            smaller = "" if self.options.base == "bf16" else "base=bf16, "
            raise UsageError(
                f"lora: size={self.options.size} needs {per_rank / 1e9:.3g} GB of weights{whole} "
                f"in each rank, and {available / 1e9:.3g} GB are free (ranks that share them: "
                f"{local_ranks}); use another size ({', '.join(_SIZES)}), {smaller}or fewer ranks"
            )


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise UsageError(
            f"the workload lora needs {package}, which is not installed: {invocation.pip(package)}"
        )


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _base_model(options: LoraOptions) -> nn.Module:
    _require("transformers")
    _require("peft")
    from transformers import MistralConfig
    from transformers.models.mistral.modeling_mistral import MistralForCausalLM

    sizes = _SIZES[options.size]
    config = MistralConfig(
        vocab_size=sizes["vocab"],
        hidden_size=sizes["hidden"],
        intermediate_size=sizes["mlp"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["kv_heads"],
        max_position_embeddings=max(4096, options.sequence),
        use_cache=False,
    )
    # A later cast from fp32 to bf16 would temporarily need three times the memory.
    with _default_dtype(torch.bfloat16 if options.base == "bf16" else torch.float32):
        model: nn.Module = MistralForCausalLM(config)
    return model


def _adapted(model: nn.Module, options: LoraOptions) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=options.rank,
        lora_alpha=_ALPHA_PER_RANK * options.rank,
        lora_dropout=0.0,
        target_modules=_TARGETS[options.targets],
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():
        # peft uses a name that is outdated in transformers
        warnings.simplefilter("ignore", FutureWarning)
        adapted: nn.Module = get_peft_model(model, config)
    return adapted


def _quantised(model: Any) -> nn.Module:
    """Packs linear layers into 4 bits, as QLoRA does (Dettmers et al. 2023, arXiv 2305.14314)."""
    _require("bitsandbytes")
    import bitsandbytes as bnb

    for layer in model.model.layers:
        for parent in (layer.self_attn, layer.mlp):
            for name, linear in list(parent.named_children()):
                if isinstance(linear, nn.Linear):
                    packed = bnb.nn.Linear4bit(
                        *(linear.in_features, linear.out_features, False),
                        compute_dtype=torch.float32,
                        quant_type="nf4",
                    )
                    weight = linear.weight.detach()
                    packed.weight = bnb.nn.Params4bit(weight, requires_grad=False, quant_type="nf4")
                    setattr(parent, name, packed.to(weight.device))
    model.is_loaded_in_4bit = True  # peft then makes adapters for packed layers
    return model


class _LoraTrainee(DataTrainee):
    def __init__(self, options: LoraOptions, shard: Shard) -> None:
        data = random_tokens(options.vocab, options.sequence, options.samples, shard.seed)
        super().__init__(data, shard)
        torch.manual_seed(shard.seed)
        with torch.device(shard.device):
            base = _base_model(options)
        if options.base == "4bit":
            base = _quantised(base)
        model: Any = _adapted(base, options)
        self.model: nn.Module = model
        self.blocks: Sequence[nn.Module] = list(model.base_model.model.model.layers)
        self._learning_rate = options.learning_rate

    def ddp_options(self) -> dict[str, Any]:
        """Turns off DDP's broadcasts of buffers, because this model's buffers never change."""
        return {"broadcast_buffers": False}

    def logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        result: Tensor = model(input_ids=inputs, use_cache=False).logits
        return result

    def updates(self) -> OptimizerPlan:
        return OptimizerPlan(torch.optim.AdamW, {"lr": self._learning_rate}, cosine)
