"""Advice on what to examine first, and a command that measures the effect of a change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from commprof import invocation
from commprof.analysis.collectives.sharding import BACKWARD, FORWARD, SCATTER, SUM, Sharding
from commprof.analysis.cores import crowded, lacked_cores, no_core_share
from commprof.analysis.evidence import Figure
from commprof.analysis.exchange import (
    Exchange,
    cap_to_try_mb,
    compressible_share,
    way,
)
from commprof.analysis.late.slower_ranks import SlowerRanks
from commprof.analysis.late.stragglers import LateRank, who_waits
from commprof.analysis.mean_step import MeanStep
from commprof.analysis.named_cause import NamedCause
from commprof.analysis.run_command import taken_apart
from commprof.analysis.step.breakdown import WORTH_A_LOOK
from commprof.analysis.step.exposure import HOST_PAUSE
from commprof.analysis.world import WorldResult
from commprof.text import in_bytes, listed
from commprof.units import ns_to_ms

#: Causes that explain why a rank is late. Such a cause comes first, because its fix also saves the
#: waiting for the late rank.
_OF_THE_LATE_RANK = (
    "late-loading",
    "batches-from-one-rank",
    "rank-busier",
    "pipeline-bubble",
)
#: The advice is about a part of the step other than compute if this part takes at least this many
#: times as long as communication.
_FAR_LARGER = 2.0

#: A trial (``commprof run --trial``) is advised if the exchange of gradients takes at least this
#: fraction of the exposed time.
_MOST = 0.5
#: Compressors that the advised trial compares with DDP's own all-reduce.
_CANDIDATES = "fp16,int8,topk:ratio=0.01"
#: Options that the command of a trial does not take over from the run; each has one value.
_REPLACED = (
    *("--nproc", "--world-sizes", "--trial", "--output", "--json", "--steps", "--epochs"),
    *("--overhead-steps", "--strategy", "--price-per-hour", "--price-per", "--mode"),
    "--max-restarts",
)
#: By backend: the environment variable that selects the network interface.
_CHOOSES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}
_MACHINES = ("--nnodes", "--node-rank", "--rdzv-endpoint")


@dataclass(frozen=True)
class NextStep:
    """The first action to take on a run."""

    #: Sentences; empty if there is no advice.
    advice: str
    #: Command to type; empty if no command helps.
    command: str
    #: Id of the cause that the advice is about, as in ``commprof.analysis.causes``; empty for other
    #: advice.
    cause: str = ""
    #: Lines of code, or a setting, that remove the cause; empty for other advice.
    fix: str = ""


def next_step(
    context: Mapping[str, Any],
    world: WorldResult,
    step: MeanStep,
    words: Mapping[str, str],
    exchange: Exchange,
) -> NextStep:
    """Returns advice on the first action for one world size.

    Args:
        context: context of the run, as in ``run.json``.
        world: results of the world size.
        step: the mean step of this world size.
        words: names of the parts of a step, for sentences.
        exchange: findings on what slows down communication at this world size.
    """
    own_part = max((part for part in step.parts_ms if part != "communication"), key=step.share)
    own_work = words[own_part]
    if world.world_size < 2 and world.evidence.recorded.job_size:
        return NextStep("", "")
    apart = world.communication.apart
    if apart is not None and apart.advice:
        cause = next((cause for cause in world.named_causes if cause.is_wrong), None)
        if cause is None:
            return NextStep(apart.advice, "")
        return NextStep(apart.advice, "", cause.id, cause.fix if apart.kind == "nothing" else "")
    if not world.evidence.supports(Figure.EXPOSED):
        return NextStep(*world.evidence.remedy)
    late = rank_to_look_at(context, world, step)
    if (cause := _cause(world, late, step)) is not None:
        return NextStep(cause.told, "", cause.id, cause.fix)
    # Small calls wake many threads, which then wait for cores. But more cores are not the remedy.
    if late is None and exchange.small_calls is None and lacked_cores(world):
        return NextStep(_give_cores(context, world), "")
    if late is None and crowded(context, world) and math.isnan(no_core_share(world)):
        return NextStep(
            "First repeat the run with a core for each thread: this run did not measure whether "
            "ranks waited for cores, and such waiting would lengthen every part of the step.",
            "",
        )
    step_ms = step.step_ms
    little = step.exposed_ms < WORTH_A_LOOK * step_ms
    if little and (lacking := world.evidence.lacking(Figure.NO_CHANGE)):
        return NextStep(
            f"Waiting for communication takes less than {WORTH_A_LOOK:.0%} of a step on the "
            f"recorded ranks; whether other ranks wait is not known: {lacking}. First look at "
            f"{own_work}.",
            "",
        )
    if little:
        return NextStep(
            "Communication is not the bottleneck and needs no change: waiting for communication "
            f"takes less than {WORTH_A_LOOK:.0%} of a step. First look at {own_work}.",
            "",
        )
    if (slower := ranks_to_look_at(context, world, step)) is not None:
        return NextStep(
            f"First find out what delays {slower.named}{_in_phase(slower.phase, 'their')}: "
            f"{time_spent_for(slower, world.world_size, step)}. No change to the communication can "
            "save this time.",
            "",
        )
    if late is not None:
        return NextStep(
            f"{_find_out(world, late)}: {time_spent(late, world.world_size, step)}. No change to "
            "the communication can save this time.",
            "",
        )
    if own_part != "compute" and step.share(own_part) >= _FAR_LARGER * step.share("communication"):
        return NextStep(
            f"First look at {own_work}: it takes {step.share(own_part):.0%} of the step, but "
            f"communication only {step.share('communication'):.0%}.",
            "",
        )
    if exchange.small_calls is None and exchange.link is not None and exchange.idle:
        one = len(exchange.idle) == 1
        chooses = _CHOOSES.get(str(context.get("backend")))
        set_it = f"set {chooses}={exchange.idle[0]}" if chooses else "choose another interface"
        return NextStep(
            f"The hosts communicate over {listed(exchange.link.interfaces)}, while "
            f"{listed(exchange.idle)} {'is' if one else 'are'} idle and not rated slower. "
            f"If this is not on purpose, {set_it}.",
            "",
        )
    cap_mb = cap_to_try_mb(world, step, exchange.serial)
    trial = _change(context, world, exchange, cap_mb)
    if world.communication.sharding is not None:
        trial = _predicted(world.communication.sharding, on_device=world.recording.device_timed > 0)
    if not step.split_ms or step.split_ms["waiting"] <= step.exposed_ms / 2:
        return trial
    balance = _balance(world, step)
    if step.share("transfer") < WORTH_A_LOOK or not trial.advice:
        return NextStep(f"{balance} No change to the communication can save this time.", "")
    return NextStep(f"{balance} {trial.advice}", trial.command)


def _cause(world: WorldResult, late: LateRank | None, step: MeanStep) -> NamedCause | None:
    """Returns the cause to fix first; None if there is none, or if a late rank costs more."""
    cause = next(iter(world.named_causes), None)
    if cause is None or cause.is_wrong or late is None or cause.id in _OF_THE_LATE_RANK:
        return cause
    return cause if cause.weight >= _late_share(late, step) else None


def _change(
    context: Mapping[str, Any], world: WorldResult, exchange: Exchange, cap_mb: int | None
) -> NextStep:
    """Returns advice on the calls with the most exposed time, or the advice to run a trial.

    A trial changes the buckets and the compression of DDP's gradients. So a trial is advised only
    if the exchange of these gradients takes most of the exposed time, or has many small calls.
    """
    small = exchange.small_calls
    if small is not None and not small.of_buckets:
        return NextStep(
            f"First look at the small calls: {small.remedy}. {small.sentence} "
            "Neither compression nor other buckets would shorten them.",
            "",
        )
    if world.communication.no_ddp:
        no_trial = (
            f"commprof's trials change only DDP's own all-reduce, and {world.communication.no_ddp}."
        )
        return NextStep(f"{_longest(world)} {no_trial}".strip(), "")
    if small is None and compressible_share(world) < _MOST:
        return NextStep(_longest(world), "")
    return _with(_first(exchange, cap_mb), _trial(context, world.world_size, cap_mb))


def _longest(world: WorldResult) -> str:
    exposed = sum(row.times.exposed_ms for row in world.communication.collectives)
    if not exposed > 0:
        return ""
    row = world.communication.collectives[0]
    phase = row.phases[0][0] if row.phases else "other"
    outside = " outside of all phases" if phase == "other" else f" in {phase}"
    # Another tool's recording may lack the phase in which the call was issued.
    if world.recording.foreign and phase == "other":
        outside = ""
    op = "kernels of an unknown operation" if row.kind.op == "other" else row.kind.op
    size = f" of {in_bytes(row.total_bytes / row.calls)}" if row.kind.sizes_known else ""
    where = f" at {row.callers[0][0]}" if row.callers else ""
    return (
        f"First look at {op}{size}{outside}{where}: {row.times.exposed_ms / exposed:.0%} of the "
        "exposed time is in these calls."
    )


def _balance(world: WorldResult, step: MeanStep) -> str:
    waiting = f"wait for one another during {step.share('waiting'):.0%} of the step"
    evidence = world.evidence
    most = evidence.most_waited_for
    if world.lateness.late_rank is None and evidence.stands_out and most.one_series:
        return (
            f"First find out what slowed rank {most.rank} {most.one_series}: the ranks {waiting}, "
            f"and rank {most.rank} caused {most.share:.0%} of this waiting, most of it in these "
            "steps. Another process on its host, a slow disk or heat may have slowed it."
        )
    if world.lateness.late_rank is None and evidence.stands_out:
        more = "more steps", "again, with marked steps (profiler.step())"
        again = more[not evidence.steps_marked]
        return (
            f"First record {again}: the ranks {waiting}, and {evidence.stands_out}. If the same "
            "rank stands out again, find out what delays this rank; else balance the work of the "
            "ranks."
        )
    nobody = world.lateness.late_rank is None and evidence.supports(Figure.NOBODY_LATE)
    return (
        f"First balance the work of the ranks: they {waiting}"
        f"{', and no single rank stands out' if nobody else ''}."
    )


def _predicted(found: Sharding, on_device: bool) -> NextStep:
    changes = {
        FORWARD: ("gathering parameters in bf16", ("--gather-dtype", "bf16")),
        BACKWARD: (
            "keeping parameters after forward (which needs more memory)",
            ("--reshard-after-forward", "off"),
        ),
        SCATTER: ("reducing gradients in bf16", ("--reduce-dtype", "bf16")),
        SUM: ("reducing gradients in bf16", ("--reduce-dtype", "bf16")),
    }
    change, options = changes[found.most.part]
    if on_device:  # streams wait in a different order on each rank, so no step can be replayed
        return NextStep(f"The longest waits are for {found.most.part}. Try {change}.", "")
    return NextStep(
        f"The longest waits are for {found.most.part}. To predict the effect of {change}, type:",
        invocation.command("predict", invocation.quoted(found.directory), *options),
    )


def _first(exchange: Exchange, cap_mb: int | None) -> str:
    if exchange.small_calls is not None:
        return "First try larger buckets."
    if exchange.serial:
        return "" if cap_mb is None else "First try smaller buckets, which can be sent sooner."
    if exchange.link is not None:
        slow = f"The link between the hosts is slow for the data of a step: {way(exchange.link)}."
        return f"{slow} Find out whether the network can be faster."
    return ""


def _with(first: str, trial: NextStep) -> NextStep:
    return replace(trial, advice=f"{first} {trial.advice}".strip())


def rank_to_look_at(
    context: Mapping[str, Any], world: WorldResult, step: MeanStep
) -> LateRank | None:
    """Returns the late rank if it is the first thing to look at; else None."""
    late = world.lateness.late_rank
    if late is None or _late_share(late, step) < WORTH_A_LOOK:
        return None
    return late if _is_first(context, world, step, late.phase) else None


def ranks_to_look_at(
    context: Mapping[str, Any], world: WorldResult, step: MeanStep
) -> SlowerRanks | None:
    """Returns the slower ranks if they are the first thing to look at; else None."""
    slower = world.lateness.slower
    if slower is None or slower.share_of(step.step_ms) < WORTH_A_LOOK:
        return None
    return slower if _is_first(context, world, step, slower.phase) else None


def _is_first(
    context: Mapping[str, Any], world: WorldResult, step: MeanStep, phase: str | None
) -> bool:
    if step.exposed_ms < WORTH_A_LOOK * step.step_ms:
        return False
    unsure = crowded(context, world) and math.isnan(no_core_share(world))
    # A lack of cores may explain a late rank, but not a stopped process.
    return phase == HOST_PAUSE or not (unsure or lacked_cores(world))


def _late_share(late: LateRank, step: MeanStep) -> float:
    return ns_to_ms(late.wait_ns) / step.step_ms


def time_spent(late: LateRank, world_size: int, step: MeanStep) -> str:
    """Returns a clause on the fraction of the step that is spent waiting for the late rank."""
    who, several = who_waits(late.waiting_ranks, world_size)
    spend, their = ("spend", "their") if several else ("spends", "its")
    return f"{who} {spend} {_late_share(late, step):.0%} of {their} step waiting for it"


def time_spent_for(slower: SlowerRanks, world_size: int, step: MeanStep) -> str:
    """Returns a clause on the fraction of the step that is spent waiting for the slower ranks."""
    who, several = who_waits(slower.waiting_ranks, world_size, len(slower.ranks))
    spend, their = ("spend", "their") if several else ("spends", "its")
    return f"{who} {spend} {slower.share_of(step.step_ms):.0%} of {their} step waiting for them"


def _candidates(cap_mb: int | None) -> str:
    return _CANDIDATES if cap_mb is None else f"{_CANDIDATES},bucket-cap={cap_mb}"


def _trial(context: Mapping[str, Any], world_size: int, cap_mb: int | None) -> NextStep:
    """Returns advice to run a trial, and its command; both are empty if no trial is possible."""
    command = trial_command(context, world_size, cap_mb)
    several = context.get("nodes", 1) > 1
    if not command and not (several and _takes_a_trial(context)):
        return NextStep("", "")
    changes = "compression" if cap_mb is None else "compression or other buckets"
    measured = f"To measure whether {changes} would make the job's steps shorter,"
    if not several:
        return NextStep(f"{measured} type:", command)
    if not command:
        return NextStep(
            f"{measured} repeat the run with --trial {_candidates(cap_mb)} on every machine.",
            "",
        )
    return NextStep(
        f"To measure whether {changes} would make the step shorter, type this on every machine, "
        "with N replaced by the machine's index, and NEW by a new directory that all machines can "
        "see:",
        command,
    )


def _find_out(world: WorldResult, late: LateRank) -> str:
    if late.phase == HOST_PAUSE:
        hosts = {rank.rank: rank.host for rank in world.ranks}
        several = len({*hosts.values()}) > 1
        there = f" on {hosts[late.rank]}" if several and late.rank in hosts else ""
        return (
            f"First find out what stops the process of rank {late.rank}{there} (a debugger, a "
            "job scheduler, a frozen cgroup, steal time)"
        )
    return f"First find out what delays rank {late.rank}{_in_phase(late.phase, 'its')}"


def _in_phase(phase: str | None, whose: str) -> str:
    if phase is None:
        return ""
    if phase == "other":
        return " in code outside of forward, backward and optimizer"
    return f" in {whose} {phase}{' phase' * (phase != HOST_PAUSE)}"


def _give_cores(context: Mapping[str, Any], world: WorldResult) -> str:
    measured = (
        f"for {no_core_share(world):.0%} of the exposed time, ranks were ready to run but had no "
        "core"
    )
    after = "This run cannot show what communication would cost with a core for every rank."
    if crowded(context, world):
        return f"First give every rank a core: {measured}. {after}"
    return f"First find out what else runs on the ranks' cores: {measured}. {after}"


def trial_command(context: Mapping[str, Any], world_size: int, cap_mb: int | None) -> str:
    """Returns the command that repeats the run as a trial; empty if there is none.

    For a run on several machines, N in the command stands for a machine's index, and NEW for a new
    directory. ``cap_mb`` is a bucket cap in MiB that the trial also tries, or None.
    """
    if not _takes_a_trial(context):
        return ""
    script = [str(word) for word in context.get("script", ())]
    command = taken_apart(str(context["command"]), script)
    # A trial may reject options of a configuration file.
    if command is None or command.has("--config"):
        return ""
    nodes = max(1, int(context.get("nodes", 1)))
    asked = ["--nproc", str(world_size // nodes), "--trial"]
    asked.append(_candidates(cap_mb))
    kept = command.without(_REPLACED)
    if nodes > 1:
        endpoint = kept.value("--rdzv-endpoint") or "HOST:PORT"
        asked += ["--nnodes", str(nodes), "--node-rank", "N", "--rdzv-endpoint", endpoint]
        asked += ["--output", "NEW"]
        kept = kept.without(_MACHINES)
    return replace(kept, options=(*asked, *kept.options)).typed_in(_directory(context))


def _directory(context: Mapping[str, Any]) -> str:
    found = context.get("reproduction")
    return str(found.get("directory", "")) if isinstance(found, dict) else ""


def _takes_a_trial(context: Mapping[str, Any]) -> bool:
    """True for a ``commprof run`` that used DDP's own all-reduce and set no ``bucket_cap_mb``.

    Only such a run can be repeated as a trial.
    """
    changed = {"hook", "bucket_cap_mb", "fsdp"} & context.keys()
    if context.get("strategy", "ddp") != "ddp" or changed:
        return False
    return bool({"script", "workload"} & context.keys())
