"""Tables of a trace are made once, and live and die with it."""

from __future__ import annotations

import cProfile
import dataclasses
import gc
import pstats
import weakref
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from commprof.analysis.align import matching
from commprof.analysis.step import exposure
from commprof.commands import main
from commprof.trace import columns, compressions
from commprof.trace.schema import Kind
from tests.support.builders.run_directories import ranks_of, write_run
from tests.support.builders.traces import MS, Rank

TABLES = (
    *("steps", "phases", "waits", "pauses", "finalizations"),
    *("collectives", "buckets", "compressions"),
)


def calls_of(profile: cProfile.Profile, *files: str) -> Counter[str]:
    """How often each function of these files ran."""
    found: Counter[str] = Counter()
    for (file, _, name), (_, calls, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if file in files:
            found[name] += calls
    return found


def test_a_report_makes_each_table_once_per_rank_and_matches_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ranks_of(4, 12, late_ms=5))
    profile = cProfile.Profile()
    assert profile.runcall(main, ["report", str(run), "--format", "html"]) == 0
    made = calls_of(profile, columns.__file__, compressions.__file__)
    assert {name: made[name] for name in TABLES} == dict.fromkeys(TABLES, 4)
    assert made["kept"] > 2 * len(TABLES) * 4  # asked for far more often
    assert calls_of(profile, exposure.__file__)["exposures"] == 4
    assert calls_of(profile, matching.__file__)["match"] == 1


def test_a_trace_with_more_records_has_tables_of_its_own() -> None:
    rank = Rank()
    rank.step(0, MS)
    trace = rank.trace()
    assert len(columns.steps(trace)) == 1
    assert columns.steps(trace) is columns.steps(trace)
    rank.step(MS, 2 * MS)
    grown = dataclasses.replace(trace, records=rank.records())
    assert len(columns.steps(grown)) == 2
    assert len(columns.steps(trace)) == 1


def test_tables_die_with_their_trace() -> None:
    rank = Rank()
    rank.step(0, MS)
    trace = rank.trace()
    table = weakref.ref(columns.steps(trace))
    assert table() is not None
    del trace
    gc.collect()
    assert table() is None


def test_neither_tables_nor_the_records_behind_them_can_be_changed() -> None:
    rank = Rank()
    rank.step(0, 10 * MS)
    rank.finalize(MS, 2 * MS, cpu=0)
    written = rank.records()
    trace = dataclasses.replace(rank.trace(), records=written)
    found = columns.finalizations(trace)
    for column in (columns.steps(trace).end_ns, found.blocked_ns, found.span.begin_ns):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        trace.records["timestamp_ns"][0] = 1
    assert written.flags.writeable  # the caller's array is left as it was
    assert np.count_nonzero(written["kind"] == Kind.STEP) == 2
