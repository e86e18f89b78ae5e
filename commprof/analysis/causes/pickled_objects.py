"""Python objects are pickled and exchanged in every step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.edits.collective_calls import gathered_seldom
from commprof.analysis.causes.facts import Facts, Mask, RankCalls, at_line
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.evidence import Figure
from commprof.text import in_bytes, in_ms
from commprof.trace.columns import Ints
from commprof.trace.lookup import among
from commprof.trace.schema import OPS

_SIZES = tuple(OPS.index(op) for op in ("all_gather", "broadcast", "all_gather_into_tensor"))
_CONTENT = tuple(
    OPS.index(op)
    for op in ("all_gather", "broadcast", "gather", "scatter", "all_gather_into_tensor")
)
#: By the operation that carries the pickled bytes: the function of torch.distributed that pickles.
_FUNCTIONS = {
    "all_gather": "all_gather_object",
    "all_gather_into_tensor": "all_gather_object",
    "broadcast": "broadcast_object_list",
    "gather": "gather_object",
    "scatter": "scatter_object_list",
}
#: The arguments of these functions, if they cannot be read from the script.
_ARGUMENTS = {
    "all_gather_object": "YOUR_OUTPUTS, YOUR_OBJECT",
    "broadcast_object_list": "YOUR_OBJECTS, src=0",
    "gather_object": "YOUR_OBJECT, YOUR_OUTPUTS",
    "scatter_object_list": "YOUR_OUTPUTS, YOUR_OBJECTS",
}
#: Pickles of up to this size may hold a few numbers, which fit into a tensor.
_NUMBERS_BYTES = 2**12
_FIX_OF_BROADCASTS = (
    "import torch.distributed as dist\n\n"
    "values = torch.tensor(YOUR_NUMBERS)  # on the GPU if the group is NCCL's\n"
    "dist.broadcast(values, src=0)"
)


def _dtype(calls: RankCalls, name: str) -> int:
    names = list(calls.trace.metadata.get("dtypes", ()))
    return names.index(name) if name in names else -1


def _contents(calls: RankCalls) -> Ints:
    """Rows of calls that exchange bytes right after 64-bit sizes in the same group.

    c10d exchanges an object as two collectives: its pickle's size, and the bytes.
    """
    table = calls.table
    content = (table.dtype == _dtype(calls, "Byte")) & among(table.op, *_CONTENT)
    size = (table.dtype == _dtype(calls, "Long")) & among(table.op, *_SIZES)
    rows = np.flatnonzero(content[1:] & size[:-1] & (table.group[1:] == table.group[:-1])) + 1
    return rows.astype(np.int64)


def of_objects(calls: RankCalls) -> Mask:
    """True for the calls that exchange pickled objects or their sizes."""
    mask = np.zeros(len(calls.table), dtype=bool)
    rows = _contents(calls)
    mask[rows] = mask[rows - 1] = True
    return mask


@dataclass(frozen=True)
class _Exchanges:
    """The exchanges of objects of one rank in measured steps."""

    #: Calls and work that would be saved if a call with a tensor replaced each exchange.
    removed: Removed
    #: Total time in ns of all exchanges, each from the begin of pickling to the end of unpickling.
    total_ns: float
    #: True if pickling was recorded; else ``removed`` and ``total_ns`` lack it.
    is_whole: bool


def _exchanges(facts: Facts, position: int) -> _Exchanges:
    calls = facts.ranks[position]
    rows = _contents(calls)
    rows = rows[(calls.step[rows] >= 0) & (calls.wait_end_ns[rows] > 0)]
    second = np.zeros(len(calls.table), dtype=bool)
    second[rows] = True
    issue_ns, end_ns = calls.table.issue_ns[rows - 1], calls.wait_end_ns[rows]
    size_end_ns = np.maximum(calls.wait_end_ns[rows - 1], issue_ns)
    pickling = _pickling_ns(facts, position, rows)
    before_ns, after_ns = pickling or (np.zeros_like(rows), np.zeros_like(rows))
    edges = np.stack([issue_ns - before_ns, issue_ns, size_end_ns, end_ns + after_ns], axis=1)
    # If pickling was not noted for an exchange, the median time stands for it. This time may reach
    # into the next exchange.
    edges = np.maximum.accumulate(edges.reshape(-1))
    removed = Removed(second, edges[::2], edges[1::2])
    total_ns = (removed.end_ns - removed.begin_ns).sum() + (size_end_ns - issue_ns).sum()
    return _Exchanges(removed, float(total_ns), pickling is not None)


def _pickling_ns(facts: Facts, position: int, rows: Ints) -> tuple[Ints, Ints] | None:
    """Times of pickling before each of these exchanges, and of unpickling after it, in ns.

    Exchanges after the last noted one get the median time. None if no exchange was noted.

    ``rows``: the call of bytes of each exchange, which follows that of its size.
    """
    issue_ns = facts.ranks[position].table.issue_ns
    before = facts.noted_ns(position, "object_pickles")
    after = facts.noted_ns(position, "object_unpickles")
    last_ns = max([0, *before[1][-1:].tolist(), *after[1][-1:].tolist()])
    is_known = issue_ns[rows - 1] <= last_ns
    if not is_known.any():
        return None
    begin_ns = np.where(rows > 1, issue_ns[rows - 2], 0)
    next_ns = np.append(issue_ns, np.iinfo(np.int64).max)[rows + 1]

    def within(noted: tuple[Ints, Ints], low: Ints, high: Ints) -> Ints:
        total = np.concatenate(([0], np.cumsum(noted[1] - noted[0])))
        ns = np.diff(total[np.searchsorted(noted[0], np.stack([low, high]))], axis=0)[0]
        return np.where(is_known, ns, int(np.median(ns[is_known]))).astype(np.int64)

    return within(before, begin_ns, issue_ns[rows - 1]), within(after, issue_ns[rows], next_ns)


def _rule(facts: Facts) -> Sighting | None:
    masks = facts.on_all_ranks(
        lambda calls: (calls, of_objects(calls) & (calls.step >= 0)),
        lambda objects: objects[0].per_step(objects[1]) >= 2,
    )
    if not masks:
        return None
    exchanges = [_exchanges(facts, position) for position in range(len(masks))]
    share = facts.share([of_rank.total_ns for of_rank in exchanges])
    if not share >= WORTH_NAMING:
        return None
    is_whole = all(of_rank.is_whole for of_rank in exchanges)
    first, rows = facts.first, _contents(facts.first)
    rows = rows[first.step[rows] >= 0]
    name = _FUNCTIONS[OPS[int(first.table.op[rows[-1]])]]
    line = first.line(masks[0][1])
    ms = facts.per_step_ms([of_rank.total_ns for of_rank in exchanges])
    return Sighting(
        f"Python objects are pickled and exchanged in every step ({name}){at_line(line)}: "
        f"{in_bytes(float(first.size_bytes[rows].mean()))} on average, two collectives per object, "
        f"{in_ms(ms)} per step, pickling {'' if is_whole else 'not '}included.",
        share if is_whole else math.nan,
        saving_without(facts, [of_rank.removed for of_rank in exchanges]) if is_whole else None,
        line,
        _fix(name, float(first.size_bytes[rows].mean())),
    )


def _fix(name: str, mean_bytes: float) -> str:
    """Returns the fix for these objects; empty if the cause's own fix, for numbers, may fit."""
    if mean_bytes > _NUMBERS_BYTES:
        return (
            "if YOUR_STEP % 100 == 0:  # only in steps that use what was exchanged\n"
            f"    torch.distributed.{name}({_ARGUMENTS[name]})"
        )
    return _FIX_OF_BROADCASTS if name == _FUNCTIONS["broadcast"] else ""


def _edit(facts: Facts, sighting: Sighting) -> str:
    """Changes the script to gather in few steps only, as for a log.

    Broadcasts and scatters stay, because their results are used at once.
    """
    return gathered_seldom(
        facts.script, sighting.line, ("all_gather_object", "gather_object"), every=100
    )


CAUSE = CatalogueCause(
    id="pickled-objects",
    title="Python objects are pickled and exchanged in every step",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "In a typical step, a collective of 64-bit integers is followed at once, in the same "
        "group, by a collective of bytes, as `all_gather_object`, `gather_object` and "
        "`broadcast_object_list` issue them. From the issue of the first to the end of "
        f"the second takes at least {WORTH_NAMING:.0%} of the step, pickling included if it was "
        "recorded."
    ),
    why=(
        "The object functions of torch.distributed pickle the object, exchange the size of the "
        "pickle, then its bytes, and unpickle all of them on each rank. With NCCL the bytes are "
        "copied to the GPU and back. Numbers fit into a tensor, which takes one collective; "
        "everything else can be gathered when it is logged."
    ),
    gain_note=(
        "The steps are replayed with one call with a tensor in place of both calls of each object, "
        "without pickling the object and without unpickling what all ranks sent. Not predicted if "
        "pickling was not recorded; other tools do not record it."
    ),
    fix=(
        "import torch.distributed as dist\n\n"
        "values = torch.tensor(YOUR_NUMBERS)  # on the GPU if the group is NCCL's\n"
        "gathered = [torch.empty_like(values) for _ in range(dist.get_world_size())]\n"
        "dist.all_gather(gathered, values)"
    ),
    edit=_edit,
    source="https://github.com/NVIDIA/Model-Optimizer/pull/1111",
)
