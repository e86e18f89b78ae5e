from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.align.alike_ranks import sizes_of_groups
from commprof.analysis.collectives.traffic import sizes_bytes
from commprof.analysis.run import analyse_in_detail
from commprof.recordings.profiler import read_recording
from commprof.trace import columns
from commprof.trace.reader import Trace, read_trace
from commprof.trace.schema import OPS
from tests.support.machines.ranks import run_module
from tests.support.ranks.two_recorders import LATE_S, STEPS

RANKS = 3


def record(folder: Path) -> Path:
    run_module("tests.support.ranks.two_recorders", [str(folder)], RANKS)
    return folder


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("two"))


def calls_of(trace: Trace) -> Counter[tuple[str, int]]:
    table = columns.collectives(trace)
    size = sizes_bytes(table.op, table.bytes_in, table.bytes_out, sizes_of_groups([trace], [table]))
    return Counter((OPS[op], nbytes) for op, nbytes in zip(table.op, size.tolist(), strict=True))


def test_torch_profilers_recording_has_the_same_collectives_with_their_sizes(
    recorded: Path,
) -> None:
    recording = read_recording(recorded / "torch")
    assert recording is not None
    for path in (recorded / "run").rglob("*.trace"):
        ours = read_trace(path)
        theirs = recording.traces[ours.rank]
        assert calls_of(theirs) == calls_of(ours)
        assert calls_of(theirs)["reduce_scatter", 2400 * RANKS] == STEPS
        assert calls_of(theirs)["all_to_all", 2400 * RANKS] == STEPS


def test_a_group_is_told_by_sizes_or_not_at_all(recorded: Path) -> None:
    """Ranks 0 and 1 are in two groups, rank 2 is in one group."""
    recording = read_recording(recorded / "torch")
    assert recording is not None
    for rank, trace in recording.traces.items():
        table, told = columns.collectives(trace), {}
        for op, group in zip(table.op.tolist(), table.group.tolist(), strict=True):
            told.setdefault(OPS[op], set()).add(
                (trace.groups[group].name, trace.groups[group].size)
            )
        world, default = {("0", RANKS)}, ("", 0) if rank < 2 else ("0", RANKS)
        assert told["all_reduce"] == {default}
        assert told["monitored_barrier"] == {default}
        assert told["reduce_scatter_tensor"] == told["reduce_scatter"] == world
        pair = {("1", 2)} if rank < 2 else set()
        assert told["all_gather_into_tensor"] == world | pair


@pytest.mark.measures
def test_an_operator_that_waits_for_the_late_rank_is_exposed_time(tmp_path: Path) -> None:
    """The first step is left out, because it is a warm-up for commprof.

    The test makes its own recordings, so that a repetition of the test measures again.
    """
    recorded = record(tmp_path)
    (ours,), (theirs,) = (analyse_in_detail(recorded / folder)[1] for folder in ("run", "torch"))
    assert ours.steps.tolist() == list(range(1, STEPS))
    assert theirs.steps.tolist() == list(range(STEPS))
    own_ms, other_ms = ours.parts_ms["exposed"][:2], theirs.parts_ms["exposed"][:2, 1:]
    assert own_ms.min() > 1000 * LATE_S
    # A single step may differ more, if a thread loses its core at the end of the step.
    difference_ms = np.median(np.abs(own_ms - other_ms), axis=1)
    assert difference_ms.max() < 0.02 * np.median(ours.parts_ms["step"])
