"""State of a compressor as plain dicts: one rank's, by parameter name, and how to merge them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from commprof.errors import CommprofError, UsageError

if TYPE_CHECKING:
    from commprof.compressors.compressor import Compressor
    from commprof.compressors.running import Running

#: Of the dict; one of another version is refused.
VERSION = 1
#: In the place of a rank: for every rank of any world size.
ANY = -1


def collect(running: Running, compressor: Compressor) -> dict[str, Any]:
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


def restore(running: Running, compressor: Compressor, state: Mapping[str, Any]) -> None:
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
    """One state for every rank of a job of another size, from those of all ranks.

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
