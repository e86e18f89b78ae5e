"""How to try a predicted setting: a ``commprof run`` command and edits to the training script."""

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
#: Options of the recorded command that the new command does not keep.
_REPLACED = ("--output", "--json", "--world-sizes", "--nproc", "--check-prediction", "--trial")


@dataclasses.dataclass(frozen=True)
class Tried:
    """Instructions for trying one predicted setting."""

    #: Values of the options of ``commprof run``. Keys have underscores and no leading dashes.
    options: Mapping[str, str]
    #: Changes that the user must make in the script, because no option makes them.
    in_script: tuple[str, ...]
    command: str


def tried(
    scenario: Scenario, context: Mapping[str, Any], run: Path, shard_ranks: int | None = None
) -> Tried:
    """Returns how to try a predicted scenario.

    Args:
        scenario: the predicted scenario.
        context: ``run.json`` of the run that the prediction is based on.
        run: path of that run. If the path is a directory, the command also compares its result with
            the prediction.
        shard_ranks: number of ranks that share one copy of the model in that run; None if all ranks
            share one copy, or if the run is not sharded.
    """
    strategy = str(context.get("strategy", "fsdp")) if "workload" in context else ""
    command = taken_apart(str(context.get("command", "")), tuple(context.get("script", ())))
    recorded = "" if command is None else command.value("--fsdp")
    if shard_ranks is not None and scenario.shard_ranks is None and strategy:
        # Without the option ``shard``, HSDP may choose a group size that was not predicted.
        scenario = dataclasses.replace(scenario, shard_ranks=shard_ranks)
    options, in_script = _settings(scenario, strategy, recorded)
    dropped = [*_REPLACED, *(f"--{name.replace('_', '-')}" for name in options)]
    if scenario.hook == "":
        if command is not None and command.value("--hook"):
            dropped.append("--hook")
        else:
            in_script.insert(0, "no compressor")
    words = [] if run.is_file() else ["--check-prediction", str(run)]
    words += ["--world-sizes", str(scenario.world_size)]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", value]
    if command is None:
        given = " ".join(map(invocation.quoted, words))
        text = f"run the job with commprof run and these options: {given}"
    else:
        kept = command.without(dropped)
        text = dataclasses.replace(kept, options=(*words, *kept.options)).text
    return Tried(options, tuple(in_script), text)


def _settings(scenario: Scenario, strategy: str, recorded: str) -> tuple[dict[str, str], list[str]]:
    """Returns options of ``commprof run``, and changes to the script that no option makes.

    ``strategy`` is the strategy of the built-in workload; it is empty if the job runs a script.
    ``recorded`` is the run's value of ``--fsdp``, or empty.
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
    in_script: list[str] = []
    if strategy:
        options |= _workload_options(scenario, strategy)
    else:
        in_script += _wrapping(scenario)
    return options, in_script


def _workload_options(scenario: Scenario, strategy: str) -> dict[str, str]:
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
    """Changes the recorded ``--strategy``.

    If ``shard_ranks`` is None, the shard groups stay as recorded. ``blocks`` is the number of
    recorded units in one new unit.
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
