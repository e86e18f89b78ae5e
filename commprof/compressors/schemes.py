"""What compression schemes there are and what they accept; needs neither torch nor the module.

The same tables stand in ``csrc/compress/settings.cpp``; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commprof.errors import UsageError


@dataclass(frozen=True)
class Option:
    """What one option of a scheme accepts."""

    name: str
    minimum: float
    maximum: float
    #: Value used where none is given.
    standard: float
    #: Whole numbers only.
    whole: bool
    meaning: str


@dataclass(frozen=True)
class Scheme:
    """One way to send gradients in fewer bytes."""

    name: str
    meaning: str
    options: tuple[Option, ...]


def _common(feedback: int) -> tuple[Option, ...]:
    meaning = "1: what was not sent is added to the next step's gradients"
    between = "1: fp32 sums within each host, compression between hosts"
    return (
        Option("feedback", 0, 1, feedback, True, meaning),
        Option("start_step", 0, 1e9, 0, True, "steps with plain means before"),
        Option("checksum", 0, 1, 0, True, "1: a CRC-32 with each message"),
        Option("hierarchical", 0, 1, 0, True, between),
    )


_RATIO = Option("ratio", 1e-9, 1, 0.01, False, "share of the values that is sent")
_RANK = Option("rank", 1, 16, 4, True, "columns of the factors that are sent")

_ALL = (
    Scheme("none", "fp32 all-reduce by the same machinery: what a compressor is compared with", ()),
    Scheme("fp16", "16 bits a value with a power-of-two scale, 2x fewer bytes", _common(0)),
    Scheme("bf16", "16 bits a value with fp32's range, 2x fewer bytes", _common(0)),
    Scheme("int8", "8 bits a value, a scale per 128: 3.9x fewer bytes", _common(0)),
    Scheme("int4", "4 bits a value, a scale per 64: 7.1x fewer bytes", _common(1)),
    Scheme("topk", "the largest values of each bucket, exactly", (_RATIO, *_common(1))),
    Scheme("powersgd", "two thin factors of each matrix (PowerSGD)", (_RANK, *_common(1))),
    Scheme("hierarchical", "fp32 means through shared memory and, between hosts, gloo", ()),
)
SCHEMES: Mapping[str, Scheme] = {scheme.name: scheme for scheme in _ALL}


def help_text() -> str:
    """One line per scheme, for help texts."""
    lines = []
    for scheme in _ALL:
        own = [o for o in scheme.options if o.name in ("ratio", "rank")]
        given = "".join(f":{o.name}={o.standard:g}" for o in own)
        lines.append(f"  {scheme.name + given:<18} {scheme.meaning}")
    return "\n".join(lines)


def checked(name: str, options: Mapping[str, float | bool | None]) -> dict[str, float]:
    """The options that are given (None is not), as numbers.

    Raises:
        UsageError: no such scheme or option, or a value out of range; names it and what is
            allowed.
    """
    scheme = SCHEMES.get(name)
    if scheme is None:
        raise UsageError(f"unknown compressor {name!r} (allowed: {', '.join(SCHEMES)})")
    known = {option.name: option for option in scheme.options}
    result = {}
    for key, value in options.items():
        if value is None:
            continue
        if key not in known:
            allowed = ", ".join(known) or "none"
            raise UsageError(f"{name} has no option {key!r} (allowed: {allowed})")
        result[key] = _number(name, known[key], value)
    return result


def _number(scheme: str, option: Option, value: object) -> float:
    kind = "a whole number" if option.whole else "a number"
    problem = UsageError(
        f"{scheme}: {option.name}={value!r} is out of range (allowed: {kind} from "
        f"{option.minimum:g} to {option.maximum:g})"
    )
    if not isinstance(value, int | float):
        raise problem
    if not option.minimum <= value <= option.maximum or (option.whole and value != int(value)):
        raise problem
    return float(value)
