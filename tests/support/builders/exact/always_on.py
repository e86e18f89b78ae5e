from __future__ import annotations

from pathlib import Path

from commprof.trace.reader import Trace
from commprof.trace.summary import Summary, read_summary
from tests.support.builders.traces import Rank
from tests.support.machines.core_tests import run


def summarised(
    program: Path, ranks: list[Rank], directory: Path
) -> tuple[list[Trace], list[Summary]]:
    """Returns traces and summaries of ranks of one host.

    ``program`` is the core's ``test_recorded_ranks``, and ``directory`` is empty.
    """
    lines = []
    for rank in ranks:
        for id, (name, size) in rank.groups.items():
            place = rank.group_ranks.get(id, rank.rank)
            lines.append(f"{rank.rank} {id} {name.replace(' ', '_')} {place} {size}\n")
        (directory / f"{rank.rank}.records").write_bytes(rank.records().tobytes())
    (directory / "ranks").write_text("".join(lines))
    run([str(program), str(directory)])
    found = [
        read_summary(memoryview((directory / f"{rank.rank}.json").read_bytes())) for rank in ranks
    ]
    return [rank.trace() for rank in ranks], found
