"""The gradient of a huge embedding is ready last, so no compute hides its exchange."""

from __future__ import annotations

import numpy as np

from commprof.analysis.causes.catalogue_cause import CatalogueCause, Sighting
from commprof.analysis.causes.edits.model_settings import with_settings
from commprof.analysis.causes.facts import Facts, Mask, RankCalls
from commprof.analysis.evidence import Figure
from commprof.text import in_bytes, in_ms
from commprof.trace import columns

#: One parameter must hold at least this fraction of all gradients.
_HALF = 0.5
#: A smaller embedding is not worth a sparse gradient.
_LEAST_BYTES = 2**20
#: Waiting for the bucket of this parameter must take at least this fraction of the step.
_EXPOSED = 0.1


def _last(calls: RankCalls) -> Mask:
    """Returns a mask of the last bucket of each backward pass."""
    table = calls.table
    rows = np.flatnonzero(
        np.isin(table.graph_task, columns.finalizations(calls.trace).span.key) & (calls.step >= 0)
    )
    mask = np.zeros(len(table), dtype=bool)
    if len(rows):
        _, first = np.unique(table.graph_task[rows][::-1], return_index=True)
        mask[rows[::-1][first]] = True
    return mask


def _rule(facts: Facts) -> Sighting | None:
    if facts.ddp_models != 1 or not facts.ddp_logs:
        return None
    sizes = [int(size) for size in facts.ddp_logs[0].get("parameter_bytes", ())]
    sparse = facts.ddp_logs[0].get("sparse_modules")
    if len(sizes) < 2 or sparse or max(sizes) < max(_HALF * sum(sizes), _LEAST_BYTES):
        return None
    masks = [_last(calls) for calls in facts.ranks]
    if not all(mask.any() for mask in masks):
        return None
    if float(np.median(facts.first.size_bytes[masks[0]])) < max(sizes):
        return None
    exposed = [
        float(calls.exposed_ns[mask].sum()) for calls, mask in zip(facts.ranks, masks, strict=True)
    ]
    share = facts.share(exposed)
    if share < _EXPOSED:
        return None
    ms = facts.per_step_ms(exposed)
    return Sighting(
        f"One parameter of {in_bytes(max(sizes))} holds {max(sizes) / sum(sizes):.0%} of the "
        "gradients. This gradient is ready last, as for an embedding at the model's input. No "
        f"compute is left to hide the exchange, which delays the step by {in_ms(ms)}.",
        share,
    )


def _edit(facts: Facts) -> str:
    changed = with_settings(facts.script, ("Embedding",), sparse=True)
    if not changed:
        return ""
    return (
        "# not over gloo, where torch 2.13 may crash with sparse gradients;\n"
        f"# SGD, Adagrad and SparseAdam take sparse gradients, Adam does not\n{changed}"
    )


CAUSE = CatalogueCause(
    id="late-embedding",
    title="The gradient of a huge embedding is exchanged last, with nothing to hide it",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        f"One parameter of at least {_LEAST_BYTES // 2**20} MiB has at least {_HALF:.0%} of the "
        "bytes that the only DDP model reduces. The last bucket of the backward passes contains "
        "this parameter, and the training thread waits for this bucket for at least "
        f"{_EXPOSED:.0%} of the step."
    ),
    why=(
        "Backward computes the gradient of the input embedding last, so the exchange of this "
        "gradient begins when backward is over. A batch uses few rows of the embedding. With "
        "`sparse=True`, only the gradients of these rows are sent, and torch.optim.SparseAdam "
        "updates only these rows. A very large embedding can be divided over the ranks instead. "
        "With sparse gradients over gloo, torch 2.13.0 crashes with a segmentation fault about "
        "once in 20,000 steps, also without commprof. Over gloo, divide the embedding."
    ),
    gain_note=("Not predicted, because the number of rows that a batch touches is not recorded."),
    fix=(
        "# not over gloo, where torch 2.13 may crash with sparse gradients\n"
        "embedding = torch.nn.Embedding(YOUR_ROWS, YOUR_WIDTH, sparse=True)\n"
        "sparse = torch.optim.SparseAdam(embedding.parameters())"
    ),
    edit=lambda facts, _: _edit(facts),
    source="https://github.com/pytorch/pytorch/pull/22037",
)
