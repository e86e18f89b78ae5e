from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from commprof.report import table
from commprof.trace.reader import read_trace
from commprof.trace.schema import OPS
from commprof.trace.summary import read_summary
from tests.support.analysed import analyse_run
from tests.support.builders import trace_bytes as made
from tests.support.builders.traces import MS, document, operation, summary

SUMMARY_BLOCK, SPARE_BLOCK = 7, 8


def block(value: object, padding: int = 10) -> bytes:
    return made.block(SUMMARY_BLOCK, json.dumps(value).encode() + b" " * padding)


def write(
    path: Path,
    *blocks: bytes,
    rank: int = 0,
    world_size: int = 1,
    group: int = 1,
    host: str = "b",
) -> Path:
    machine = {**made.metadata()["machine"], "boot_id": host, "hostname": host}
    metadata: dict[str, Any] = {"ops": ["other", "all_reduce"], "machine": machine}
    metadata |= {"rank": rank, "world_size": world_size}
    groups = made.document(made.GROUP_BLOCK, made.group(group, name="dp"))
    path.write_bytes(made.trace(groups, *blocks, **metadata))
    return path


def test_the_summary_with_the_highest_sequence_is_read_and_spare_blocks_are_ignored(
    tmp_path: Path,
) -> None:
    spare = b"CPKB\x08\0\0\0\x05\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0trash"
    path = write(
        tmp_path / "a.trace",
        block(summary(sequence=3)),
        spare,
        block(summary(sequence=4, records=77)),
        block(summary(sequence=2)),
        made.end(),
    )
    trace = read_trace(path)
    assert trace.problems == ()
    assert trace.summary is not None
    assert (trace.summary.sequence, trace.summary.records) == (4, 77)
    assert trace.summary.operations[0].duration.sum_ns == 10 * MS


def test_after_a_torn_summary_the_previous_one_is_read(tmp_path: Path) -> None:
    torn = bytearray(block(summary(sequence=2)))
    torn[40] ^= 1
    trace = read_trace(write(tmp_path / "a.trace", bytes(torn), block(summary()), made.end()))
    assert trace.summary is not None
    assert trace.summary.sequence == 1
    assert "wrong checksum" in trace.problems[0]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"sequence": -1}, "sequence is not a whole number"),
        ({"records": 2**63}, "records is not a whole number"),
        ({"mode": "some"}, "mode is not one of"),
        ({"phases": []}, "phases has 0 items"),
        ({"steps_end": "never"}, "steps_end is not one of declared, update, backward"),
        ({"paused": [0] * 4}, "paused is not a list of 5 numbers"),
        ({"paused": {"0": 1}}, "paused is not a list of 5 numbers"),
        ({"paused": [0, 0, 0, 0, -1]}, "paused holds a value that is not a whole number"),
        ({"steps": []}, "buckets is missing"),
        ({"steps": {**document([5]), "buckets": [5]}}, "not pairs"),
        ({"steps": {**document([5]), "buckets": [2368, 1]}}, "contradict"),
        ({"steps": {**document([5]), "buckets": [5, 2]}}, "contradict"),
        ({"steps": {**document([5, 5]), "buckets": [5, 1, 0, 1]}}, "contradict"),
        ({"steps": {**document([5]), "buckets": [2**62, 1]}}, "contradict"),
        ({"steps": {**document([5]), "min": 6}}, "the minimum of steps is above"),
        ({"arrivals": {}}, "known is missing"),
        ({"hosts": {"clock": 1}}, "peers is missing"),
        ({"arrival_clock_error": 5}, "buckets is missing"),
        ({"last": [{"rank": 1}]}, "count is missing"),
        ({"waited_for": {"block_ns": 9, "cells": [1, 2]}}, "not triples"),
        ({"waited_for": {"block_ns": 9, "cells": [1, 2, -1]}}, "not triples"),
        ({"waited_for": {"block_ns": 0, "cells": []}}, "block_ns is 0"),
        ({"operations": 1}, "operations is not a list"),
        ({"operations": [1]}, "size_class is missing"),
        ({"operations": [operation(size_class=65)]}, "size_class is above 64"),
        ({"operations": [operation(count=True)]}, "count is not a whole number"),
    ],
)
def test_invalid_summaries_are_refused_with_the_reason(
    change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_summary(memoryview(json.dumps(summary(**change)).encode()))


def test_a_summary_that_lacks_a_key_is_refused_with_the_key_s_name() -> None:
    for key in summary():
        value = summary()
        del value[key]
        with pytest.raises(ValueError, match=f"{key} is missing"):
            read_summary(memoryview(json.dumps(value).encode()))


def two_ranks(directory: Path) -> None:
    """The same group has number 1 on rank 0 and number 2 on rank 1."""
    write(directory / "rank_0.trace", block(summary()), made.end(), world_size=2)
    other = summary(
        steps=document([20 * MS] * 2),
        exposed=document([13 * MS] * 2),
        end_ns=3_000_000_000,
        arrivals={"known": 1, "unknown": 4, "unsplit_steps": 1},
        exposed_wait=document([4 * MS]),
        exposed_transfer=document([5 * MS]),
        last=[{"rank": 0, "count": 5, "wait_ns": 9 * MS}, {"rank": 1, "count": 1, "wait_ns": 0}],
        operations=[
            operation(group=2, duration=document([8 * MS] * 2), failed=1),
            operation(op=0, group=0, size_class=0, count=5, duration=document([])),
        ],
        moved=5,
    )
    write(
        directory / "rank_1.trace", block(other), made.end(dropped=3), rank=1, world_size=2, group=2
    )


def test_summaries_of_older_versions_that_call_the_transfer_wire_are_read() -> None:
    older = summary()
    older["exposed_wire"] = older.pop("exposed_transfer")
    for row in older["operations"]:
        row["wire"] = row.pop("transfer")
    found, expected = (
        read_summary(memoryview(json.dumps(value).encode())) for value in (older, summary())
    )
    assert found.exposed_transfer.sum_ns == expected.exposed_transfer.sum_ns == 4 * MS
    assert found.operations[0].transfer.sum_ns == expected.operations[0].transfer.sum_ns == 6 * MS


def test_summaries_of_two_ranks_are_combined(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    result = analyse_run(tmp_path)
    (found,) = result.summaries
    assert (result.worlds, result.failures) == ((), ())
    assert (found.ranks, found.timing.steps, found.covered_s) == ((0, 1), 2, 3.0)
    parts = (
        found.timing.data_ms,
        found.timing.forward_ms,
        found.timing.backward_ms,
        found.timing.optimizer_ms,
    )
    assert parts == (1, 2, 3, 0)
    assert (found.timing.step_ms, found.timing.exposed_ms, found.timing.other_ms) == (15, 8, 1)
    assert sum(parts) + found.timing.exposed_ms + found.timing.other_ms == found.timing.step_ms
    assert found.timing.step_median_ms == pytest.approx(10, rel=0.01)
    assert found.timing.step_p95_ms == pytest.approx(20, rel=0.01)
    reduce, others = found.operations
    assert (reduce.op, reduce.group, reduce.below_bytes) == ("all_reduce", "dp", 2**21)
    assert (reduce.count, reduce.bytes, reduce.failed) == (4, 6_000_000, 1)
    assert reduce.duration.count == 4
    assert reduce.duration.total_ms == 26
    assert reduce.duration.p50_ms == pytest.approx(6, rel=0.01)
    assert reduce.duration.p99_ms == pytest.approx(8, rel=0.01)
    assert (others.op, others.group, others.below_bytes, others.count) == ("other", "", 0, 5)
    assert (found.moved, found.dropped_records) == (5, 3)
    # Three steps have a known split: waits of 1, 1 and 4 ms, and transfers of 2, 2 and 5 ms.
    assert (found.timing.exposed_wait_ms, found.timing.exposed_transfer_ms) == (2, 3)
    assert (
        found.arrivals.arrivals_known,
        found.arrivals.arrivals_unknown,
        found.timing.unsplit_steps,
    ) == (3, 4, 1)
    assert [(row.rank, row.share, row.cost_s) for row in found.last] == [
        (0, 7 / 8, 0.009),
        (1, 1 / 8, 0),
    ]
    assert reduce.until_last.total_ms == 8
    assert reduce.transfer.count == 4
    # Each call moves 1.5 MB in 3 ms; with two ranks, busbw equals algbw.
    assert reduce.algbw_gb_per_s == reduce.busbw_gb_per_s == pytest.approx(0.5)
    assert math.isnan(others.algbw_gb_per_s)
    assert found.late_rank is None


def test_the_report_names_unknown_arrivals_dropped_records_and_missing_summaries(
    tmp_path: Path,
) -> None:
    two_ranks(tmp_path)
    text = table.render(analyse_run(tmp_path), 100)
    assert (
        "the rank that came last is not known for 4 of 7 collectives, and the split into wait and "
        "transfer is not known for 1 steps: a" in (" ".join(text.split()))
    )
    row = next(line.split() for line in text.splitlines() if line.startswith("    2  "))
    assert row[:2] == ["2", "2"]
    assert row[-2:] == ["2", "3"]
    assert re.search(r"all_reduce +dp +<2Mi", text)
    assert "3 records were dropped" in text
    assert "5 operations of rare groups and sizes are counted in the rows without a group" in (
        " ".join(text.split())
    )
    assert re.search(r"other +- +- +5 ", text)
    (tmp_path / "rank_1.trace").unlink()
    text = table.render(analyse_run(tmp_path), 100)
    assert "no summary from rank 1;" in text


def test_a_remark_names_where_steps_end_if_it_was_not_declared(tmp_path: Path) -> None:
    not_seen = (
        "no optimizer stepped or because commprof.profile() was called without find_steps=True"
    )
    for source, said in (("backward", not_seen), ("update", "optimizer.step()")):
        write(tmp_path / "rank_0.trace", block(summary(steps_end=source)), made.end())
        result = analyse_run(tmp_path)
        assert [found.timing.steps_end for found in result.summaries] == [source]
        assert [said in remark for remark in result.remarks] == [True]
    write(tmp_path / "rank_0.trace", block(summary()), made.end())
    assert analyse_run(tmp_path).remarks == ()


@pytest.mark.parametrize(
    ("op", "bytes_mb", "algbw", "busbw"),
    # nccl-tests takes the larger of input and output as the size.
    [("all_reduce", 3, 1.0, 1.5), ("all_gather", 3, 1.0, 0.75), ("gather", 3, None, None)],
)
def test_bandwidth_is_computed_from_summaries_alone(
    tmp_path: Path, op: str, bytes_mb: int, algbw: float | None, busbw: float | None
) -> None:
    one = operation(
        op=OPS.index(op), count=1, bytes=bytes_mb * 1_000_000, transfer=document([3 * MS])
    )
    groups = made.document(made.GROUP_BLOCK, made.group(1, name="dp", size=4))
    blocks = (groups, block(summary(operations=[one])), made.end())
    (tmp_path / "rank_0.trace").write_bytes(made.trace(*blocks, ops=list(OPS)))
    (found,) = analyse_run(tmp_path).summaries
    (row,) = found.operations
    expected = [pytest.approx(x, nan_ok=True) for x in (algbw or math.nan, busbw or math.nan)]
    assert [row.algbw_gb_per_s, row.busbw_gb_per_s] == expected


def test_the_report_explains_unknown_exposed_time_if_no_step_was_seen(tmp_path: Path) -> None:
    nothing = {"steps": document([]), "exposed": document([]), "phases": [document([])] * 5}
    write(tmp_path / "rank_0.trace", block(summary(**nothing)), made.end())
    text = " ".join(table.render(analyse_run(tmp_path), 100).split())
    assert "no step after the first was seen, so exposed time is not known" in text
    write(tmp_path / "rank_0.trace", block(summary()), made.end())
    assert "no step after the first" not in table.render(analyse_run(tmp_path), 100)
    for rank, value in enumerate((summary(), summary(**nothing))):
        path = tmp_path / f"rank_{rank}.trace"
        write(path, block(value), made.end(), rank=rank, world_size=2)
    text = " ".join(table.render(analyse_run(tmp_path), 100).split())
    assert "was seen on at least one rank, so its exposed time is not known. A step ends" in text


def test_a_killed_rank_keeps_its_summary_but_in_always_on_mode_not_its_ring_records(
    tmp_path: Path,
) -> None:
    for mode, expected in (("always-on", 0), ("full", 1)):
        prefix = tmp_path / f"{mode}-"
        Path(f"{prefix}0.ring").write_bytes(made.ring({0: made.record(5)}, head=1, dropped=2))
        path = tmp_path / "rank_0.trace"
        path.write_bytes(made.trace(block(summary(mode=mode)), ring_prefix=str(prefix)))
        trace = read_trace(path)
        assert (len(trace.records), trace.dropped) == (expected, 2)
    text = table.render(analyse_run(tmp_path), 100)
    assert "never closed its trace" in text


def four_ranks(
    directory: Path,
    hosts: int = 1,
    links: dict[str, int] | None = None,
    paused_ms: int = 0,
    waiting: tuple[int, ...] = (0, 1, 3),
    cut_off: tuple[int, ...] = (),
    **changes: Any,
) -> Path:
    """In each of 40 steps of 100 ms, ranks ``waiting`` wait 20 ms for rank 2.

    Rank 2 is paused for ``paused_ms`` in total; the hosts of ranks ``cut_off`` receive no arrivals.
    """
    for rank in range(4):
        late = rank == 2
        # Rank 0's blocks are twice as long as those of the other ranks.
        length = (2 if rank == 0 else 1) << 24
        cells = [x for at in range(1000, 1040) for x in ((at << 24) // length, 2, 20 * MS)]
        content: dict[str, Any] = {
            "steps": document([100 * MS] * 40),
            "phases": [document([n * MS] * 40) for n in (74, 1, 2, 23 if late else 3, 0)],
            "exposed": document([0 if late else 20 * MS] * 40),
            "last": [{"rank": 2, "count": 40, "wait_ns": 0 if late else 800 * MS}],
            "waited_for": {"block_ns": length, "cells": cells if rank in waiting else []},
            **({} if links is None else {"hosts": links}),
            **({"hosts": state_of(heard=0)} if rank in cut_off else {}),
            **({"paused": [0, 0, 0, paused_ms * MS if late else 0, 0]} if paused_ms else {}),
            **changes,
        }
        blocks = (block(summary(**content)), made.end())
        path = directory / f"rank_{rank}.trace"
        write(path, *blocks, rank=rank, world_size=4, host=f"b{rank % hosts}")
    return directory


def test_the_late_rank_is_named_from_summaries_alone(tmp_path: Path) -> None:
    (found,) = analyse_run(four_ranks(tmp_path)).summaries
    late = found.late_rank
    assert late is not None
    assert (late.rank, late.phase, late.phase_share) == (2, "backward", 1.0)
    assert late.wait_ms == pytest.approx(20)
    assert late.cost_s == pytest.approx(2.4)
    assert (late.share, late.p_value) == (1.0, 1 / 2001)
    assert [(row.rank, row.share, row.cost_s) for row in found.last] == [(2, 1.0, 2.4)]
    text = " ".join(table.render(analyse_run(tmp_path), 100).split())
    assert "rank 2 is late: each of the other ranks waits 20.0 ms per step for it, 100% of" in text


def test_the_ranks_of_a_slow_host_are_named_from_summaries_alone(tmp_path: Path) -> None:
    for rank in range(8):
        is_slow = rank >= 4
        cells = [] if is_slow else [x for at in range(40) for x in (at, 4 + at % 4, 20 * MS)]
        content = {
            "steps": document([100 * MS] * 40),
            "phases": [document([n * MS] * 40) for n in (74, 1, 2, 23 if is_slow else 3, 0)],
            "exposed": document([0 if is_slow else 20 * MS] * 40),
            "waited_for": {"block_ns": 1 << 24, "cells": cells},
            "hosts": state_of(),
        }
        path = tmp_path / f"rank_{rank}.trace"
        blocks = (block(summary(**content)), made.end())
        write(path, *blocks, rank=rank, world_size=8, host=f"node-{rank // 4}")
    (found,) = analyse_run(tmp_path).summaries
    assert found.late_rank is None
    assert found.slower_ranks is not None
    assert (found.slower_ranks.hosts, found.slower_ranks.phase) == (("node-1",), "backward")
    text = " ".join(table.render(analyse_run(tmp_path), 100).split())
    assert "ranks 4-7 (all of host node-1) fall behind in the backward phase by 20 ms or" in text
    assert "or more per step (mean over the steps): each of the 4 ranks" in text
    waits = "each of the 4 ranks that wait for them waits 20 ms per step, 100% of all waiting"
    assert waits in text


def test_only_ranks_that_wait_for_the_late_rank_are_counted(tmp_path: Path) -> None:
    (found,) = analyse_run(four_ranks(tmp_path, waiting=(3,))).summaries
    late = found.late_rank
    assert late is not None
    assert (late.rank, late.waiting_ranks) == (2, 1)
    assert late.wait_ms == pytest.approx(20)
    text = " ".join(table.render(analyse_run(tmp_path), 100).split())
    assert "rank 2 is late: one other rank waits 20.0 ms per step for it" in text


def test_waiting_that_ranks_passed_on_names_the_rank_at_which_it_begins(tmp_path: Path) -> None:
    for rank, awaited in enumerate((None, 0, 1, 1)):
        cells = [] if awaited is None else [n for at in range(40) for n in (at, awaited, 20 * MS)]
        content = {
            "steps": document([100 * MS] * 40),
            "phases": [document([n * MS] * 40) for n in (74, 1, 2 if rank else 22, 3, 0)],
            "exposed": document([20 * MS if rank else 0] * 40),
            "waited_for": {"block_ns": 1 << 24, "cells": cells},
        }
        blocks = (block(summary(**content)), made.end())
        write(tmp_path / f"rank_{rank}.trace", *blocks, rank=rank, world_size=4)
    (found,) = analyse_run(tmp_path).summaries
    late = found.late_rank
    assert late is not None
    assert (late.rank, late.phase, late.waiting_ranks, late.through) == (0, "forward", 3, (1,))
    assert late.wait_ms == pytest.approx(20)
    text = " ".join(table.render(analyse_run(tmp_path), 100).split())
    passed_on = (
        "Some ranks wait for it through rank 1, which waits for it and is therefore late too."
    )
    assert passed_on in text


@pytest.mark.parametrize(
    ("paused_ms", "named", "share"),
    # Rank 2's backward takes 20 ms longer in each of 40 steps: 800 ms together.
    [(800, "host pause", 1.0), (600, "host pause", 0.75), (200, "backward", 0.75)],
)
def test_host_pauses_are_separated_from_the_late_rank_s_phase(
    tmp_path: Path, paused_ms: int, named: str, share: float
) -> None:
    (found,) = analyse_run(four_ranks(tmp_path, paused_ms=paused_ms)).summaries
    assert found.late_rank is not None
    assert (found.late_rank.phase, found.late_rank.phase_share) == (named, pytest.approx(share))
    assert found.timing.backward_ms == pytest.approx(8)
    text = " ".join(table.render(analyse_run(tmp_path), 100).split())
    where = "is time in which its process did not run (host pause)."
    if named != "host pause":
        where = "lies in its backward phase."
    assert f"{share:.0%} of the excess {where}" in text


def test_a_rank_that_is_slow_in_all_phases_is_not_named_late(tmp_path: Path) -> None:
    everywhere = [document([n * MS] * 40) for n in (74, 1, 2, 3, 0)]
    (found,) = analyse_run(four_ranks(tmp_path, phases=everywhere)).summaries
    assert found.late_rank is None


def test_no_late_rank_is_named_if_a_rank_s_trace_is_missing(tmp_path: Path) -> None:
    (four_ranks(tmp_path) / "rank_3.trace").unlink()
    (found,) = analyse_run(tmp_path).summaries
    assert found.late_rank is None


def state_of(clock: int = 1, heard: int = 1, unsent: int = 0) -> dict[str, int]:
    return {"clock": clock, "peers": 1, "heard": heard, "unsent": unsent}


def test_across_hosts_the_late_rank_is_named_with_the_clocks_error(tmp_path: Path) -> None:
    errors = document([40_000] * 38 + [90_000] * 2)
    four_ranks(tmp_path, hosts=2, links=state_of(), arrival_clock_error=errors)
    (found,) = analyse_run(tmp_path).summaries
    assert found.late_rank is not None
    assert found.late_rank.rank == 2
    assert (
        found.arrivals.machines,
        found.arrivals.clocks_compared,
        found.arrivals.hosts_heard,
    ) == (2, True, 1)
    assert found.arrivals.arrival_clock_error_p95_us == pytest.approx(40, rel=0.01)
    assert found.arrivals.arrival_clock_error_us == 90
    text = " ".join(table.render(analyse_run(tmp_path), 100).split())
    assert "known to within 40 us for 95 % of the collectives and 90 us for all;" in text


def test_across_hosts_no_late_rank_is_named_if_the_clock_error_exceeds_the_wait(
    tmp_path: Path,
) -> None:
    errors = document([60 * MS] * 40)
    (found,) = analyse_run(
        four_ranks(tmp_path, hosts=2, links=state_of(), arrival_clock_error=errors)
    ).summaries
    assert found.late_rank is None


@pytest.mark.parametrize("state", [state_of(clock=0), state_of(heard=0)])
def test_no_late_rank_is_named_across_hosts_that_received_no_clocks_or_arrivals(
    tmp_path: Path, state: dict[str, int]
) -> None:
    (found,) = analyse_run(four_ranks(tmp_path, hosts=2, links=state)).summaries
    assert found.late_rank is None


@pytest.mark.parametrize(
    ("hosts", "state", "known", "placeless", "reason"),
    [
        (
            2,
            state_of(clock=0, heard=0),
            0,
            0,
            "on 2 hosts, and a host's clock was not compared with",
        ),
        (2, state_of(heard=0), 0, 0, "one of them received no arrival times: UDP"),
        (1, state_of(clock=0, heard=0), 0, 0, "the ranks did not exchange the times at which"),
        (1, state_of(clock=0, heard=0), 9, 0, "16,384 collectives (fewer in a job of many groups)"),
        (1, state_of(), 9, 2, "8 of these collectives belong to groups that did not fit"),
        (1, state_of(), 9, 1, "groups and 48 MiB); for the others, a rank did not record, or was"),
        (2, state_of(), 9, 0, "other hosts' issue times were lost on the network."),
        # Ranks of one host share a carrier, so the datagrams of each host count once.
        (2, state_of(unsent=3), 9, 0, "were lost on the network (6 datagrams could not be sent)"),
    ],
)
def test_the_report_gives_the_reason_why_the_last_rank_is_unknown(
    tmp_path: Path, hosts: int, state: dict[str, int], known: int, placeless: int, reason: str
) -> None:
    counts = {"known": known, "unknown": 2, "without_place": placeless, "unsplit_steps": 1}
    result = analyse_run(four_ranks(tmp_path, hosts=hosts, links=state, arrivals=counts))
    text = " ".join(table.render(result, 100).split())
    assert f"the rank that came last is not known for 8 of {4 * known + 8} collectives" in text
    assert reason in text


def test_the_report_says_how_many_arrivals_were_dropped_and_why(tmp_path: Path) -> None:
    counts = {"known": 9, "unknown": 7, "without_place": 2, "unlisted": 3, "partial": 4}
    links = state_of() | {"skipped": 11}
    result = analyse_run(
        four_ranks(tmp_path, hosts=2, links=links, arrivals=counts | {"unsplit_steps": 1})
    )
    text = " ".join(table.render(result, 100).split())
    assert "not known for 28 of 64 collectives" in text
    assert "8 of these collectives belong to groups that did not fit into the memory" in text
    assert "12 of these collectives belong to groups of more than 256 ranks on several" in text
    assert "for the others, a rank did not record" in text
    assert "or a host had no room for them (22 collectives)" in text
    assert "for 16 of 36 collectives, the arrivals of ranks on other hosts were not seen" in text


def test_ranks_beyond_the_costliest_count_in_the_shares_of_the_others(tmp_path: Path) -> None:
    four_ranks(tmp_path, last_others={"count": 40, "wait_ns": 5})
    (found,) = analyse_run(tmp_path).summaries
    assert [(row.rank, row.share) for row in found.last] == [(2, 0.5)]


def test_a_host_that_is_cut_off_costs_its_own_waits_only(tmp_path: Path) -> None:
    four_ranks(tmp_path, hosts=4, links=state_of(), cut_off=(0,))
    (found,) = analyse_run(tmp_path).summaries
    assert found.late_rank is not None
    assert found.late_rank.rank == 2
    assert found.late_rank.waiting_ranks == 2
    assert found.arrivals.hosts_heard == 0


def test_a_rank_that_did_not_record_is_the_reason_why_the_last_rank_is_unknown(
    tmp_path: Path,
) -> None:
    counts = {"known": 0, "unknown": 2, "unsplit_steps": 1}
    four_ranks(tmp_path, arrivals=counts)
    (tmp_path / "rank_3.trace").unlink()
    text = " ".join(table.render(analyse_run(tmp_path), 100).split())
    assert "is not known for 6 of 6 collectives" in text
    assert "a rank did not record in always-on mode; start capture on every rank." in text
    assert "did not exchange" not in text
