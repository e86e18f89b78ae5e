"""Defines ``Compressor``, and the schemes and options of compressors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commprof.capture.hook_engine import HookEngine
from commprof.errors import CommprofError, UsageError
from commprof.text import named_ranks
from commprof.tune.compressors import scheme_table

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

    from commprof.tune.compressors.groups import Groups
    from commprof.tune.compressors.running import Running, StateItems


@dataclass(frozen=True)
class Option:
    """Range, default and meaning of one option of a scheme."""

    name: str
    minimum: float
    maximum: float
    #: Value if the option is not given.
    standard: float
    #: True if only whole numbers are allowed.
    whole: bool
    meaning: str
    #: True if no other scheme has the option.
    is_own: bool


@dataclass(frozen=True)
class Scheme:
    """One way to send gradients in fewer bytes."""

    name: str
    #: How the ranks exchange a bucket: "two_phase", "gather", "ring" or "hierarchical".
    exchange: str
    meaning: str
    options: tuple[Option, ...]


def _scheme(code: str, name: str, feedback: int, exchange: str, meaning: str) -> Scheme:
    options = [
        Option(
            *(option, low, high, feedback if option == "feedback" else standard, whole, what),
            is_own=taker == code,
        )
        for taker, option, low, high, standard, whole, what in scheme_table.OPTIONS
        if code != "None" and taker in (code, "None")
    ]
    return Scheme(name, exchange, meaning, tuple(options))


_ALL = tuple(_scheme(*row) for row in scheme_table.SCHEMES)
SCHEMES: Mapping[str, Scheme] = {scheme.name: scheme for scheme in _ALL}


def help_text() -> str:
    """Returns one line per scheme, for help texts."""
    lines = []
    for scheme in _ALL:
        given = "".join(f":{o.name}={o.standard:g}" for o in scheme.options if o.is_own)
        lines.append(f"  {scheme.name + given:<18} {scheme.meaning}")
    return "\n".join(lines)


def checked(name: str, options: Mapping[str, float | bool | None]) -> dict[str, float]:
    """Checks a scheme's options and returns them as numbers; leaves out options that are None.

    Raises:
        UsageError: there is no such scheme or option, or a value is out of range; the message
            names what is wrong and what is allowed.
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


class Compressor(HookEngine):
    """Replaces the all-reduce by which DDP averages gradients in one model.

    Functions such as ``commprof.compressors.topk(0.01)`` make a compressor. The calls
    ``commprof.attach(ddp, hook=compressor)`` and ``set_hook(compressor)`` attach it to a model. All
    ranks must use the same scheme and options.
    """

    def __init__(
        self,
        scheme: str,
        options: Mapping[str, float | bool | None],
        *,
        seed: int = 0,
        measure_every: int = 0,
    ) -> None:
        """Checks all arguments.

        Args:
            scheme: name of the scheme, one of ``SCHEMES``.
            options: the scheme's options; None stands for the default value.
            seed: seed of random choices (``powersgd``).
            measure_every: number of steps from one measurement of the compression error to the
                next; 0 turns the measurement off.

        Raises:
            UsageError: as for :func:`checked`.
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
        self._scalers: list[Any] = []

    @property
    def label(self) -> str:
        """Scheme and options as text that ``parse`` accepts: ``topk:ratio=0.01``."""
        given = dict(self.options)
        for name, value in (("seed", self.seed), ("measure_every", self.measure_every)):
            if value:
                given[name] = value
        listed = ",".join(f"{name}={value:.12g}" for name, value in given.items())
        return f"{self.scheme}:{listed}" if listed else self.scheme

    def __repr__(self) -> str:
        return f"<commprof compressor {self.label}>"

    def shared_of(self, ddp: DistributedDataParallel) -> Groups:
        """Makes the process groups and connections of a model's compressors."""
        from commprof.tune.compressors.groups import Groups

        return Groups(ddp)

    def start(self, ddp: DistributedDataParallel, shared: Any, replaced: Any) -> Running:
        """Starts the engine that compresses and exchanges the model's gradients."""
        from commprof.tune.compressors.running import Running

        return Running(ddp, self, shared, replaced)

    def require_free(self) -> None:
        """Raises CommprofError if the compressor already works in a model."""
        if self._running is not None:
            raise CommprofError(
                f"this compressor ({self.label}) is attached to another model; make one for each "
                "model"
            )

    def bind(self, running: Running) -> None:
        """Attaches the compressor to the model of ``running``.

        If ``load_state_dict`` was called before, its state is loaded now.
        """
        self.require_free()
        if self._loaded is not None:
            _restore(running, self, self._loaded)
            self._loaded = None
        self._running = running

    def unbind(self) -> None:
        """Drops the engine and the engine's state; called when another hook takes over."""
        self._running = None

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's state as a plain dict for ``torch.save``.

        Call it between steps. Ranks have different residuals: save the state of each rank.

        Raises:
            CommprofError: the compressor is not attached to a model.
        """
        return _collect(self._attached("state_dict"), self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a rank's state, now or when the compressor is attached.

        If the number of ranks is the same as before, each rank loads its own state. Otherwise, all
        ranks load the result of ``merge_states``. A warning names parameters that have no saved
        state or are not in the model. See ``docs/compressors.md``.

        Raises:
            CommprofError: the state does not fit this compressor, model or rank.
        """
        if self._running is None:
            self._loaded = dict(state)
        else:
            _restore(self._running, self, state)

    def set_loss_scale(self, old: float, new: float) -> None:
        """Rescales residuals for a loss scale that changed from ``old`` to ``new``.

        Raises:
            UsageError: a scale is not above 0.
        """
        if not (old > 0 and new > 0):
            raise UsageError(f"loss scales {old!r} and {new!r}: both must be above 0")
        if old != new:
            self._attached("set_loss_scale").engine.scale_residuals(new / old)

    def step_skipped(self) -> None:
        """Adds the sent values of the last step to the residuals again.

        Call this method if the optimizer skipped that step.
        """
        self._attached("step_skipped").engine.step_skipped()

    def follow_scaler(self, scaler: Any) -> None:
        """Makes residuals adapt whenever a GradScaler changes its scale or skips a step.

        Args:
            scaler: a ``torch.amp.GradScaler``; its ``update`` is wrapped.
        """
        if any(known is scaler for known in self._scalers):
            return
        self._scalers.append(scaler)
        update = scaler.update

        def update_and_tell(*args: Any, **kwargs: Any) -> None:
            if self._running is None:
                update(*args, **kwargs)
                return
            before = scaler.get_scale()
            # A lower scale is no proof of a skipped step: update(new_scale) can lower it too.
            found = [one["found_inf_per_device"] for one in scaler._per_optimizer_states.values()]
            skipped = any(float(flag) for flags in found for flag in flags.values())
            update(*args, **kwargs)
            if skipped:
                self.step_skipped()
            self.set_loss_scale(before, scaler.get_scale())

        scaler.update = update_and_tell

    def _attached(self, what: str) -> Running:
        if self._running is None:
            raise CommprofError(
                f"{what}(): the compressor {self.label} is not attached to a model; call "
                "commprof.attach(ddp, hook=compressor) first"
            )
        return self._running


def parse(text: str) -> Compressor:
    """Makes a compressor from ``NAME[:option=value,...]``, the format of ``commprof run --hook``.

    An example is ``topk:ratio=0.01,feedback=1``. All schemes also have the options ``seed`` and
    ``measure_every``. Values are numbers.

    Raises:
        UsageError: the name or an option is unknown, an option is given twice, or a value is not a
            number or out of range.
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


#: Version of the state's format; states of other versions are refused.
VERSION = 1
#: Value of ``rank`` and ``world_size`` in a merged state, which any rank of any job may load.
ANY = -1


def _collect(running: Running, compressor: Compressor) -> dict[str, Any]:
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
        "residual_ranks": running.residual_ranks,
        "names": list(running.names),
        "parameters": parameters,
    }


def _restore(running: Running, compressor: Compressor, state: Mapping[str, Any]) -> None:
    _check(running, compressor, state)
    numbers = {name: number for number, name in enumerate(running.names)}
    saved = state["parameters"]
    unknown = sorted(name for name in saved if name not in numbers)
    if unknown:
        _warn(f"are not in the model, so their saved state is left out: {_listed(unknown)}")
    if saved:
        # ``names`` also lists parameters that need no state, such as frozen parameters.
        missing = sorted(set(numbers).difference(state.get("names", saved)))
        if missing:
            _warn(f"have no saved state, so they start with an empty state: {_listed(missing)}")
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
                f"the saved residual of {running.names[number]} has {values.numel()} values, but "
                f"the parameter has {count}; load the state of the same model"
            )
    if items and not running.compresses:
        _warn(
            "are not compressed on a single host, so their saved state is left out: "
            f"{_listed(list(saved))}"
        )
        items = []
    running.engine.load_state(_of_this_rank(items, running, state))
    running.engine.step = int(state["step"])


def _of_this_rank(items: StateItems, running: Running, state: Mapping[str, Any]) -> StateItems:
    """Returns the items of a saved state that this rank loads.

    If the number of ranks that keep residuals has changed, the residuals are scaled. So their
    effect on the mean of the gradients stays the same.
    """
    if state["world_size"] == ANY:
        if running.keeps_merged:
            return items
        return [item for item in items if item[1] != "residual"]
    factor = running.residual_ranks / state.get("residual_ranks", running.residual_ranks)
    if factor == 1:
        return items
    return [
        (number, kind, values * factor if kind == "residual" else values)
        for number, kind, values in items
    ]


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges all ranks' states into a single state, which all ranks of a job of any size can load.

    Residuals are averaged over the ranks, or over the hosts with ``hierarchical=1``.

    Args:
        states: ``state_dict()`` of every rank, in any order.

    Raises:
        UsageError: a rank's state is missing or given twice, or the states are not of one job.
    """
    ordered = sorted(states, key=lambda state: int(state["rank"]))
    world_size = int(ordered[0]["world_size"]) if ordered else 0
    ranks = [int(state["rank"]) for state in ordered]
    if not ordered or ranks != list(range(world_size)):
        twice = {rank for rank in ranks if ranks.count(rank) > 1}
        again = f", with more than one state of {named_ranks(twice)}" if twice else ""
        raise UsageError(
            f"merge_states() got the states of {named_ranks(ranks)} for world size {world_size}"
            f"{again} (needed: one state of each rank)"
        )
    first = ordered[0]
    for state in ordered[1:]:
        for key in ("version", "scheme", "options", "step", "world_size"):
            if state[key] != first[key]:
                raise UsageError(
                    f"rank {state['rank']}'s state has {key} {state[key]!r}, but rank 0's has "
                    f"{first[key]!r}; merge states that were saved at the same step of one job"
                )
    names = {name: None for state in ordered for name in state["parameters"]}
    parameters = {name: _merged(name, ordered) for name in names}
    anywhere = dict.fromkeys(("world_size", "rank", "residual_ranks"), ANY)
    return {**first, **anywhere, "parameters": parameters}


def _merged(name: str, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = [state["parameters"].get(name, {}) for state in states]
    count = states[0].get("residual_ranks", len(states))
    result = {}
    for kind in {kind: None for kinds in found for kind in kinds}:
        values = [kinds[kind] for kinds in found if kind in kinds]
        # A residual may be on the GPU of the rank that saved it.
        values = [value.to(values[0].device) for value in values]
        # A missing residual counts as zeros.
        result[kind] = sum(values) / count if kind == "residual" else values[0].clone()
    return result


def _check(running: Running, compressor: Compressor, state: Mapping[str, Any]) -> None:
    if state.get("version") != VERSION:
        raise CommprofError(
            f"the saved compressor state has version {state.get('version')!r} (allowed: {VERSION})"
            "; load a state that this version of commprof saved"
        )
    own = {"scheme": compressor.scheme, "options": compressor.options, "seed": compressor.seed}
    for key, value in own.items():
        if state[key] != value:
            raise CommprofError(
                f"the saved state has {key} {state[key]!r}, but this compressor has {value!r}; "
                "make the compressor with the saved settings"
            )
    if state["world_size"] == ANY:
        return
    for key, now in (("world_size", running.world_size), ("rank", running.rank)):
        if state[key] != now:
            raise CommprofError(
                f"the saved state has {key} {state[key]}, but this job has {now}; load each rank's "
                "own state, or on all ranks the result of commprof.compressors.merge_states()"
            )


def _warn(what: str) -> None:
    warnings.warn(f"commprof: parameters {what}", stacklevel=4)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
