"""What compression schemes there are and what they accept; needs neither torch nor the module.

The tables are made from a C++ header (``scheme_table.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commprof.compressors import scheme_table
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


def _scheme(code: str, name: str, feedback: int, meaning: str) -> Scheme:
    """A row of the table, with its own options and those of all that compress."""
    options = [
        Option(own, low, high, feedback if own == "feedback" else standard, whole, what)
        for taker, own, low, high, standard, whole, what in scheme_table.OPTIONS
        if code != "None" and taker in (code, "None")
    ]
    return Scheme(name, meaning, tuple(options))


_ALL = tuple(_scheme(*row) for row in scheme_table.SCHEMES)
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
