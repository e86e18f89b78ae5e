"""What to look at first, and the command that measures whether a change pays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from commprof import invocation
from commprof.analysis.collectives.exchange import Exchange, cap_to_try_mb, way
from commprof.analysis.collectives.sharding import BACKWARD, FORWARD, SCATTER, SUM, Sharding
from commprof.analysis.late.stragglers import LateRank
from commprof.analysis.run_command import taken_apart
from commprof.analysis.step.cores import crowded, lacked_cores, no_core_share
from commprof.analysis.step.exposure import HOST_PAUSE
from commprof.analysis.step.mean_step import PARTS, WORTH_A_LOOK, MeanStep
from commprof.analysis.world import WorldResult
from commprof.text import listed
from commprof.units import ns_to_ms

#: Data, optimizer or other code takes so many times as long as communication: it comes first.
_FAR_LARGER = 2.0

#: What a trial is asked to compare where nobody said.
_CANDIDATES = "fp16,int8,topk:ratio=0.01"
#: Options of a run that a trial has otherwise, or refuses; each takes one value.
_REPLACED = (
    *("--nproc", "--world-sizes", "--trial", "--output", "--json", "--steps", "--epochs"),
    *("--overhead-steps", "--strategy", "--price-per-hour", "--price-per", "--mode"),
    "--max-restarts",
)
#: What names the network interface of a backend.
_CHOOSES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}
#: Options that say where the ranks of several machines meet.
_MACHINES = ("--nnodes", "--node-rank", "--rdzv-endpoint")


@dataclass(frozen=True)
class NextStep:
    """What to do first about a run. It rests on measured shares, never on hoped-for gains."""

    #: One or two sentences; empty where there is nothing to say.
    advice: str
    #: What to type; empty where no command answers it.
    command: str


def next_step(
    context: Mapping[str, Any],
    world: WorldResult,
    step: MeanStep,
    words: Mapping[str, str],
    exchange: Exchange,
) -> NextStep:
    """Advises what to do first about one world size.

    Args:
        context: of the run.
        world: the world size that is judged.
        step: its mean step.
        words: what the parts of a step are called.
        exchange: what stands out in its communication.
    """
    own_part = max((part for part in PARTS if part != "communication"), key=step.share)
    own_work = words[own_part]
    if world.world_size < 2:
        return NextStep("", "")
    late = rank_to_look_at(context, world, step)
    # Small calls wake threads of the ranks' own all the time, which wait for cores then.
    if late is None and exchange.small_calls is None and lacked_cores(world):
        return NextStep(_give_cores(context, world), "")
    if late is None and crowded(context, world) and math.isnan(no_core_share(world)):
        return NextStep(
            "First repeat the run with a core for each thread: whether ranks waited for a core was "
            "not measured here, and every part of the step would hold that.",
            "",
        )
    step_ms = step.step_ms
    if step.exposed_ms < WORTH_A_LOOK * step_ms:
        return NextStep(
            f"Communication is not the bottleneck, and needs no change: the step waits for it for "
            f"less than {WORTH_A_LOOK:.0%} of its time. Look at {own_work} first.",
            "",
        )
    if late is not None:
        return NextStep(
            f"{_find_out(world, late)}: waiting for it takes {late_share(late, step):.0%} of the "
            "others' step. No other way to communicate wins that back.",
            "",
        )
    if own_part != "compute" and step.share(own_part) >= _FAR_LARGER * step.share("communication"):
        return NextStep(
            f"First look at {own_work}: it takes {step.share(own_part):.0%} of the step, and "
            f"communication {step.share('communication'):.0%}.",
            "",
        )
    if exchange.small_calls is None and exchange.link is not None and exchange.idle:
        one = len(exchange.idle) == 1
        chooses = _CHOOSES.get(str(context.get("backend")))
        set_it = f"set {chooses}={exchange.idle[0]}" if chooses else "choose another"
        return NextStep(
            f"The hosts talk over {listed(exchange.link.interfaces)}, while "
            f"{listed(exchange.idle)} {'is' if one else 'are'} idle and rated as fast or faster: "
            f"if this is not on purpose, {set_it}.",
            "",
        )
    cap_mb = cap_to_try_mb(world, step, exchange.serial)
    trial = _with(_first(exchange, cap_mb), _trial(context, world.world_size, cap_mb))
    if world.sharding is not None:
        trial = _predicted(world.sharding)
    if not step.split_ms or step.split_ms["waiting"] <= step.exposed_ms / 2:
        return trial
    balance = (
        "First balance the work of the ranks: they wait for one another for "
        f"{step.share('waiting'):.0%} of the step, and not for one rank alone."
    )
    if step.share("wire") < WORTH_A_LOOK or not trial.advice:
        return NextStep(f"{balance} No other way to communicate wins that back.", "")
    return NextStep(f"{balance} {trial.advice}", trial.command)


def _predicted(found: Sharding) -> NextStep:
    """What would change the part of sharded communication that holds up the step most."""
    changes = {
        FORWARD: ("gathering parameters in bf16", ("--gather-dtype", "bf16")),
        BACKWARD: (
            "keeping parameters after forward, which takes memory,",
            ("--reshard-after-forward", "off"),
        ),
        SCATTER: ("reducing gradients in bf16", ("--reduce-dtype", "bf16")),
        SUM: ("reducing gradients in bf16", ("--reduce-dtype", "bf16")),
    }
    change, options = changes[found.most.part]
    return NextStep(
        f"The longest waits are for {found.most.part}. What {change} would make of the step is "
        "predicted by:",
        invocation.command("predict", invocation.quoted(found.directory), *options),
    )


def _first(exchange: Exchange, cap_mb: int | None) -> str:
    """What to know before a trial of the exchange; empty where nothing stands out in it."""
    if exchange.small_calls is not None:
        return "First try larger buckets."
    if exchange.serial:
        return "" if cap_mb is None else "First try smaller buckets, which can be sent sooner."
    if exchange.link is not None:
        slow = f"The link between the hosts is slow for what a step sends: {way(exchange.link)}."
        return f"{slow} Find out whether the network can do better."
    return ""


def _with(first: str, trial: NextStep) -> NextStep:
    return replace(trial, advice=f"{first} {trial.advice}".strip())


def rank_to_look_at(
    context: Mapping[str, Any], world: WorldResult, step: MeanStep
) -> LateRank | None:
    """Returns the late rank where looking at it is what to do first; else None."""
    late = world.late_rank
    if late is None or late_share(late, step) < WORTH_A_LOOK:
        return None
    unsure = crowded(context, world) and math.isnan(no_core_share(world))
    little = step.exposed_ms < WORTH_A_LOOK * step.step_ms
    # A lack of cores explains a late rank, but not a process that was stopped.
    unsure = (unsure or lacked_cores(world)) and late.phase != HOST_PAUSE
    return None if unsure or little else late


def late_share(late: LateRank, step: MeanStep) -> float:
    """Share of the mean step that is spent waiting for a late rank."""
    return ns_to_ms(late.wait_ns) / step.step_ms


def _candidates(cap_mb: int | None) -> str:
    return _CANDIDATES if cap_mb is None else f"{_CANDIDATES},bucket-cap={cap_mb}"


def _trial(context: Mapping[str, Any], world_size: int, cap_mb: int | None) -> NextStep:
    """What would measure whether a change of the exchange pays."""
    command = trial_command(context, world_size, cap_mb)
    several = context.get("nodes", 1) > 1
    if not command and not (several and _takes_a_trial(context)):
        return NextStep("", "")
    changes = "compression" if cap_mb is None else "compression or other buckets"
    measured = f"To measure on the job's own steps whether {changes} would make them shorter, type"
    if not several:
        return NextStep(f"{measured}:", command)
    if not command:
        return NextStep(
            f"{measured} the same run with --trial {_candidates(cap_mb)}, on every machine.",
            "",
        )
    return NextStep(
        f"Whether {changes} makes the step shorter is measured by this, typed on every machine "
        "with its number N and a NEW directory that all of them see:",
        command,
    )


def _find_out(world: WorldResult, late: LateRank) -> str:
    """What holds the rank up: a phase of its work, or its host."""
    if late.phase == HOST_PAUSE:
        hosts = {rank.rank: rank.host for rank in world.ranks}
        several = len({*hosts.values()}) > 1
        there = f" on {hosts[late.rank]}" if several and late.rank in hosts else ""
        return (
            f"First find out{there} what stops the process of rank {late.rank} (a debugger, a "
            "job scheduler, a frozen cgroup, steal time)"
        )
    phase = f" in its {late.phase} phase" if late.phase else ""
    return f"First find out what holds up rank {late.rank}{phase}"


def _give_cores(context: Mapping[str, Any], world: WorldResult) -> str:
    """Where ranks were measured to wait for cores: what takes these."""
    measured = f"{no_core_share(world):.0%} of the exposed time was spent ready to run without one"
    after = "What communication costs then, this run cannot say."
    if crowded(context, world):
        return f"First give every rank a core: {measured}. {after}"
    return f"First find out what else runs on the ranks' cores: {measured}. {after}"


def trial_command(context: Mapping[str, Any], world_size: int, cap_mb: int | None) -> str:
    """Returns the run's command as a trial; N stands for the number of each of several machines.

    ``cap_mb`` is that of its candidate with other buckets; None for no such candidate.

    Empty where it was no run, its strategy takes no trial, or a file holds more of its options,
    which a trial may refuse.
    """
    if not _takes_a_trial(context):
        return ""
    script = [str(word) for word in context.get("script", ())]
    command = taken_apart(str(context["command"]), script)
    if command is None or command.has("--config"):
        return ""
    nodes = max(1, int(context.get("nodes", 1)))
    asked = ["--nproc", str(world_size // nodes), "--trial"]
    asked.append(_candidates(cap_mb))
    kept = command.without(_REPLACED)
    if nodes > 1:
        endpoint = _value(kept.options, "--rdzv-endpoint") or "HOST:PORT"
        asked += ["--nnodes", str(nodes), "--node-rank", "N", "--rdzv-endpoint", endpoint]
        asked += ["--output", "NEW"]
        kept = kept.without(_MACHINES)
    return replace(kept, options=(*asked, *kept.options)).typed_in(_directory(context))


def _directory(context: Mapping[str, Any]) -> str:
    """Directory in which the run was started; empty where that is not recorded."""
    found = context.get("reproduction")
    return str(found.get("directory", "")) if isinstance(found, dict) else ""


def _takes_a_trial(context: Mapping[str, Any]) -> bool:
    """Whether it was a run under DDP's own exchange, which candidates can be held against."""
    if context.get("strategy", "ddp") != "ddp" or {"hook", "bucket_cap_mb"} & context.keys():
        return False
    return bool({"script", "workload"} & context.keys())


def _value(options: Sequence[str], name: str) -> str:
    """Value of an option, however it is written; empty where the option is not there."""
    for word, after in zip(options, [*options[1:], ""], strict=True):
        if word == name:
            return after
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return ""
