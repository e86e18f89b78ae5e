from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from commprof.trace.run.run_directory import STRATEGIES
from commprof.trace.schema import Phase
from tests.support.builders.results import context
from tests.support.builders.traces import MS, Rank

HOSTILE = "</script><img src=x onerror=alert(1)>\"'`|\n"


def write_run(directory: Path, *worlds: list[Rank], **changes: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    sizes = [len(ranks) for ranks in worlds]
    run = context(world_sizes=sizes, machine={**context()["machine"], "boot_id": "b"})
    (directory / "run.json").write_text(json.dumps({**run, **changes}))
    for ranks in worlds:
        world = directory / f"world_{len(ranks)}"
        world.mkdir(exist_ok=True)
        for rank in ranks:
            rank.write(world / f"rank_{rank.rank}.trace")
            account = rank.result(steps_per_epoch=len(rank.steps) // 2 or 1)
            (world / f"rank_{rank.rank}.json").write_text(json.dumps(account))
    return directory


def ranks_of(
    world_size: int, steps: int, late_ms: int = 0, group: str = "0", slower_ms: int = 0
) -> list[Rank]:
    """Each step takes about 100 ms: 10 ms data, 20 ms forward, and backward with two buckets.

    Bucket 1 is issued after 60 ms, on the last rank ``late_ms`` later. It is done after 80 ms plus
    ``late_ms`` plus ``slower_ms``.
    """
    made = [Rank(r, world_size, groups={1: (group, world_size)}) for r in range(world_size)]
    at = 0
    for step in range(steps):
        more = slower_ms * MS
        end = at + (100 + step % 4) * MS + more
        for rank in made:
            late = (late_ms if rank.rank == world_size - 1 else 0) * MS
            rank.step(at, end)
            rank.phase(Phase.DATA, at, at + 10 * MS)
            rank.phase(Phase.FORWARD, at + 10 * MS, at + 30 * MS)
            rank.phase(Phase.BACKWARD, at + 30 * MS, at + 90 * MS + more)
            same = {"bytes": 4_000_000, "graph_task": step}
            rank.collective(2 * step, at + 40 * MS, at + 50 * MS, **same)
            done = at + (80 + late_ms) * MS + more
            rank.collective(2 * step + 1, at + 60 * MS + late, done, **same)
            rank.finalize(at + 60 * MS + late, done, cpu=0, graph_task=step)
        at = end
    return made


def write_strategies(directory: Path, steps: int = 9, world_size: int = 2) -> Path:
    directory.mkdir()
    named = {STRATEGIES: ["ddp", "fsdp"], "world_sizes": [1, world_size]}
    (directory / "run.json").write_text(json.dumps(context(**named)))
    for name, slower_ms in (("ddp", 0), ("fsdp", 10)):
        ranks = [ranks_of(n, steps, slower_ms=slower_ms) for n in (1, world_size)]
        write_run(directory / name, *ranks, strategy=name, workload="timed")
    return directory


def answer(world_size: int, samples_per_s: float | None, **scenario: Any) -> dict[str, Any]:
    same = {"bandwidth_bytes_per_s": None, "hook": None, "scaling": "weak", "algorithm": "flat"}
    return {
        "prediction": {
            "scenario": {"world_size": world_size, **same, **scenario},
            "step_s": {"value": 0.1, "low": 0.09, "high": 0.11},
            "samples_per_s": samples_per_s,
            "outside": ["more ranks than were measured"] if world_size > 8 else [],
        },
        "interval_s": {"value": 0.1, "low": 0.08, "high": 0.125},
    }


def write_predictions(path: Path, *answers: dict[str, Any], **changes: Any) -> Path:
    document = {"schema_version": 2, "answers": answers, "error": {"worst": 0.13}, **changes}
    path.write_text(json.dumps(document))
    return path
