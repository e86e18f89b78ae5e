"""Many small tensors, such as gradients, are exchanged one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commprof.analysis.causes.bursts import Bursts, bursts
from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.facts import Facts, Mask, RankCalls, at_line
from commprof.analysis.causes.gain import Removed, saving_without
from commprof.analysis.causes.joined_calls import call_cost
from commprof.analysis.causes.pickled_objects import of_objects
from commprof.analysis.causes.scalars_one_by_one import edit_joined, small
from commprof.analysis.evidence import Figure
from commprof.analysis.named_cause import Saving
from commprof.text import counted, in_bytes
from commprof.trace.exchanged import trained_by
from commprof.trace.schema import OPS, REDUCE_OPS

#: Least number of calls that follow one another.
_LEAST = 4
#: Largest mean size of the calls. Larger calls take mostly transfer time, which joining does not
#: save.
_MEAN_BYTES = 2**20
#: The tensors of a step are as large as the model if they have at least this fraction of the bytes
#: of the trained parameters.
_GRADIENTS = 0.5
#: Start of the message if the tensors of a step are as large as the model.
_SUBJECTS = {
    "all_reduce": "Tensors that together are as large as the model are all-reduced",
    "reduce": "Tensors that together are as large as the model are reduced",
    "broadcast": "Tensors that together are as large as the model are broadcast",
    "all_gather": "Tensors that together are as large as the model are gathered",
    "all_gather_into_tensor": "Tensors that together are as large as the model are gathered",
}
#: Start of the message if the calls also lie between backward and the update.
_OF_GRADIENTS = {
    "all_reduce": "The gradients are averaged",
    "reduce": "The gradients are each summed on one rank",
}


def _tensors(calls: RankCalls, ops: Sequence[str]) -> Mask:
    mask: Mask = calls.chosen(ops) & calls.of_script & ~of_objects(calls)
    return mask


def _seen(calls: RankCalls, ops: Sequence[str]) -> Bursts:
    return bursts(calls, _tensors(calls, ops), _LEAST)


def _longest_first(calls: RankCalls) -> list[str]:
    in_series = _seen(calls, tuple(_SUBJECTS)).all_calls
    of_ops = {
        op: calls.blocked_ns(in_series & (calls.table.op == OPS.index(op))) for op in _SUBJECTS
    }
    return sorted((op for op in of_ops if of_ops[op] > 0), key=of_ops.__getitem__, reverse=True)


def _rule(facts: Facts) -> Sighting | None:
    of_ops = (_of_one_op(facts, op) for op in _longest_first(facts.first))
    return next(filter(None, of_ops), None)


def _of_one_op(facts: Facts, op: str) -> Sighting | None:
    first = _seen(facts.first, (op,))
    size = first.calls.size_bytes[first.row]
    if not len(size) or small(first.calls)[first.row].all() or size.mean() > _MEAN_BYTES:
        return None
    rows = facts.on_all_ranks(
        lambda calls: _seen(calls, (op,)), lambda row: row.calls.per_step(row.all_calls) >= _LEAST
    )
    if not rows:
        return None
    spans = [calls.removed() for calls in rows]
    share = facts.share([float((span.end_ns - span.begin_ns).sum()) for span in spans])
    if share < WORTH_NAMING:
        return None
    trained = trained_by(first.calls.trace.metadata)
    per_step = float(size.sum()) / facts.steps
    is_all = trained is not None and per_step >= _GRADIENTS * trained.parameter_bytes > 0
    line = first.calls.line(first.all_calls)
    calls_per_step = round(first.calls.per_step(first.all_calls))
    mean_bytes = float(size.mean())
    of_gradients = (
        is_all and op in _OF_GRADIENTS and bool(first.calls.before_update[first.row].all())
    )
    subjects = _OF_GRADIENTS if of_gradients else _SUBJECTS
    what = subjects[op] if is_all else "Tensors are exchanged"
    number = counted(calls_per_step, f"{op} call")
    return Sighting(
        f"{what} one by one{at_line(line)}: {number} per step ({in_bytes(mean_bytes)} on average, "
        f"{in_bytes(calls_per_step * mean_bytes)} in all). The script waits for each call before "
        "it issues the next.",
        share,
        _saving(facts, rows, spans),
        line,
        _fix(op, first, facts.world.world_size, of_gradients),
        op=op,
    )


def _fix(op: str, of: Bursts, world_size: int, of_gradients: bool) -> str:
    """Returns code that joins the tensors of these calls; empty to use the cause's own ``fix``."""
    table, trace = of.calls.table, of.calls.trace
    group = trace.groups.get(int(table.group[of.row[0]]))
    whole = group is None or group.size == world_size
    roots, kinds = np.unique(table.peer[of.row]), np.unique(table.reduce_op[of.row])
    is_named = len(kinds) == 1 and int(kinds[0]) < len(REDUCE_OPS)
    kind = REDUCE_OPS[int(kinds[0])] if is_named else ""
    if op == "all_reduce" and of_gradients and whole and kind == "sum":
        return ""
    arguments = ["flat"]
    if op in ("broadcast", "reduce"):
        side = {"broadcast": "src", "reduce": "dst"}[op]
        root = int(roots[0]) if len(roots) == 1 else "YOUR_ROOT"
        arguments.append(f"{side}={root}" if whole else f"group_{side}={root}")
    if op in ("all_reduce", "reduce") and kind not in ("sum", ""):
        arguments.append(f"op=torch.distributed.ReduceOp.{kind.upper()}")
    if not whole:
        arguments.append("group=YOUR_GROUP")
    of_root = " and one root" * (len(roots) > 1 and op in ("broadcast", "reduce"))
    lines = [
        f"tensors = list(YOUR_TENSORS)  # the calls' tensors, all of one type{of_root}",
        "flat = torch.cat([tensor.reshape(-1) for tensor in tensors])",
    ]
    if op in ("all_gather", "all_gather_into_tensor"):
        return "\n".join(
            [
                *lines,
                f"ranks = torch.distributed.get_world_size({'' if whole else 'YOUR_GROUP'})",
                "gathered = flat.new_empty(ranks, flat.numel())  # one row per rank",
                f"torch.distributed.all_gather_into_tensor({', '.join(['gathered', *arguments])})",
            ]
        )
    return "\n".join(
        [
            *lines,
            f"torch.distributed.{op}({', '.join(arguments)})",
            "for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors])):",
            "    tensor.copy_(part.view_as(tensor))",
        ]
    )


def _saving(facts: Facts, rows: list[Bursts], spans: list[Removed]) -> Saving | None:
    cost = call_cost(facts, [calls.all_calls for calls in rows])
    if cost is None:
        return None
    return saving_without(facts, spans, [calls.joined_ns(cost) for calls in rows])


CAUSE = CatalogueCause(
    id="tensors-one-by-one",
    title="Many small tensors are exchanged one by one",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        f"In a typical step, at least {_LEAST} calls of one operation and group follow one another "
        "outside of forward and backward, and the training thread waits for each call. The median "
        "wait for a call is at least as long as the median work between two calls. The mean size "
        f"of the calls is at most {_MEAN_BYTES // 2**20} MiB, and not all calls are as small as "
        "those of `scalars-one-by-one`. The time from the end of the first call to the end of the "
        f"last is at least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "Even a small call takes the latency of the network, and wakes the threads of all ranks. "
        "The usual case is a loop over `model.parameters()` that reduces each gradient. "
        "DistributedDataParallel joins gradients into buckets instead, and sends the buckets while "
        "backward computes. Other tensors can be copied into one buffer."
    ),
    gain_note=(
        "The steps are replayed with one call in place of each series of calls. The time of this "
        "call is computed from the times and bytes of the run's calls. Copies are not counted. Not "
        "predicted if all calls have nearly the same size, or if their times vary too much, "
        "because latency and transfer can then not be distinguished."
    ),
    fix=(
        "grads = [p.grad for p in YOUR_MODEL.parameters() if p.grad is not None]\n"
        "flat = torch.cat([grad.reshape(-1) for grad in grads])\n"
        "torch.distributed.all_reduce(flat)\n"
        "flat /= torch.distributed.get_world_size()  # in place of your own division\n"
        "for grad, part in zip(grads, flat.split([g.numel() for g in grads])):\n"
        "    grad.copy_(part.view_as(grad))"
    ),
    edit=edit_joined,
    source="https://github.com/Denys88/rl_games/pull/369",
)
