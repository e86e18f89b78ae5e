"""Settings of FSDP2 that can change between steps, such as ``prefetch=2+reduce-dtype=bf16``.

A trial compares such settings, and ``commprof run --fsdp`` applies a setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from commprof.errors import UsageError

RESHARD, PREFETCH, REDUCE_DTYPE = "reshard-after-forward", "prefetch", "reduce-dtype"
SCATTER_GROUP, OWN = "scatter-group", "own"
_BOOLEANS = {"true": True, "false": False}
#: Name of a type on the command line -> its name in torch.
DTYPES: Mapping[str, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_MOST_PREFETCHED = 64

#: Each setting as it is typed on the command line, and its meaning.
TECHNIQUES = (
    (
        f"{RESHARD}=true|false",
        "FSDP2: whether parameters are freed after forward and gathered again in backward",
    ),
    (f"{PREFETCH}=N", "FSDP2: gathers the next N groups of parameters before they are needed"),
    (f"{REDUCE_DTYPE}=bf16|fp16|fp32", "FSDP2: type in which gradients are reduced"),
    (
        f"{SCATTER_GROUP}={OWN}",
        "FSDP2: gradients are reduced in a separate process group, while parameters are gathered",
    ),
)
#: Setting that FSDP2 fixes when a model is made -> command that predicts other values.
_FIXED = {
    "shard-ranks": "`commprof predict RUN --shard-ranks N` predicts other shapes of HSDP",
    "wrap-blocks": "`commprof predict RUN --wrap-blocks N` predicts blocks wrapped together",
    "gather-dtype": "`commprof predict RUN --gather-dtype bf16` predicts gathers in bf16",
}


@dataclass(frozen=True)
class ShardingSetting:
    """Settings to apply to FSDP2 models. A field with its default value changes nothing."""

    #: True if parameters are freed after forward and gathered again in backward.
    reshard: bool | None = None
    #: Number of groups of parameters that are gathered before they are needed.
    prefetch: int | None = None
    #: Type in which gradients are reduced, a key of DTYPES.
    reduce_dtype: str = ""
    #: True if gradients are reduced in a process group of their own.
    own_scatter_group: bool = False

    @property
    def label(self) -> str:
        """Text of the settings, such as ``prefetch=2+reduce-dtype=bf16``; empty if none is set."""
        words = []
        if self.reshard is not None:
            words.append(f"{RESHARD}={str(self.reshard).lower()}")
        if self.prefetch is not None:
            words.append(f"{PREFETCH}={self.prefetch}")
        if self.reduce_dtype:
            words.append(f"{REDUCE_DTYPE}={self.reduce_dtype}")
        words += [f"{SCATTER_GROUP}={OWN}"] * self.own_scatter_group
        return "+".join(words)

    @property
    def count(self) -> int:
        """Number of fields that are set."""
        named = (self.reshard is not None, self.prefetch is not None, bool(self.reduce_dtype))
        return sum(named) + self.own_scatter_group

    @property
    def code(self) -> str:
        """Code that applies the settings in the training script."""
        lines = []
        if self.reshard is not None:
            lines.append(f"model.set_reshard_after_forward({self.reshard})")
        if self.prefetch is not None:
            lines.append(
                "call set_modules_to_forward_prefetch and set_modules_to_backward_prefetch on "
                "every sharded module, with a list of the modules that are gathered next in "
                f"forward or in backward ({self.prefetch} at most)"
            )
        if self.reduce_dtype:
            policy = f"MixedPrecisionPolicy(reduce_dtype=torch.{DTYPES[self.reduce_dtype]})"
            lines.append(f"fully_shard(..., mp_policy={policy})")
        if self.own_scatter_group:
            lines.append("model.set_separate_reduce_scatter_group(True)")
        return "; and ".join(lines)


NO_SHARDING = ShardingSetting()


def is_sharding(word: str) -> bool:
    """True if a word such as ``prefetch=2`` names a setting of FSDP2."""
    return word.partition("=")[0] in (RESHARD, PREFETCH, REDUCE_DTYPE, SCATTER_GROUP, *_FIXED)


def with_word(setting: ShardingSetting, word: str, text: str) -> ShardingSetting:
    """Adds a word such as ``prefetch=2`` to a copy of ``setting``.

    ``text``: the whole text of the setting, for error messages.

    Raises:
        UsageError: the value in the word is not allowed, ``setting`` already has a value for the
            word's name, or the word names something that FSDP2 fixes when a model is made.
    """
    name, _, value = word.partition("=")
    if name in _FIXED:
        raise UsageError(
            f"{name} cannot change between steps: FSDP2 fixes {name} when a model is sharded; "
            f"{_FIXED[name]}"
        )
    if name == RESHARD:
        _once(setting.reshard is None, text, name)
        return replace(setting, reshard=truth(word))
    if name == REDUCE_DTYPE:
        _once(not setting.reduce_dtype, text, name)
        return replace(setting, reduce_dtype=_one_of(name, value, tuple(DTYPES)))
    if name == SCATTER_GROUP:
        _once(not setting.own_scatter_group, text, name)
        return replace(setting, own_scatter_group=_one_of(name, value, (OWN,)) == OWN)
    _once(setting.prefetch is None, text, name)
    number = int(value) if value.isascii() and value.isdecimal() else 0
    if not 1 <= number <= _MOST_PREFETCHED:
        raise UsageError(
            f"{name}={value!r} is out of range (allowed: a whole number from 1 to "
            f"{_MOST_PREFETCHED})"
        )
    return replace(setting, prefetch=number)


def parse_sharding(text: str) -> ShardingSetting:
    """Reads a setting such as ``reshard-after-forward=false+prefetch=2``.

    Raises:
        UsageError: a word is not a setting of FSDP2, or a value is out of range.
    """
    setting = NO_SHARDING
    for word in text.split("+"):
        if not is_sharding(word):
            allowed = ", ".join(typed for typed, _ in TECHNIQUES)
            raise UsageError(f"unknown setting of FSDP2 {word!r} (allowed: {allowed})")
        setting = with_word(setting, word, text)
    return setting


def truth(word: str) -> bool:
    """Reads true or false from a word such as ``reshard-after-forward=false``.

    Raises:
        UsageError: the value is neither true nor false.
    """
    name, _, value = word.partition("=")
    return _BOOLEANS[_one_of(name, value, tuple(_BOOLEANS))]


def _once(first: bool, text: str, name: str) -> None:
    if not first:
        raise UsageError(f"candidate {text!r} names {name} twice; keep one of them")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise UsageError(f"unknown {name} {value!r} (allowed: {', '.join(allowed)})")
    return value
