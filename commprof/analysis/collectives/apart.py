"""Finds ranks that train without an exchange of gradients.

Such ranks train apart: each rank trains a model of its own, on its own part of the data. No figure
of time shows this. The rules of :mod:`commprof.trace.exchanged` decide which calls exchange
gradients. Ranks train together if a group with such calls connects them, directly or through other
ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commprof.text import counted, in_bytes, listed, named_ranks
from commprof.trace.exchanged import Exchanged

_REASONS = (
    "Likely reasons: the model is not wrapped in DistributedDataParallel, or fully_shard was not "
    "applied to it; the script calls the inner model instead of the wrapper; or the launcher's "
    "settings are for GPUs and take no effect on CPUs"
)
#: Parameters outside of DDP models are mentioned if they hold at least this fraction of all updated
#: bytes.
_WORTH_A_WORD = 0.01


@dataclass(frozen=True)
class TrainedApart:
    """Ranks, or parameters, that are trained without an exchange of gradients."""

    #: "nothing": no rank exchanges gradients. "groups": the ranks form sets, and no gradients are
    #: exchanged between the sets. "parameters": the gradients of some parameters are not exchanged.
    #: "not seen": no exchange was recorded, but capture may have missed one.
    kind: str
    #: Sets of recorded ranks that train together.
    together: tuple[tuple[int, ...], ...]
    #: Bytes of updated parameters whose gradients no rank exchanges; 0 if not known.
    apart_bytes: int
    #: What was found, in one to three sentences, with the likely reasons.
    sentence: str
    advice: str


def trained_apart(
    ranks: Sequence[Exchanged], world_size: int, sees_all: bool
) -> TrainedApart | None:
    """Finds ranks or parameters that are trained without an exchange of gradients.

    The result is None if there are none, or if too little is known.

    Args:
        ranks: what each recorded rank trained and exchanged.
        world_size: number of ranks of the job.
        sees_all: False if capture misses some collectives, as capture in pure Python does.
    """
    training = [rank for rank in ranks if rank.trains]
    if world_size < 2 or len(training) < 2:
        return None
    together = _together(ranks)
    among = [tuple(r.rank for r in training if r.rank in ranks_) for ranks_ in together]
    among = sorted((part for part in among if part), key=lambda part: (-len(part), part))
    libraries = sorted(
        {name for rank in training if rank.trained for name in rank.trained.other_libraries}
    )
    if len(among) > 1:
        if libraries or not sees_all:
            return _not_seen(training, tuple(among), libraries)
        return _of_ranks(training, tuple(among))
    return _of_parameters(training, tuple(among)) if sees_all and not libraries else None


def _together(ranks: Sequence[Exchanged]) -> list[set[int]]:
    """Returns the sets of ranks that exchange gradients, directly or through other ranks."""
    parts = [{rank.rank} for rank in ranks]
    members: dict[str, set[int]] = {}
    for rank in ranks:
        for each in rank.groups:
            if each.of_gradients:
                members.setdefault(each.group, set()).add(rank.rank)
    for group in members.values():
        touched = [part for part in parts if part & group]
        parts = [part for part in parts if not part & group] + [set().union(*touched)]
    return parts


def _of_ranks(training: Sequence[Exchanged], together: tuple[tuple[int, ...], ...]) -> TrainedApart:
    exchange = any(len(part) > 1 for part in together)
    updates = min(rank.updates for rank in training)
    if exchange:
        sets = listed([named_ranks(part) for part in together])
        said = (
            f"The ranks train apart: {sets} do not exchange gradients with one another in "
            f"{counted(updates, 'update')}, so their models drift apart. Likely reasons: a process "
            "group leaves ranks out, or a model of some ranks is not wrapped"
        )
        advice = "First find out which process group the gradients are exchanged in."
        return TrainedApart("groups", together, 0, f"{said}.", advice)
    found = [rank.trained.parameter_bytes for rank in training if rank.trained is not None]
    size = f" ({in_bytes(max(found))})" if found else ""
    seen = _seen(training)
    said = (
        f"The {len(training)} ranks train apart: in {counted(updates, 'update')}, no rank "
        f"exchanged the gradients of its parameters{size} with another rank{seen}. So each rank "
        f"trains a model of its own. {_REASONS}"
    )
    advice = (
        "No gradients are exchanged: wrap the model, and call the wrapper. To see that the ranks' "
        "parameters differ, run the job with `--check-sync 10`. If the ranks are meant to train "
        "apart, run each rank as a job of its own."
    )
    return TrainedApart("nothing", together, max(found, default=0), f"{said}.", advice)


def _seen(training: Sequence[Exchanged]) -> str:
    calls: Mapping[str, int] = {}
    for rank in training:
        for each in rank.groups:
            calls = {**calls, each.op: calls.get(each.op, 0) + each.calls}
    return f" (there were only small calls of {listed(sorted(calls))})" if calls else ""


def _not_seen(
    training: Sequence[Exchanged], together: tuple[tuple[int, ...], ...], libraries: Sequence[str]
) -> TrainedApart:
    why = "the capture in pure Python sees only DDP's buckets"
    if libraries:
        why = f"the script has loaded {listed(libraries)}, whose communication commprof cannot see"
    said = (
        f"{len(training)} ranks train, but no exchange of gradients between them was seen: {why}. "
        "The cost of their communication is not known."
    )
    return TrainedApart("not seen", together, 0, said, "")


def _of_parameters(
    training: Sequence[Exchanged], together: tuple[tuple[int, ...], ...]
) -> TrainedApart | None:
    apart = []
    for rank in training:
        trained = rank.trained
        if trained is None or trained.sharded or rank.of_activations:
            return None
        outside = trained.outside_ddp_bytes
        if trained.ddp_bytes == 0 or outside < _WORTH_A_WORD * trained.parameter_bytes:
            return None
        # Calls outside of DDP may have exchanged these gradients in half precision.
        if rank.beside_ddp_bytes >= outside / 2:
            return None
        apart.append((outside, trained.parameter_bytes))
    outside, whole = max(apart)
    said = (
        f"The ranks update {in_bytes(whole)} of parameters, but do not exchange the gradients of "
        f"{in_bytes(outside)} of these parameters. No DDP model reduces these gradients, so each "
        "rank trains its own copy of the parameters. Likely reasons: a module such as a head or an "
        "embedding is outside of the wrapped model; the inner model was changed after it was "
        "wrapped; or parameters were frozen when the model was wrapped, and are trained now"
    )
    advice = "Wrap the model in DDP when it has all trained parameters, and no parameter is frozen."
    return TrainedApart("parameters", together, outside, f"{said}.", advice)
