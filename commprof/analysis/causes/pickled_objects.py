"""Python objects are pickled and exchanged in training steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.edits.collective_calls import gathered_seldom
from commprof.analysis.causes.facts import Facts, Mask, RankCalls, at_line
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.collectives.kinds import caller
from commprof.analysis.evidence import Figure
from commprof.text import in_bytes, in_ms
from commprof.trace import columns
from commprof.trace.columns import Ints
from commprof.trace.lookup import among
from commprof.trace.schema import OPS

_SIZES = tuple(OPS.index(op) for op in ("all_gather", "broadcast", "all_gather_into_tensor"))
_CONTENT = tuple(
    OPS.index(op)
    for op in ("all_gather", "broadcast", "gather", "scatter", "all_gather_into_tensor")
)
#: For each operation, the function of torch.distributed that sends pickles with it.
_FUNCTIONS = {
    "all_gather": "all_gather_object",
    "all_gather_into_tensor": "all_gather_object",
    "broadcast": "broadcast_object_list",
    "gather": "gather_object",
    "scatter": "scatter_object_list",
}
#: Arguments of these functions in a fix.
_ARGUMENTS = {
    "all_gather_object": "YOUR_OUTPUTS, YOUR_OBJECT",
    "broadcast_object_list": "YOUR_OBJECTS, src=0",
    "gather_object": "YOUR_OBJECT, YOUR_OUTPUTS",
    "scatter_object_list": "YOUR_OUTPUTS, YOUR_OBJECTS",
}
#: Pickles of up to this size may hold a few numbers, which fit into a tensor.
_NUMBERS_BYTES = 2**12
#: Least number and least fraction of the steps that exchange objects. In a few steps, an evaluation
#: may gather its results.
_LEAST_STEPS, _LEAST_FRACTION = 4, 0.15
_INCLUDED = {True: "pickling included", False: "pickling not included"}
#: Folder of torch in the paths of frames, and the file of torch.distributed.checkpoint.save.
_TORCH, _CHECKPOINT = "-packages/torch/", "distributed/checkpoint/state_dict_saver.py"
_OF_COLLECTIVES = ("distributed_c10d.py", "c10d_logger.py")
_FIX_OF_LIBRARIES = (
    "if YOUR_STEP % 100 == 0:  # only in steps that use what was exchanged\n"
    "    YOUR_CALL()  # the call at this line, in which torch exchanges objects"
)
_FIX_OF_CHECKPOINTS = (
    "import torch.distributed.checkpoint as dcp\n\n"
    "if YOUR_STEP % 1000 == 0:  # or in the background, by dcp.async_save\n"
    "    dcp.save(YOUR_STATE, checkpoint_id=YOUR_PATH)\n"
    "# for many tensors and ranks, with plans that are sent once:\n"
    "# planner=dcp.DefaultSavePlanner(enable_plan_caching=True)"
)
_FIX_OF_KEPT_PLANS = (
    "import torch.distributed.checkpoint as dcp\n\n"
    "if YOUR_STEP % 1000 == 0:  # seldom enough for the job to lose little\n"
    "    dcp.save(YOUR_STATE, checkpoint_id=YOUR_PATH, planner=YOUR_PLANNER)\n"
    "# or in the background: dcp.async_save"
)
_KEEPS_PLANS = "enable_plan_caching"
_FIX_OF_BROADCASTS = (
    "import torch.distributed as dist\n\n"
    "values = torch.tensor(YOUR_NUMBERS)  # on the GPU if the group is NCCL's\n"
    "dist.broadcast(values, src=0)"
)


def _dtype(calls: RankCalls, name: str) -> int:
    names = list(calls.trace.metadata.get("dtypes", ()))
    return names.index(name) if name in names else -1


def _contents(calls: RankCalls) -> Ints:
    """Returns the rows of the calls that send pickles.

    c10d exchanges objects in at least two collectives of one group: first the sizes of the pickles
    as 64-bit integers, then the bytes.
    """
    table = calls.table
    content = (table.dtype == _dtype(calls, "Byte")) & among(table.op, *_CONTENT)
    size = (table.dtype == _dtype(calls, "Long")) & among(table.op, *_SIZES)
    rows = np.flatnonzero(content[1:] & size[:-1] & (table.group[1:] == table.group[:-1])) + 1
    return rows.astype(np.int64)


def of_objects(calls: RankCalls) -> Mask:
    """True for the calls that exchange pickled objects or the sizes of pickles."""
    mask = np.zeros(len(calls.table), dtype=bool)
    rows = _contents(calls)
    mask[rows] = mask[rows - 1] = True
    return mask


def _exchanging_file(calls: RankCalls, rows: Ints) -> str:
    """Returns the file of torch that makes these exchanges, as "distributed/x.py".

    Empty if the script calls the object functions itself, if several files make the exchanges, or
    if no stacks were recorded.
    """
    numbers = np.unique(columns.stacks(calls.trace, calls.table.op_id[rows]))
    files = {_outermost(calls.trace.stacks.get(int(number), ())) for number in numbers[numbers > 0]}
    return files.pop() if len(files) == 1 else ""


def _outermost(frames: Sequence[str]) -> str:
    """Returns the file of torch that the script calls; "" if it calls a collective itself."""
    if any(_CHECKPOINT in frame for frame in frames):
        return _CHECKPOINT
    inside = frames[: frames.index(caller(frames))] if frames else ()
    called = next((frame for frame in reversed(inside) if _TORCH in frame), "")
    file = called.rpartition(_TORCH)[2].rpartition(":")[0]
    return "" if file.endswith(_OF_COLLECTIVES) else file


@dataclass(frozen=True)
class _Exchanges:
    """All exchanges of objects by one rank in measured steps."""

    removed: Removed
    #: Total time of all exchanges, from pickling to unpickling.
    total_ns: float
    #: True if ``removed`` and ``total_ns`` include pickling.
    is_whole: bool


def _exchanges(facts: Facts, position: int, is_replaced: bool) -> _Exchanges:
    """Finds the exchanges of a rank.

    ``is_replaced``: True if the fix replaces each exchange by a call with a tensor, which is
    assumed to take as long as the call that sends the size. False if the fix removes the exchanges.
    """
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
    # Assumed times of pickling may reach into the next exchange.
    edges = np.maximum.accumulate(edges.reshape(-1))
    total_ns = (edges[1::2] - edges[::2]).sum() + (size_end_ns - issue_ns).sum()
    if is_replaced:
        removed = Removed(second, edges[::2], edges[1::2])
    else:
        both = second.copy()
        both[rows - 1] = True
        removed = Removed(both, edges[::4], edges[3::4])
    return _Exchanges(removed, float(total_ns), pickling is not None)


def _pickling_ns(facts: Facts, position: int, rows: Ints) -> tuple[Ints, Ints] | None:
    """Returns the times of pickling before each exchange and of unpickling after it, in ns.

    Exchanges after the last recorded pickling get the median time. None if no pickling was
    recorded.

    ``rows``: rows of the calls that send the pickles.
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


def _steps(calls: RankCalls, mask: Mask) -> Ints:
    return np.unique(calls.step[mask])


def _how_often(calls: RankCalls, mask: Mask) -> str:
    steps = _steps(calls, mask)
    if len(steps) == len(calls.begin_ns):
        return "in every step"
    gaps = np.diff(steps)
    if (gaps == gaps[0]).all():
        return f"every {int(gaps[0])} steps"
    return f"in {len(steps)} of {len(calls.begin_ns)} steps"


def _rule(facts: Facts) -> Sighting | None:
    least = max(_LEAST_STEPS, _LEAST_FRACTION * facts.steps)
    masks = facts.on_all_ranks(
        lambda calls: (calls, of_objects(calls) & (calls.step >= 0)),
        lambda objects: len(_steps(*objects)) >= least,
    )
    if not masks:
        return None
    if facts.first.more_forwards(_steps(*masks[0])) > 0:
        return None  # these steps contain an evaluation
    first, rows = facts.first, _contents(facts.first)
    rows = rows[first.step[rows] >= 0]
    mean_bytes = float(first.size_bytes[rows].mean())
    name = _FUNCTIONS[OPS[int(first.table.op[rows[-1]])]]
    line, how_often = first.line(masks[0][1]), _how_often(*masks[0])
    file = _exchanging_file(first, rows)
    is_seldom = bool(file) or mean_bytes > _NUMBERS_BYTES or bool(_in_few_steps(facts, line))
    exchanges = [_exchanges(facts, position, not is_seldom) for position in range(len(masks))]
    share = facts.share([of_rank.total_ns for of_rank in exchanges])
    if not share >= WORTH_NAMING:
        return None
    is_whole = all(of_rank.is_whole for of_rank in exchanges)
    ms = facts.per_step_ms([of_rank.total_ns for of_rank in exchanges])
    by = f"{name}, by torch's {file}" if file else name
    what = (
        f"torch.distributed.checkpoint{at_line(line)} pickles and exchanges lists of what each "
        f"rank writes, {how_often}: {in_bytes(mean_bytes)} on average"
        if file == _CHECKPOINT
        else f"Python objects are pickled and exchanged {how_often} ({by}){at_line(line)}: "
        f"{in_bytes(mean_bytes)} on average, in at least two collectives each time"
    )
    of_library = _FIX_OF_LIBRARIES
    if file == _CHECKPOINT:
        keeps_plans = facts.script.sets(_KEEPS_PLANS)
        of_library = _FIX_OF_KEPT_PLANS if keeps_plans else _FIX_OF_CHECKPOINTS
    return Sighting(
        f"{what}. This takes {in_ms(ms)} per step, {_INCLUDED[is_whole]}.",
        share if is_whole else math.nan,
        saving_without(facts, [of_rank.removed for of_rank in exchanges]) if is_whole else None,
        line,
        of_library if file else _fix(name, mean_bytes),
    )


def _fix(name: str, mean_bytes: float) -> str:
    """Returns a fix for objects of this size; empty to use ``CAUSE.fix``."""
    if mean_bytes > _NUMBERS_BYTES:
        return (
            "if YOUR_STEP % 100 == 0:  # only in steps that use what was exchanged\n"
            f"    torch.distributed.{name}({_ARGUMENTS[name]})"
        )
    return _FIX_OF_BROADCASTS if name == _FUNCTIONS["broadcast"] else ""


def _in_few_steps(facts: Facts, line: str) -> str:
    """Returns the script's lines with gathers in every hundredth step only; empty if not possible.

    Broadcasts and scatters are not changed, because their results are used immediately.
    """
    return gathered_seldom(facts.script, line, ("all_gather_object", "gather_object"), every=100)


CAUSE = CatalogueCause(
    id="pickled-objects",
    title="Python objects are pickled and exchanged in training steps",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        f"In at least {_LEAST_FRACTION:.0%} of the steps, and in at least {_LEAST_STEPS} steps, a "
        "collective of 64-bit integers is followed immediately by a collective of bytes in the "
        "same group. `all_gather_object`, `gather_object` and `broadcast_object_list` issue such "
        f"pairs. The pairs, and pickling if it was recorded, take at least {WORTH_NAMING:.0%} of "
        "all time. The cause is not named if the steps with such pairs have more forward passes "
        "than other steps, because such steps contain an evaluation."
    ),
    why=(
        "The object functions of torch.distributed pickle an object, exchange the size of the "
        "pickle, exchange its bytes, and unpickle the objects of all ranks. With NCCL, the bytes "
        "are also copied to the GPU and back. Numbers fit into a tensor, which needs only one "
        "collective. Other objects can be gathered less often, for example when they are logged. "
        "Some functions of torch exchange objects too: each `torch.distributed.checkpoint.save` "
        "exchanges lists of what the ranks write. If a slice of a tensor is pickled, the memory of "
        "the whole tensor is pickled: pickle a `clone()` of the slice instead."
    ),
    gain_note=(
        "If the fix exchanges objects in few steps, the steps are replayed without the calls, "
        "pickling and unpickling. If the fix replaces a pickle of at most "
        f"{_NUMBERS_BYTES // 2**10} KiB by a tensor, the steps are replayed without the calls that "
        "send the bytes of pickles, and without pickling. Work of the script that makes or uses "
        "the objects stays in the replay. The time for writing a checkpoint is not counted, so "
        "fewer checkpoints save more time than predicted. Not predicted if pickling was not "
        "recorded, as in recordings of other tools."
    ),
    fix=(
        "import torch.distributed as dist\n\n"
        "values = torch.tensor(YOUR_NUMBERS)  # on the GPU if the group is NCCL's\n"
        "gathered = [torch.empty_like(values) for _ in range(dist.get_world_size())]\n"
        "dist.all_gather(gathered, values)"
    ),
    edit=lambda facts, sighting: _in_few_steps(facts, sighting.line),
    source="https://github.com/NVIDIA/Model-Optimizer/pull/1111",
)
