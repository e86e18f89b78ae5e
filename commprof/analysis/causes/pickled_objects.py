"""Python objects are pickled and exchanged in every step."""

from __future__ import annotations

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
from commprof.units import ns_to_ms

_SIZES = tuple(OPS.index(op) for op in ("all_gather", "broadcast", "all_gather_into_tensor"))
_CONTENT = tuple(
    OPS.index(op)
    for op in ("all_gather", "broadcast", "gather", "scatter", "all_gather_into_tensor")
)
#: Functions of torch.distributed, by the operation that carries the pickled bytes.
_FUNCTIONS = {
    "all_gather": "all_gather_object",
    "all_gather_into_tensor": "all_gather_object",
    "broadcast": "broadcast_object_list",
    "gather": "gather_object",
    "scatter": "scatter_object_list",
}
#: Their arguments, where the script does not tell them.
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
    """Rows of calls of bytes that follow a call of 64-bit sizes in the same group.

    c10d exchanges an object as two collectives: its pickle's size, and the bytes.
    """
    table = calls.table
    content = (table.dtype == _dtype(calls, "Byte")) & among(table.op, *_CONTENT)
    size = (table.dtype == _dtype(calls, "Long")) & among(table.op, *_SIZES)
    rows = np.flatnonzero(content[1:] & size[:-1] & (table.group[1:] == table.group[:-1])) + 1
    return rows.astype(np.int64)


def of_objects(calls: RankCalls) -> Mask:
    """True for the calls that exchange pickled objects, their sizes among them."""
    mask = np.zeros(len(calls.table), dtype=bool)
    rows = _contents(calls)
    mask[rows] = mask[rows - 1] = True
    return mask


def _rule(facts: Facts) -> Sighting | None:
    of_ranks = facts.on_all_ranks(
        lambda calls: (calls, of_objects(calls) & (calls.step >= 0)),
        lambda objects: objects[0].per_step(objects[1]) >= 2,
    )
    if not of_ranks:
        return None
    removed, blocked = [], []
    for calls, mask in of_ranks:
        rows = _contents(calls)
        rows = rows[(calls.step[rows] >= 0) & (calls.wait_end_ns[rows] > 0)]
        # One call of a tensor remains, in place of the sizes.
        second = np.zeros(len(mask), dtype=bool)
        second[rows] = True
        begin = np.maximum(calls.wait_end_ns[rows - 1], calls.table.issue_ns[rows - 1])
        removed.append(Removed(second, begin, calls.wait_end_ns[rows]))
        blocked.append(float((calls.wait_end_ns[rows] - calls.table.issue_ns[rows - 1]).sum()))
    share = facts.share(blocked)
    if not share >= WORTH_NAMING:
        return None
    first, rows = facts.first, _contents(facts.first)
    rows = rows[first.step[rows] >= 0]
    name = _FUNCTIONS[OPS[int(first.table.op[rows[-1]])]]
    line = first.line(of_ranks[0][1])
    ms = ns_to_ms(sum(blocked) / len(blocked) / facts.steps)
    return Sighting(
        f"Python objects are pickled and exchanged in every step ({name}){at_line(line)}: "
        f"{in_bytes(float(first.size_bytes[rows].mean()))} on average in two collectives each, "
        f"{in_ms(ms)} per step, pickling not included.",
        share,
        saving_without(facts, removed),
        line,
        _fix(name, float(first.size_bytes[rows].mean())),
    )


def _fix(name: str, mean_bytes: float) -> str:
    """Returns the fix for these objects; empty for the cause's own, which is for numbers."""
    if mean_bytes > _NUMBERS_BYTES:
        return (
            "if YOUR_STEP % 100 == 0:  # only in steps that use what was exchanged\n"
            f"    torch.distributed.{name}({_ARGUMENTS[name]})"
        )
    return _FIX_OF_BROADCASTS if name == _FUNCTIONS["broadcast"] else ""


def _edit(facts: Facts, sighting: Sighting) -> str:
    """Gathers in few steps only, as for a log; what is broadcast or scattered is used at once."""
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
        "group, by one of bytes, as `all_gather_object`, `gather_object` and "
        "`broadcast_object_list` issue them; from the issue of the first to the end of the second "
        f"takes at least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "The object functions of torch.distributed pickle the object, exchange the size of the "
        "pickle, then its bytes, and unpickle all of them on each rank. With NCCL the bytes are "
        "copied to the GPU and back. Numbers fit into a tensor, which takes one collective; "
        "everything else can be gathered when it is logged."
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
