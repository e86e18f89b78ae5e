"""One rank evaluates, saves or logs alone, while the other ranks wait for it."""

from __future__ import annotations

import ast

import numpy as np

from commprof.analysis.causes.catalogue_cause import (
    FEW_STEPS,
    WORTH_NAMING,
    CatalogueCause,
    Sighting,
)
from commprof.analysis.causes.edits.script import Site
from commprof.analysis.causes.facts import Facts
from commprof.analysis.causes.turns import LEAST_MS, LongSteps, long_steps, saving_without
from commprof.analysis.evidence import Figure
from commprof.text import in_ms, percent_digits
from commprof.trace.lookup import row_containing
from commprof.trace.schema import PHASES
from commprof.units import ns_to_ms

#: One rank must cause at least this share of the waiting in long steps.
_MOSTLY = 0.8
#: Least number of long steps of this rank, and their largest fraction of all steps. A rank with
#: more long steps is a slow rank.
_LEAST, _MOST_SHARE = 2, 0.5
_SAVING = ("save", "save_checkpoint", "save_model", "save_pretrained", "save_state")
#: ``image.save`` saves a picture. So a method ``save`` counts as a checkpoint only if it belongs to
#: one of these names, or if the call mentions a state dict.
_SAVERS = ("torch", "fabric", "accelerator", "checkpoint", "checkpointer", "dcp", "dist_cp")
#: Functions with one of these parts in their names may write a checkpoint.
_WRITING = ("save", "checkpoint", "ckpt")
#: Functions with exactly one of these names may write a checkpoint, too.
_WRITERS = ("dump", "dumps", "write", "write_bytes", "tofile", "to_pickle")
_EVALUATING = ("eval", "evaluate", "evaluation", "validate", "validation", "test")
#: Unusual work is the rank's work in its long steps beyond its median work. At least this fraction
#: of the unusual work must lie outside of backward, loading and updates.
_OUTSIDE = 0.7
#: If more than this fraction of the long steps directly follow another long step, something slowed
#: the rank for a while.
_IN_SERIES = 0.5
#: Unusual work counts as a checkpoint if at least this fraction of it is calls of ``torch.save``.
_MOST_OF = 0.5
#: The rank is not alone if the other ranks do more than this fraction of its unusual work in the
#: same steps.
_SHARED = 0.5


def _rule(facts: Facts) -> Sighting | None:
    steps = long_steps(facts)
    if steps is None or steps.share(facts.step_ns) < WORTH_NAMING:
        return None
    by_rank = steps.cost_ns.sum(axis=1)
    position = int(np.argmax(by_rank))
    number = int(steps.is_long[position].sum())
    if by_rank[position] < _MOSTLY * by_rank.sum() or not number >= _LEAST:
        return None
    if number > _MOST_SHARE * facts.steps or not _is_outside(steps, position):
        return None
    if _is_shared(steps, position) or _is_one_series(steps, position):
        return None
    rank = facts.seen.ranks[position]
    passes = facts.ranks[position].more_forwards(np.flatnonzero(steps.is_long[position]))
    ms = ns_to_ms(float(by_rank[position]) / number)
    evaluates = passes > 0
    has_saved = _has_saved(facts, steps, position)
    saves = not evaluates and (_saves(facts) if has_saved is None else has_saved)
    divided, whole = (
        saving_without(facts, steps, [position], is_divided=is_divided)
        for is_divided in (True, False)
    )
    what, instead = "works alone (a checkpoint, a log, an evaluation)", ""
    prepares = not evaluates and has_saved is None and _writes_nothing(facts)
    if prepares:
        what = "works alone (an evaluation, a log, data that it prepares)"
    elif evaluates:
        what = f"evaluates alone ({passes:.0f} more forward passes)"
    elif saves:
        how = "the script's loop saves a checkpoint" if has_saved is None else "in torch.save"
        what = f"works alone ({how})"
        instead = (
            " Writing the checkpoint in the background saves more than dividing the work over the "
            f"ranks, which saves {percent_digits(divided.saved.value)} % of the step."
        )
    else:
        instead = (
            " If the work is a checkpoint, writing it in the background saves up to "
            f"{percent_digits(whole.saved.value)} % of the step, more than dividing the work over "
            "the ranks."
        )
    return Sighting(
        f"Rank {rank} {what} {_how_often(steps, position)}, and the other ranks wait for it, "
        f"{in_ms(ms)} each time.{instead}",
        steps.share(facts.step_ns),
        whole if saves else divided,
        fix=_FIX if evaluates else _FIX_OF_PREPARING if prepares else ASYNCHRONOUS,
    )


def _has_saved(facts: Facts, steps: LongSteps, position: int) -> bool | None:
    """True if the rank's unusual work in long steps is mostly calls of ``torch.save``.

    None if no call of ``torch.save`` was recorded: other functions may save, too.
    """
    begin_ns, end_ns = facts.noted_ns(position, "saves")
    if not len(begin_ns):
        return None
    calls = facts.ranks[position]
    is_long = steps.is_long[position]
    in_long = is_long[row_containing(calls.begin_ns, calls.end_ns, begin_ns)]
    unusual_ns = np.maximum(steps.extra_ns[position][is_long], 0.0).sum()
    return bool((end_ns - begin_ns)[in_long].sum() >= _MOST_OF * unusual_ns)


def _saves(facts: Facts) -> bool:
    saving, evaluating = (
        [site for site in facts.script.places(*names) if site.loop is not None]
        for names in (_SAVING, _EVALUATING)
    )
    return any(map(_is_of_model, saving)) and not evaluating


def _writes_nothing(facts: Facts) -> bool:
    """True if the script has its own training loop and calls no function that may save.

    False if some of the script's own files were not read, because they may save.
    """
    script = facts.script
    if not script.places("backward") or script.has_unread_imports:
        return False  # a library's loop may save, too
    names = {source.called(call) for source in script.sources for call in source.calls()}
    return names.isdisjoint(_WRITERS) and not any(
        part in name.lower() for name in names for part in _WRITING
    )


def _is_of_model(site: Site) -> bool:
    """False if this call may save a picture, such as ``image.save``."""
    function = site.call.func
    if not isinstance(function, ast.Attribute) or function.attr != "save":
        return True
    receiver = site.source.segment(function.value).rpartition(".")[2]
    return receiver in _SAVERS or "state_dict" in site.source.segment(site.call)


def _is_shared(steps: LongSteps, position: int) -> bool:
    extra = steps.extra_ns[:, steps.is_long[position]].sum(axis=2)
    others = np.delete(extra, position, axis=0).mean(axis=0)
    return bool(np.median(others) > _SHARED * np.median(extra[position]))


def _is_one_series(steps: LongSteps, position: int) -> bool:
    gaps = np.diff(np.flatnonzero(steps.is_long[position]))
    return bool((gaps == 1).mean() > _IN_SERIES)


def _is_outside(steps: LongSteps, position: int) -> bool:
    extra = np.maximum(steps.extra_ns[position][steps.is_long[position]], 0.0).sum(axis=0)
    outside = extra[PHASES.index("other")] + extra[PHASES.index("forward")]
    return bool(outside >= _OUTSIDE * extra.sum())


def _how_often(steps: LongSteps, position: int) -> str:
    rows = np.flatnonzero(steps.is_long[position])
    gaps = np.diff(rows)
    if len(gaps) >= 2 and (gaps == gaps[0]).all():
        return f"every {int(gaps[0])} steps"
    return f"in {len(rows)} of {steps.is_long.shape[1]} steps"


_FIX = (
    "sampler = torch.utils.data.distributed.DistributedSampler(YOUR_DATA)\n"
    "loader = torch.utils.data.DataLoader(YOUR_DATA, sampler=sampler)\n"
    "total = YOUR_EVALUATION(YOUR_MODEL.module, loader)  # sums of this part\n"
    "torch.distributed.all_reduce(total)"
)
_FIX_OF_PREPARING = (
    "import torch.distributed as dist\n\n"
    "# each rank evaluates, or prepares, a part\n"
    "part = YOUR_ITEMS[dist.get_rank() :: dist.get_world_size()]\n"
    "# sums of an evaluation: dist.all_reduce(YOUR_SUMS)\n"
    "# what all ranks need alike, as an order of samples: draw it from one seed\n"
    "generator = torch.Generator().manual_seed(YOUR_SEED + YOUR_EPOCH)\n"
    "# a log: every 1000 steps, or from a thread"
)
#: ``async_save`` must use a group of its own. In the group of the gradients, the ranks would hang.
ASYNCHRONOUS = (
    "# a checkpoint: every rank calls this, and writes its part in the background\n"
    "from torch.distributed.checkpoint import async_save\n\n"
    'group = torch.distributed.new_group(backend="gloo")  # once; no other calls use it\n'
    "# each checkpoint has its own folder: a job that is killed while it overwrites an\n"
    "# older checkpoint leaves a mixture of both\n"
    'saving = async_save({"model": YOUR_MODEL.state_dict()},\n'
    '                    checkpoint_id=f"{YOUR_FOLDER}/{YOUR_STEP}", process_group=group)\n'
    "# before the next checkpoint: saving.result()\n"
    "# an evaluation: each rank evaluates its part, then all_reduce the sums;\n"
    "# a log: every 1000 steps"
)

CAUSE = CatalogueCause(
    id="rank-alone",
    title="One rank evaluates, saves or logs while the others wait",
    needs=(Figure.SPLIT,),
    rule=_rule,
    looks_like=(
        f"In at least {_LEAST} steps, but at most half of the steps, one rank works far longer "
        f"than usual, by at least {LEAST_MS:g} ms. The extra work lies outside of backward, "
        f"loading and updates. In these steps, the other ranks do at most {_SHARED:.0%} of this "
        "extra work. Most of these steps do not directly follow one another. In long steps, ranks "
        f"wait for at least {WORTH_NAMING:.0%} of all time, at least four fifths of it for this "
        "rank."
    ),
    why=(
        "While only rank 0 works, all other ranks wait in the next exchange and compute nothing. A "
        "long evaluation can even cause a time-out. Evaluation and the preparation of data can be "
        "divided over the ranks. A checkpoint can be written in the background, which saves more "
        "time than dividing it. A log can be written less often."
    ),
    gain_note=(
        "The steps are replayed as if every rank did an equal part of the work. If the work is "
        "saving a checkpoint, the steps are replayed without the work, as if the checkpoint were "
        "written in the background. The copy that is made before such writing, and the cores that "
        "the writing takes from training, are not counted."
    ),
    fix=_FIX,
    source="https://github.com/pytorch/pytorch/issues/54059",
    worth=FEW_STEPS,
)
