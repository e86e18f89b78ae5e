"""How a predicted setting gets into a run: options, or what to write in the script."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commprof import invocation
from commprof.analysis.run_command import taken_apart
from commprof.predict.replay.scenario import Scenario
from commprof.trials.sharding import DTYPES, Sharding

_MIB = float(1 << 20)
#: DDP's largest cap: one bucket.
_ONE_BUCKET_MIB = 10_000.0
#: Of ``commprof run``, in the place of which a predicted one stands.
_REPLACED = (
    *("--output", "--json", "--world-sizes", "--nproc", "--check-prediction"),
    "--trial",
)


@dataclasses.dataclass(frozen=True)
class Tried:
    """How to try one setting, as it is typed and written."""

    #: By names of arguments of ``commprof run``.
    options: Mapping[str, str]
    #: What no option sets, in words.
    in_script: tuple[str, ...]
    #: What to type; it holds the run against the prediction.
    command: str


def tried(scenario: Scenario, context: Mapping[str, Any], run: Path) -> Tried:
    """Finds how to try this scenario.

    Args:
        scenario: that was predicted.
        context: of the run that it was predicted from.
        run: that run's directory.
    """
    options, in_script = _settings(scenario, "workload" in context)
    words = ["--check-prediction", str(run), "--world-sizes", str(scenario.world_size)]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", value]
    command = taken_apart(str(context.get("command", "")), tuple(context.get("script", ())))
    if command is None:
        text = f"the job under commprof run, with {' '.join(map(invocation.quoted, words))}"
    else:
        kept = command.without([*_REPLACED, *(f"--{n.replace('_', '-')}" for n in options)])
        text = dataclasses.replace(kept, options=(*words, *kept.options)).text
    return Tried(options, tuple(in_script), text)


def _settings(scenario: Scenario, is_workload: bool) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    in_script: list[str] = []
    if scenario.hook:
        options["hook"] = scenario.hook
    if scenario.hook == "":
        in_script.append("no compressor")
    if not math.isnan(scenario.bucket_cap_bytes):
        options["bucket_cap_mb"] = f"{min(scenario.bucket_cap_bytes / _MIB, _ONE_BUCKET_MIB):g}"
    dtype = scenario.reduce_dtype or ""
    live = Sharding(reshard=scenario.reshard_after_forward, reduce_dtype=dtype)
    if live.count:
        options["fsdp"] = live.label
    if scenario.shard_ranks is not None:
        alone = scenario.shard_ranks == scenario.world_size
        if is_workload:
            options["strategy"] = "fsdp" if alone else f"hsdp:shard={scenario.shard_ranks}"
        else:
            copies = scenario.world_size // scenario.shard_ranks
            shape = f"{scenario.shard_ranks}," if alone else f"{copies}, {scenario.shard_ranks}"
            in_script.append(f"fully_shard(..., mesh=init_device_mesh(..., ({shape})))")
    if scenario.wrap_blocks is not None and scenario.wrap_blocks > 1:
        in_script.append(f"fully_shard([...]) over {scenario.wrap_blocks} neighbouring blocks each")
    if scenario.gather_dtype:
        policy = f"MixedPrecisionPolicy(param_dtype=torch.{DTYPES[scenario.gather_dtype]}, ...)"
        in_script.append(f"fully_shard(..., mp_policy={policy})")
    return options, in_script
