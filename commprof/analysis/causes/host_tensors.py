"""Tensors of the host are exchanged in a job that also exchanges tensors of devices."""

from __future__ import annotations

from commprof.analysis.causes.catalogue_cause import WORTH_NAMING, CatalogueCause, Sighting
from commprof.analysis.causes.edits.collective_calls import moved_to_device
from commprof.analysis.causes.facts import Facts, Mask, RankCalls, at_line
from commprof.analysis.evidence import Figure
from commprof.text import counted, in_bytes, in_ms


def _on_host(calls: RankCalls) -> Mask:
    mask: Mask = ~calls.on_device & calls.of_script & (calls.step >= 0) & (calls.size_bytes > 0)
    return mask


def _rule(facts: Facts) -> Sighting | None:
    if not all(bool((calls.on_device & (calls.step >= 0)).any()) for calls in facts.ranks):
        return None
    masks = [_on_host(calls) for calls in facts.ranks]
    number = facts.first.per_step(masks[0])
    if number < 1:
        return None
    blocked = [calls.blocked_ns(mask) for calls, mask in zip(facts.ranks, masks, strict=True)]
    share = facts.share(blocked)
    if not share >= WORTH_NAMING:
        return None
    first, mask = facts.first, masks[0]
    line = first.line(mask)
    ms = facts.per_step_ms(blocked)
    return Sighting(
        f"Each step exchanges tensors of the host in {counted(round(number), 'collective')} "
        f"({in_bytes(float(first.size_bytes[mask].mean()))} on average){at_line(line)}. The ranks "
        f"wait {in_ms(ms)} for this, although they also exchange tensors of their devices.",
        share,
        None,
        line,
    )


CAUSE = CatalogueCause(
    id="host-tensors",
    title="Tensors of the host are exchanged in a job on devices",
    needs=(Figure.CALLS,),
    rule=_rule,
    looks_like=(
        "The ranks exchange tensors of devices. In a typical step, the script also exchanges "
        "tensors of the host, outside of forward and backward. The training thread waits for the "
        f"collectives on tensors of the host for at least {WORTH_NAMING:.0%} of the step."
    ),
    why=(
        "A group with the backend `cpu:gloo,cuda:nccl`, or a gloo group in addition to the NCCL "
        "group, sends tensors of the host over TCP. If a loss is moved to the host before it is "
        "reduced, the host also has to wait for the GPU. A reduction on the GPU uses NVLink or "
        "InfiniBand, and the host does not have to wait."
    ),
    gain_note=(
        "Not predicted, because the run does not show how long the calls take on the devices."
    ),
    fix=(
        "value = YOUR_TENSOR.cuda()  # reduce on the GPU, read the result later\n"
        "torch.distributed.all_reduce(value)"
    ),
    edit=lambda facts, sighting: moved_to_device(facts.script, sighting.line),
    source="https://github.com/vllm-project/vllm/pull/24105",
)
