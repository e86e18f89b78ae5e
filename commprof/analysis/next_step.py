"""What to look at first, and the command that measures whether a change pays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from commprof.analysis.pauses import HOST_PAUSE
from commprof.analysis.run_command import taken_apart
from commprof.analysis.stragglers import LateRank
from commprof.analysis.world import WorldResult
from commprof.units import ns_to_ms

#: Below this share of a step there is too little to win for work on it.
WORTH_A_LOOK = 0.10

#: What a trial is asked to compare where nobody said.
_CANDIDATES = "fp16,int8,topk:ratio=0.01,bucket-cap=5"
#: Options of a run that a trial has otherwise, or refuses; each takes one value.
_REPLACED = (
    *("--nproc", "--world-sizes", "--trial", "--output", "--json", "--steps", "--epochs"),
    *("--overhead-steps", "--strategy", "--price-per-hour", "--price-per", "--mode"),
    "--max-restarts",
)


@dataclass(frozen=True)
class NextStep:
    """Advice that rests on measured shares; never on what a change is hoped to bring."""

    #: One or two sentences; empty where there is nothing to say.
    advice: str
    #: What to type; empty where no command answers it.
    command: str


def next_step(context: Mapping[str, Any], world: WorldResult, own_work: str) -> NextStep:
    """What to do first about one world size.

    Args:
        context: of the run.
        world: the largest world size with figures.
        own_work: the largest part of the step that is not communication, in words.
    """
    if world.world_size < 2:
        return NextStep("", "")
    step_ms = world.parts.step_ms
    if world.parts.exposed_ms < WORTH_A_LOOK * step_ms:
        return NextStep(
            f"Communication is not the bottleneck: less than {WORTH_A_LOOK:.0%} of the step can be "
            f"won there. Look at {own_work} first.",
            "",
        )
    if shared := shared_cores(context, world):
        return NextStep(
            f"First give every rank a core: {shared} What communication costs then, this run "
            "cannot say.",
            "",
        )
    late = world.late_rank
    if late is not None and ns_to_ms(late.wait_ns) >= WORTH_A_LOOK * step_ms:
        return NextStep(
            f"{_find_out(world, late)}: waiting for it takes "
            f"{ns_to_ms(late.wait_ns) / step_ms:.0%} of the others' step. No change to the "
            "exchange wins that back.",
            "",
        )
    command = trial_command(context, world.world_size)
    if not command:
        return NextStep("", "")
    return NextStep(
        "Whether compression, other buckets or another exchange would make the step shorter is "
        "measured on the job's own steps by:",
        command,
    )


def _find_out(world: WorldResult, late: LateRank) -> str:
    """What holds the rank up: a phase of its work, or its host."""
    if late.phase == HOST_PAUSE:
        host = next((rank.host for rank in world.ranks if rank.rank == late.rank), "its host")
        return (
            f"First find out on {host} what keeps the process of rank {late.rank} from running: "
            "who stops it (a debugger, a job scheduler), a cgroup that is frozen, or a machine "
            "that stands still (its steal time)"
        )
    phase = f" in its {late.phase} phase" if late.phase else ""
    return f"First find out what holds up rank {late.rank}{phase}"


def shared_cores(context: Mapping[str, Any], world: WorldResult) -> str:
    """A sentence where ranks of one host had to share cores; else empty."""
    cores, threads = usable_cores(context["machine"]), context["threads_per_rank"]
    if len({rank.host for rank in world.ranks}) > 1 or world.world_size * threads <= cores:
        return ""
    return f"{world.world_size} ranks shared {cores} {'core' if cores == 1 else 'cores'}."


def usable_cores(machine: Mapping[str, Any]) -> int:
    """Physical cores; where a run did not say, its hardware threads stand for them."""
    return int(machine.get("usable_core_count", machine["usable_cpu_count"]))


def trial_command(context: Mapping[str, Any], world_size: int) -> str:
    """The run's command as a trial.

    Empty where it was no run, its strategy takes no trial, or a file holds more of its options,
    which a trial may refuse.
    """
    if context.get("strategy", "ddp") != "ddp" or {"hook", "bucket_cap_mb"} & context.keys():
        return ""
    if context.get("nodes", 1) > 1 or not {"script", "workload"} & context.keys():
        return ""
    script = [str(word) for word in context.get("script", ())]
    command = taken_apart(str(context["command"]), script)
    if command is None or command.has("--config"):
        return ""
    asked = ("--nproc", str(world_size), "--trial", _CANDIDATES)
    kept = command.without(_REPLACED)
    return replace(kept, options=(*asked, *kept.options)).text
