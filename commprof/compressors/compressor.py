"""A compressor: a scheme with its options, and, once attached, what it has in hand, as a dict."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commprof.compressors import scheme_table
from commprof.errors import CommprofError, UsageError

if TYPE_CHECKING:
    from commprof.compressors.running import Running


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
    """Checks the given options (None is not given) and returns them as numbers.

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


class Compressor:
    """Takes the place of DDP's mean all-reduce in one model.

    Made by ``commprof.compressors.topk(0.01)`` and its like; works once
    ``commprof.attach(ddp, hook=compressor)`` or ``set_hook(compressor)`` has been called.
    All ranks must use the same one.
    """

    def __init__(
        self,
        scheme: str,
        options: Mapping[str, float | bool | None],
        *,
        seed: int = 0,
        measure_every: int = 0,
    ) -> None:
        """Checks everything at once.

        Args:
            scheme: one of ``SCHEMES``.
            options: of the scheme; None stands for the standard value.
            seed: of random choices (``powersgd``).
            measure_every: in every so manyth step the trace gets the error of each bucket,
                which costs one or two more passes over it; 0: never.

        Raises:
            UsageError: see :func:`checked`.
        """
        self.scheme = scheme
        self.options = checked(scheme, options)
        for name, value in (("seed", seed), ("measure_every", measure_every)):
            if not (isinstance(value, int) and 0 <= value < 2**32):
                raise UsageError(
                    f"{scheme}: {name}={value!r} is out of range (allowed: a whole number from "
                    "0 to 4294967295)"
                )
        self.seed = seed
        self.measure_every = measure_every
        self._running: Running | None = None
        self._loaded: dict[str, Any] | None = None

    @property
    def label(self) -> str:
        """Scheme and options, as ``parse`` takes them: ``topk:ratio=0.01``."""
        given = dict(self.options)
        for name, value in (("seed", self.seed), ("measure_every", self.measure_every)):
            if value:
                given[name] = value
        listed = ",".join(f"{name}={value:.12g}" for name, value in given.items())
        return f"{self.scheme}:{listed}" if listed else self.scheme

    def __repr__(self) -> str:
        return f"<commprof compressor {self.label}>"

    def require_free(self) -> None:
        """Raises CommprofError if the compressor already works in a model."""
        if self._running is not None:
            raise CommprofError(
                f"this compressor ({self.label}) works in another model; make one for each model"
            )

    def bind(self, running: Running) -> None:
        """Called when the compressor starts to work in a model."""
        self.require_free()
        if self._loaded is not None:
            _restore(running, self, self._loaded)
            self._loaded = None
        self._running = running

    def unbind(self) -> None:
        """Called when another hook takes the compressor's place; its state is gone."""
        self._running = None

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, a plain dict that ``torch.save`` takes; see ``docs/compressors.md``.

        Call it between steps. Ranks have different residuals: save each rank's own.

        Raises:
            CommprofError: it works in no model.
        """
        return _collect(self._attached("state_dict"), self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a rank's state, now or when the compressor is attached.

        With as many ranks as before each one loads its own, and training goes on bit for bit.
        With more or fewer, all load what ``merge_states`` made of all. Parameters that the state
        does not know start from nothing, with a warning, as do those the model does not know.

        Raises:
            CommprofError: the state is of another scheme, other options, another number of ranks
                or another rank.
        """
        if self._running is None:
            self._loaded = dict(state)
        else:
            _restore(self._running, self, state)

    def set_loss_scale(self, old: float, new: float) -> None:
        """Rescales residuals for a loss scale that changed from ``old`` to ``new``.

        Raises:
            UsageError: one is not above 0.
        """
        if not (old > 0 and new > 0):
            raise UsageError(f"loss scales {old!r} and {new!r} are not above 0")
        if old != new:
            self._attached("set_loss_scale").engine.scale_residuals(new / old)

    def step_skipped(self) -> None:
        """Puts back into the residuals what was sent in the last step, which was not applied."""
        self._attached("step_skipped").engine.step_skipped()

    def follow_scaler(self, scaler: Any) -> None:
        """Follows a GradScaler's changes of scale and skipped steps by itself.

        Args:
            scaler: a ``torch.amp.GradScaler``; its ``update`` is wrapped.
        """
        update = scaler.update

        def update_and_tell(*args: Any, **kwargs: Any) -> None:
            before = scaler.get_scale()
            update(*args, **kwargs)
            after = scaler.get_scale()
            if after < before:
                self.step_skipped()
            self.set_loss_scale(before, after)

        scaler.update = update_and_tell

    def _attached(self, what: str) -> Running:
        if self._running is None:
            raise CommprofError(
                f"{what}(): the compressor {self.label} works in no model; call "
                "commprof.attach(ddp, hook=compressor) first"
            )
        return self._running


def parse(text: str) -> Compressor:
    """Makes a compressor from ``NAME[:option=value,...]``, as ``commprof run --hook`` takes it.

    Options are those of the function of that name, as numbers: ``topk:ratio=0.01,feedback=1``.

    Raises:
        UsageError: unknown name or option, one given twice, or a value that is no number or out
            of range.
    """
    name, _, rest = text.partition(":")
    checked(name, {})
    options: dict[str, float] = {}
    for word in filter(None, rest.split(",")):
        key, equals, value = word.partition("=")
        if key in options:
            raise UsageError(f"{name}: option {key!r} is given twice; keep one of them")
        try:
            options[key] = float(value)
        except ValueError:
            raise UsageError(
                f"compressor {text!r}: {word!r} is not option=number"
                + ("" if equals else " (as in topk:ratio=0.01)")
            ) from None
    whole = {key: options.pop(key, 0.0) for key in ("seed", "measure_every")}
    for key, number in whole.items():
        if not number.is_integer():
            raise UsageError(f"{name}: {key}={number:g} is not a whole number")
    return Compressor(
        name, options, seed=int(whole["seed"]), measure_every=int(whole["measure_every"])
    )


#: Of the dict; one of another version is refused.
VERSION = 1
#: In the place of a rank: for every rank of any world size.
ANY = -1


def _collect(running: Running, compressor: Compressor) -> dict[str, Any]:
    """This rank's state."""
    parameters: dict[str, dict[str, Any]] = {}
    for number, kind, values in list(running.engine.state()):
        parameters.setdefault(running.names[number], {})[kind] = values
    return {
        "version": VERSION,
        "scheme": compressor.scheme,
        "options": dict(compressor.options),
        "seed": compressor.seed,
        "step": int(running.engine.step),
        "world_size": running.world_size,
        "rank": running.rank,
        "parameters": parameters,
    }


def _restore(running: Running, compressor: Compressor, state: Mapping[str, Any]) -> None:
    """Puts a saved state back; see ``Compressor.load_state_dict``."""
    _check(running, compressor, state)
    numbers = {name: number for number, name in enumerate(running.names)}
    saved = state["parameters"]
    unknown = sorted(name for name in saved if name not in numbers)
    if unknown:
        _warn(f"no longer in the model, and left out: {_listed(unknown)}")
    if saved:
        missing = sorted(name for name in numbers if name not in saved)
        if missing:
            _warn(f"without a saved state, and starting from nothing: {_listed(missing)}")
    items = [
        (numbers[name], kind, values)
        for name, kinds in saved.items()
        if name in numbers
        for kind, values in kinds.items()
    ]
    for number, kind, values in items:
        count = running.sizes[number]
        if kind == "residual" and values.numel() != count:
            raise CommprofError(
                f"the saved residual of {running.names[number]} has {values.numel()} values and "
                f"the parameter {count}; load the state of the same model"
            )
    running.engine.load_state(items)
    running.engine.step = int(state["step"])


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges the states of all ranks into one for every rank of a job of another size.

    A residual becomes the mean over the old ranks, so that the sum over ranks divided by their
    number, which is what reaches the model, stays. Other state is the same on all ranks.

    Args:
        states: ``state_dict()`` of every rank, in any order.

    Raises:
        UsageError: a rank is missing or there twice, or they are not of one job.
    """
    ordered = sorted(states, key=lambda state: int(state["rank"]))
    world_size = int(ordered[0]["world_size"]) if ordered else 0
    ranks = [int(state["rank"]) for state in ordered]
    if not ordered or ranks != list(range(world_size)):
        raise UsageError(f"states of ranks {ranks} of {world_size} (needed: each rank's, once)")
    first = ordered[0]
    for state in ordered[1:]:
        for key in ("version", "scheme", "options", "step", "world_size"):
            if state[key] != first[key]:
                raise UsageError(
                    f"rank {state['rank']}'s state has {key} {state[key]!r} and rank 0's "
                    f"{first[key]!r}; take those of one moment of one job"
                )
    names = {name: None for state in ordered for name in state["parameters"]}
    parameters = {name: _merged(name, ordered) for name in names}
    return {**first, "world_size": ANY, "rank": ANY, "parameters": parameters}


def _merged(name: str, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = [state["parameters"].get(name, {}) for state in states]
    result = {}
    for kind in {kind: None for kinds in found for kind in kinds}:
        values = [kinds[kind] for kinds in found if kind in kinds]
        # A rank that has no residual yet has one of zeros.
        result[kind] = sum(values) / len(states) if kind == "residual" else values[0].clone()
    return result


def _check(running: Running, compressor: Compressor, state: Mapping[str, Any]) -> None:
    if state.get("version") != VERSION:
        raise CommprofError(
            f"a compressor's state of version {state.get('version')!r} (allowed: {VERSION})"
        )
    own = {"scheme": compressor.scheme, "options": compressor.options, "seed": compressor.seed}
    for key, value in own.items():
        if state[key] != value:
            raise CommprofError(
                f"the saved state has {key} {state[key]!r} and this compressor {value!r}; make "
                "the compressor as it was"
            )
    if state["world_size"] == ANY:
        return
    for key, now in (("world_size", running.world_size), ("rank", running.rank)):
        if state[key] != now:
            raise CommprofError(
                f"the saved state has {key} {state[key]} and this is {now}; load each rank's own, "
                "or on all ranks what commprof.compressors.merge_states() makes of all"
            )


def _warn(what: str) -> None:
    warnings.warn(f"commprof: parameters {what}", stacklevel=4)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
