"""Candidates of a trial. A candidate is one technique, or several techniques joined by ``+``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from commprof.errors import UsageError
from commprof.tune.compressors import parse
from commprof.tune.compressors.compressor import SCHEMES
from commprof.tune.trials.sharding import (
    NO_SHARDING,
    TECHNIQUES,
    ShardingSetting,
    is_sharding,
    truth,
    with_word,
)

#: The model's own communication. All candidates are compared with the baseline.
BASELINE = "none"
#: The baseline under another name. Its step times differ from the baseline's only by chance.
CONTROL = "none again"
#: A candidate that exchanges nothing. Its gain is the most that faster communication can bring.
HEADROOM = "noop"

#: Lossless compressors: their result is the fp32 mean.
_LOSSLESS = (BASELINE, "hierarchical")

BUCKET_CAP, FIRST_BUCKET = "bucket-cap", "first-bucket"
BUCKET_VIEW, STATIC_GRAPH = "gradient-as-bucket-view", "static-graph"
_BUCKET_WORDS = (
    (f"{BUCKET_CAP}=MB", "DDP's buckets, rebuilt with bucket_cap_mb=MB"),
    (f"{FIRST_BUCKET}=MB", "cap of the DDP bucket that is exchanged first"),
    (f"{BUCKET_VIEW}=true|false", "whether DDP's gradients are views into its buckets"),
)
#: Least and largest cap in MiB, the unit of DDP's ``bucket_cap_mb``.
_CAPS_MB = (0.001, 10_000.0)


@dataclass(frozen=True)
class NamedHook:
    """A communication hook that a candidate can name."""

    name: str
    meaning: str
    #: ``module:function``. The function takes the DDP model and returns a communication hook. Only
    #: the ranks import the module. All ranks call the function at the same step.
    make: str
    #: True if gradients have the same bits as with DDP's own mean.
    exact: bool
    #: True if the hook sends the same number of bytes as a ring all-reduce in fp32.
    rings: bool


_HOOKS = (
    NamedHook(
        "no-overlap",
        "DDP's mean, started only when the last bucket is ready",
        "commprof.tune.trials.live.switches:no_overlap",
        exact=True,
        rings=True,
    ),
)
HOOKS: Mapping[str, NamedHook] = {hook.name: hook for hook in _HOOKS}


@dataclass(frozen=True)
class BucketSetting:
    """Bucket settings of a candidate for DDP models. None keeps the model's own setting."""

    cap_mb: float | None = None
    #: Cap of the bucket that is exchanged first.
    first_mb: float | None = None
    as_view: bool | None = None

    @property
    def recuts(self) -> bool:
        """True if the settings change a bucket cap."""
        return self.cap_mb is not None or self.first_mb is not None

    @property
    def label(self) -> str:
        """Text of the settings, such as ``bucket-cap=5+first-bucket=1``; empty if none is set."""
        words = [] if self.cap_mb is None else [f"{BUCKET_CAP}={all_digits(self.cap_mb)}"]
        if self.first_mb is not None:
            words.append(f"{FIRST_BUCKET}={all_digits(self.first_mb)}")
        words += [] if self.as_view is None else [f"{BUCKET_VIEW}={str(self.as_view).lower()}"]
        return "+".join(words)

    @property
    def code(self) -> str:
        """Python code that applies the settings; empty if an option of commprof can apply them."""
        words = []
        if self.first_mb is not None:
            rest = "the model's own cap" if self.cap_mb is None else all_digits(self.cap_mb)
            words.append(f"bucket_cap_mb_list=[{all_digits(self.first_mb)}, {rest}]")
        if self.as_view is not None:
            if self.cap_mb is not None and self.first_mb is None:
                words.append(f"bucket_cap_mb={all_digits(self.cap_mb)}")
            words.append(f"gradient_as_bucket_view={self.as_view}")
        return f"DistributedDataParallel(model, {', '.join(words)})" if words else ""


OWN_BUCKETS = BucketSetting()


@dataclass(frozen=True)
class Candidate:
    """One of the settings that take turns in a trial."""

    #: Text from which ``parse_candidate`` makes this candidate.
    label: str
    #: Text from which ``commprof.compressors.parse`` makes the compressor; empty for none.
    compressor: str = ""
    #: A key of HOOKS; empty for none.
    hook: str = ""
    buckets: BucketSetting = OWN_BUCKETS
    sharding: ShardingSetting = NO_SHARDING

    def exact(self, world_size: int) -> bool:
        """True if training with this candidate gives the same bits as training without it.

        With three or more ranks, other bucket caps change the order of summation.
        """
        if self.label == HEADROOM or self.compressor or self.sharding.reduce_dtype:
            return False
        if self.hook and not HOOKS[self.hook].exact:
            return False
        return not self.buckets.recuts or world_size <= 2

    @property
    def compresses(self) -> bool:
        """True if the candidate has a lossy compressor, or a type in which FSDP2 reduces."""
        if self.sharding.reduce_dtype:
            return True
        return bool(self.compressor) and _head(self.compressor) not in _LOSSLESS

    @property
    def link_only(self) -> bool:
        """True if the number of bytes that are sent over the network is known."""
        if self.hook:
            return HOOKS[self.hook].rings
        made = parse(self.compressor or BASELINE)
        return made.scheme != "hierarchical" and not made.options.get("hierarchical")

    @property
    def barred(self) -> str:
        """Reason why the candidate is never recommended; empty if it may be recommended.

        Hooks of HOOKS are never recommended, because no option applies them outside of trials.
        """
        if not self.hook:
            return ""
        return f"{self.hook} exists in trials only, for comparison, and no option applies it"

    @property
    def techniques(self) -> int:
        """Number of techniques that the candidate combines."""
        exchange = bool(self.compressor) + bool(self.hook)
        return (
            exchange
            + len(list(filter(None, self.buckets.label.split("+"))))
            + (self.sharding.count)
        )


ROLES = tuple(Candidate(name) for name in (BASELINE, CONTROL, HEADROOM))


def parse_candidate(text: str) -> Candidate:
    """Makes a candidate from its techniques, such as ``topk:ratio=0.01+bucket-cap=5``.

    Raises:
        UsageError: a technique is unknown, a value is out of range, or two techniques exclude each
            other.
    """
    compressor = hook = ""
    buckets, sharding = OWN_BUCKETS, NO_SHARDING
    for word in text.split("+"):
        name = _head(word)
        if name == BUCKET_CAP:
            _once(buckets.cap_mb is None, text, "bucket caps")
            buckets = replace(buckets, cap_mb=_cap(word))
        elif name == FIRST_BUCKET:
            _once(buckets.first_mb is None, text, "first buckets")
            buckets = replace(buckets, first_mb=_cap(word))
        elif name == BUCKET_VIEW:
            _once(buckets.as_view is None, text, "bucket views")
            buckets = replace(buckets, as_view=truth(word))
        elif name == STATIC_GRAPH:
            raise UsageError(
                f"{name} cannot change between steps: DDP learns a static graph once, in a model's "
                "first backward passes; compare two runs with `commprof compare`"
            )
        elif is_sharding(word):
            sharding = with_word(sharding, word, text)
        elif name in HOOKS and word == name:
            _once(not (hook or compressor), text, "compressors or hooks")
            hook = name
        elif name in SCHEMES:
            _once(not (hook or compressor), text, "compressors or hooks")
            compressor = parse(word).label
        else:
            raise UsageError(
                f"unknown technique {word!r} (allowed: {', '.join(technique_names())})"
            )
    label = "+".join(filter(None, (compressor, hook, buckets.label, sharding.label)))
    if sharding.count and (compressor or hook or buckets.label):
        raise UsageError(
            f"candidate {text!r} joins settings of FSDP2 and of DDP, but no model has both; make "
            "two candidates of them"
        )
    return Candidate(label, compressor, hook, buckets, sharding)


def technique_names() -> list[str]:
    """Returns the names of all techniques, in the form in which users type them."""
    schemes = [name for name in SCHEMES if name != BASELINE]
    return [*schemes, *HOOKS, *(typed for typed, _ in (*_BUCKET_WORDS, *TECHNIQUES))]


def is_technique(word: str) -> bool:
    """True if a word begins a candidate, False if it is an option of the preceding candidate."""
    first = word.partition("+")[0]
    if "=" in first.partition(":")[0]:
        # "hierarchical" is a technique, but "hierarchical=1" is an option.
        of_ddp = (BUCKET_CAP, FIRST_BUCKET, BUCKET_VIEW, STATIC_GRAPH)
        return _head(first) in of_ddp or is_sharding(first)
    return _head(first) in {*SCHEMES, *HOOKS, HEADROOM}


def help_text() -> str:
    """Returns one line for each technique other than compressors, for help texts."""
    lines = [f"  {hook.name:<18} {hook.meaning}" for hook in HOOKS.values()]
    for typed, meaning in (*_BUCKET_WORDS, *TECHNIQUES):
        lines.append(f"  {typed:<18}" + (f"\n{'':<20}" if len(typed) > 18 else "") + f" {meaning}")
    return "\n".join(lines)


def _head(word: str) -> str:
    return word.partition(":")[0].partition("=")[0]


def _once(first: bool, text: str, what: str) -> None:
    if not first:
        raise UsageError(f"candidate {text!r} names two {what}; keep one of them")


def all_digits(number: float) -> str:
    """Returns the shortest text from which ``float`` reads the same number, such as ``5``."""
    return repr(number).removesuffix(".0")


def _cap(word: str) -> float:
    low, high = _CAPS_MB
    name, _, value = word.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not low <= number <= high:
        raise UsageError(
            f"{name}={value!r} is out of range (allowed: MiB from {low:g} to {high:g})"
        )
    return number
