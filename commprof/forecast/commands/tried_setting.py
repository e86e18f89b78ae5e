"""How to try a predicted setting: a ``commprof run`` command, and edits to the training script."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commprof import invocation, satellites
from commprof.analysis.run_command import taken_apart
from commprof.forecast.scenario.scenario import Scenario

_MIB = float(1 << 20)
#: A bucket cap with which DDP gives each gradient a bucket of its own.
_NO_BUCKET_MIB = 1e-6
#: A bucket cap with which DDP puts all gradients into one bucket.
_ONE_BUCKET_MIB = 10_000.0
#: Options of ``commprof run`` that the command for trying a setting replaces or leaves out.
_REPLACED = ("--output", "--json", "--world-sizes", "--nproc", "--check-prediction", "--trial")


@dataclasses.dataclass(frozen=True)
class Tried:
    """Options and command for trying one predicted setting."""

    #: Values by argument name of ``commprof run``.
    options: Mapping[str, str]
    #: Changes to the script that no option makes, in words.
    in_script: tuple[str, ...]
    #: Command that tries the setting and, if predictions are kept, compares the run with them.
    command: str


def tried(
    scenario: Scenario, context: Mapping[str, Any], run: Path, shard_ranks: int | None = None
) -> Tried:
    """Returns how to try a predicted scenario: options, edits to the script, and a command.

    Args:
        scenario: the predicted scenario.
        context: ``run.json`` of the run that the prediction is based on.
        run: directory of that run, or file of a recording. Predictions are kept in a directory
            only; the command then compares its own run with them.
        shard_ranks: number of ranks in that run that share one copy of the model; None if all
            ranks share it, or if the run is not sharded.
    """
    strategy = str(context.get("strategy", "fsdp")) if "workload" in context else ""
    command = taken_apart(str(context.get("command", "")), tuple(context.get("script", ())))
    recorded = "" if command is None else command.value("--fsdp")
    if shard_ranks is not None and scenario.shard_ranks is None and strategy:
        # Without its option ``shard``, HSDP may choose another group size than the predicted one.
        scenario = dataclasses.replace(scenario, shard_ranks=shard_ranks)
    options, in_script = _settings(scenario, strategy, recorded)
    words = [] if run.is_file() else ["--check-prediction", str(run)]
    words += ["--world-sizes", str(scenario.world_size)]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", value]
    if command is None:
        given = " ".join(map(invocation.quoted, words))
        text = f"run the job with commprof run and these options: {given}"
    else:
        kept = command.without([*_REPLACED, *(f"--{n.replace('_', '-')}" for n in options)])
        text = dataclasses.replace(kept, options=(*words, *kept.options)).text
    return Tried(options, tuple(in_script), text)


def _settings(scenario: Scenario, strategy: str, recorded: str) -> tuple[dict[str, str], list[str]]:
    """Returns options of ``commprof run``, and changes to the script that no option makes.

    Args:
        scenario: the predicted scenario.
        strategy: strategy of the built-in workload; empty for a script.
        recorded: value of ``--fsdp`` in the run; empty if it was not given.
    """
    options: dict[str, str] = {}
    if scenario.hook:
        options["hook"] = scenario.hook
    if not math.isnan(scenario.bucket_cap_bytes):
        cap_mib = scenario.bucket_cap_bytes / _MIB
        options["bucket_cap_mb"] = f"{min(max(cap_mib, _NO_BUCKET_MIB), _ONE_BUCKET_MIB):g}"
    reshard, dtype = scenario.reshard_after_forward, scenario.reduce_dtype
    if reshard is not None or dtype:
        sharding = satellites.tune().sharding()
        live = sharding.parse_sharding(recorded) if recorded else sharding.NO_SHARDING
        live = live if reshard is None else dataclasses.replace(live, reshard=reshard)
        live = dataclasses.replace(live, reduce_dtype=dtype) if dtype else live
        options["fsdp"] = live.label
    in_script = [] if scenario.hook != "" else ["no compressor"]
    if strategy:
        options |= _workload_options(scenario, strategy)
    else:
        in_script += _wrapping(scenario)
    return options, in_script


def _workload_options(scenario: Scenario, strategy: str) -> dict[str, str]:
    """Returns a built-in workload's options for sharding, accumulation and precision."""
    options = {}
    shard, blocks = scenario.shard_ranks, scenario.wrap_blocks or 1
    if shard is not None or blocks > 1:
        options["strategy"] = _strategy(strategy, scenario.world_size, shard, blocks)
    if scenario.accumulate is not None:
        options["accumulate"] = str(scenario.accumulate)
    if scenario.gather_dtype:
        options["precision"] = scenario.gather_dtype
    return options


def _wrapping(scenario: Scenario) -> list[str]:
    """Returns the edits that the user must make in the script, each as a piece of code or in words.

    The edits set the scenario's sharding, accumulation and precision.
    """
    found = []
    shard, blocks, passes = scenario.shard_ranks, scenario.wrap_blocks, scenario.accumulate
    if shard is not None:
        copies = scenario.world_size // shard
        shape = f"{shard}," if copies == 1 else f"{copies}, {shard}"
        found.append(f"fully_shard(..., mesh=init_device_mesh(..., ({shape})))")
    if blocks is not None and blocks > 1:
        found.append(f"fully_shard([...]) on each group of {blocks} neighbouring blocks")
    if passes is not None and passes > 1:
        found.append(f"{passes} backward passes per optimizer step")
    if scenario.gather_dtype:
        named = satellites.tune().sharding().DTYPES[scenario.gather_dtype]
        policy = f"param_dtype=torch.{named}, reduce_dtype=..."
        found.append(f"fully_shard(..., mp_policy=MixedPrecisionPolicy({policy}))")
        if not scenario.reduce_dtype:
            found.append("set reduce_dtype to the type in which the recorded run reduces gradients")
    return found


def _strategy(recorded: str, world_size: int, shard_ranks: int | None, blocks: int) -> str:
    """Returns the recorded ``--strategy`` with other shard groups and larger wrapped units.

    shard_ranks: ranks of a shard group; None: as recorded.
    blocks: number of recorded units that make up one new unit.
    """
    name, _, given = recorded.partition(":")
    options = dict(each.split("=", 1) for each in given.split(",") if each)
    if shard_ranks is not None:
        name = "fsdp" if shard_ranks == world_size else "hsdp"
        options = {key: value for key, value in options.items() if key != "shard"}
        if name == "hsdp":
            options["shard"] = str(shard_ranks)
    if blocks > 1:
        options["wrap_blocks"] = str(blocks * int(options.get("wrap_blocks", "1")))
    text = ",".join(f"{key}={value}" for key, value in options.items())
    return f"{name}:{text}" if text else name
