from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from commprof.analysis.checks.figure_checks import TRAFFIC, CrossCheck
from commprof.analysis.collectives.traffic import sent_bytes
from commprof.trace import columns
from commprof.trace.schema import OPS, Phase
from commprof.trace.summary import Summary
from tests.support.analysed import analyse_world
from tests.support.builders.traces import MS, Rank, world_run

STEPS = 12
MB = 1_000_000


def ranks_of(count: int, **metadata: Any) -> list[Rank]:
    ranks = [Rank(rank, count, **metadata) for rank in range(count)]
    for step in range(STEPS):
        at = 100 * MS * step
        for rank in ranks:
            rank.step(at, at + 100 * MS)
            rank.phase(Phase.BACKWARD, at + 30 * MS, at + 90 * MS)
            rank.collective(step, at + 70 * MS, at + 90 * MS, bytes=8 * MB, graph_task=step)
            rank.finalize(at + 70 * MS, at + 90 * MS, cpu=0, graph_task=step)
    return ranks


def sources(**values: Any) -> dict[str, Any]:
    """The sources begin at 2 ns, after the clock anchor of the trace at 1 ns."""
    return {
        "begin_monotonic_ns": 2,
        "network_namespace": "net:[1]",
        "interfaces": {},
        "ddp_logs": [],
        **values,
    }


def counted(**sent: int) -> dict[str, dict[str, int]]:
    return {name: {"received_bytes": 0, "sent_bytes": value} for name, value in sent.items()}


def checks(ranks: list[Rank], world_size: int | None = None) -> dict[str, CrossCheck]:
    result = analyse_world(world_run(ranks, world_size))
    assert result is not None
    return {check.name: check for check in result.cross_checks}


def test_phases_agree_only_if_their_sum_equals_the_step_time() -> None:
    found = checks(ranks_of(1))["phases"]
    assert (found.ours, found.other, found.agrees) == (100.0, pytest.approx(100.0), True)
    # A data phase of 80 ms overlaps backward: parts of 80 + 60 ms exceed the step by 40 ms.
    (rank,) = ranks_of(1)
    for step in range(STEPS):
        rank.phase(Phase.DATA, (100 * step + 20) * MS, (100 * step + 100) * MS)
    found = checks([rank])["phases"]
    assert (found.ours, found.other, found.agrees) == (100.0, pytest.approx(140.0), False)
    assert found.difference == pytest.approx(0.4)


def test_the_loop_clock_check_shows_the_rank_with_the_largest_difference() -> None:
    ranks = ranks_of(3)
    run = world_run(ranks)
    run.results[1]["step_ns"] = [110 * MS] * STEPS
    result = analyse_world(run)
    assert result is not None
    (found,) = (check for check in result.cross_checks if check.name == "loop_clock")
    assert (found.ours, found.other, found.agrees) == (1.1, pytest.approx(1.21), False)
    assert found.note.startswith("rank 1")


def test_the_loop_clock_check_is_undecided_without_step_times_of_the_loop() -> None:
    run = world_run(ranks_of(1))
    run.results.clear()
    result = analyse_world(run)
    assert result is not None
    (found,) = (check for check in result.cross_checks if check.name == "loop_clock")
    assert (found.agrees, found.note) == (None, "there are no step times from the built-in loop")
    assert math.isnan(found.other)


LOG = {
    "iteration": 10,
    "bucket_sizes": "100",
    "rebuilt_bucket_sizes": f"{5 * MB}, {3 * MB}",
    "avg_backward_compute_time": 42 * MS,
    "avg_backward_comm_time": 50 * MS,
    "avg_backward_compute_comm_overlap_time": 25 * MS,
}


def test_ddp_s_log_is_compared_with_recorded_bytes_and_times() -> None:
    found = checks(ranks_of(1, cross_check_sources=sources(ddp_logs=[LOG])))
    assert (found["ddp_bytes"].ours, found["ddp_bytes"].other) == (8.0, 8.0)
    assert found["ddp_bytes"].agrees
    assert found["ddp_backward"].ours == pytest.approx(40.0)
    assert found["ddp_backward"].difference == pytest.approx(0.05)
    assert found["ddp_backward"].agrees is None
    assert (found["ddp_exposed"].ours, found["ddp_exposed"].other) == (pytest.approx(20), 25)
    assert found["ddp_exposed"].agrees is None


def test_ddp_s_log_with_other_bucket_sizes_disagrees() -> None:
    log = {**LOG, "rebuilt_bucket_sizes": str(16 * MB), "avg_backward_compute_time": 80 * MS}
    found = checks(ranks_of(1, cross_check_sources=sources(ddp_logs=[log])))
    assert found["ddp_bytes"].agrees is False
    assert found["ddp_backward"].difference == pytest.approx(1.0)


@pytest.mark.parametrize("own", ["the communication hook bf16_compress_hook", ""])
def test_bytes_in_ddp_s_log_are_not_judged_if_the_script_has_its_own_hook(own: str) -> None:
    log = {**LOG, "rebuilt_bucket_sizes": str(16 * MB), "own_exchange": own}
    found = checks(ranks_of(1, cross_check_sources=sources(ddp_logs=[log])))["ddp_bytes"]
    assert found.agrees is (None if own else False)
    reason = f"the bytes sent may differ from DDP's bucket sizes: {own} decides what is sent"
    assert found.note == (reason if own else "rank 0")


def test_ddp_s_bytes_are_compared_per_backward_pass_without_other_collectives() -> None:
    # Accumulation without no_sync and LBFGS have several synchronised passes in a step.
    (rank,) = ranks_of(1, groups={1: ("0", 1), 2: ("tensor", 1)})
    for step in range(STEPS):
        for more in (1, 2):
            at, task = (100 * step + 5 * more) * MS, STEPS * more + step
            rank.collective(task, at, at + MS, bytes=8 * MB, graph_task=task)
            rank.collective(task, at, at + MS, bytes=9 * MB, graph_task=task, group=2)
            rank.collective(task, at, at + MS, bytes=9 * MB, graph_task=task, op="all_to_all")
    log = {**LOG, "group_name": "0"}
    rank.metadata["cross_check_sources"] = sources(ddp_logs=[log])
    found = checks([rank])["ddp_bytes"]
    assert (found.ours, found.other, found.agrees) == (8.0, 8.0, True)


def test_ddp_s_bytes_are_not_compared_if_a_trace_was_not_closed() -> None:
    run = world_run(ranks_of(1))
    cut = {rank: replace(trace, complete=False) for rank, trace in run.traces.items()}
    result = analyse_world(replace(run, traces=cut))
    assert result is not None
    (found,) = (check for check in result.cross_checks if check.name == "ddp_bytes")
    assert "some traces were not closed" in found.note


def test_ddp_s_bytes_are_not_compared_with_sparse_gradients() -> None:
    log = {**LOG, "rebuilt_bucket_sizes": str(16 * MB), "sparse_modules": 1}
    found = checks(ranks_of(1, cross_check_sources=sources(ddp_logs=[log])))
    assert found["ddp_bytes"].agrees is None
    assert "sparse gradients as if they were dense" in found["ddp_bytes"].note


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({}, "no DDP model was trained while capture ran"),
        ({"cross_check_sources": sources()}, "no DDP model was trained"),
        ({"cross_check_sources": sources(ddp_logs=[LOG, LOG])}, "2 DDP models"),
        # The sources begin before the trace, so an earlier trace of the process left them.
        ({"cross_check_sources": sources(ddp_logs=[LOG], begin_monotonic_ns=0)}, "no DDP model"),
        ({"cross_check_sources": sources(ddp_logs=[{"iteration": 0}])}, "DDP's log"),
        ({"cross_check_sources": sources(ddp_logs=[], ddp_models=1)}, "trained have no log"),
    ],
)
def test_without_a_usable_ddp_log_the_ddp_checks_give_the_reason(
    metadata: dict[str, Any], reason: str
) -> None:
    found = checks(ranks_of(1, **metadata))
    for name in ("ddp_bytes", "ddp_backward", "ddp_exposed"):
        assert math.isnan(found[name].other)
        assert found[name].agrees is None
        assert reason in found[name].note


def test_ranks_of_one_host_share_the_byte_counter_of_its_interface() -> None:
    # Each of four ranks sends 2 * 3/4 * 8 MB = 12 MB per step; lo counts the bytes of all ranks.
    payload = 4 * 12 * STEPS
    shared = sources(interfaces=counted(lo=payload * MB, eth0=7))
    found = checks(ranks_of(4, cross_check_sources=shared))["network"]
    assert (found.what, found.ours, found.other) == ("bytes sent by lo, 1 host", payload, payload)
    assert found.agrees
    assert "other traffic" in found.note


def test_one_rank_on_each_host_sends_through_its_busiest_interface() -> None:
    ranks = ranks_of(2)
    for rank, sent in zip(ranks, (96 * MB, 97 * MB), strict=True):
        rank.metadata["cross_check_sources"] = sources(
            network_namespace=f"net:[{rank.rank}]",
            interfaces=counted(lo=500 * MB, eth0=sent, wlan0=3),
        )
    found = checks(ranks)["network"]
    assert found.what == "bytes sent by eth0, 2 hosts"
    assert (found.ours, found.other, found.agrees) == (192, 193, True)


def test_two_ranks_on_each_of_two_hosts_use_the_loopback_and_the_network_interface() -> None:
    ranks = ranks_of(4)
    for rank in ranks:
        rank.metadata["cross_check_sources"] = sources(
            network_namespace=f"net:[{rank.rank // 2}]",
            interfaces=counted(lo=144 * MB, eth0=144 * MB),
        )
    found = checks(ranks)["network"]
    assert (found.what, found.ours) == ("bytes sent by eth0 and lo, 2 hosts", 576)
    assert (found.other, found.agrees) == (576, True)


def test_interface_counters_above_the_payload_are_undecided_and_below_it_disagree() -> None:
    payload = 2 * 8 * STEPS * MB
    more = sources(interfaces=counted(lo=3 * payload))
    found = checks(ranks_of(2, cross_check_sources=more))["network"]
    assert found.agrees is None
    assert found.difference == pytest.approx(2.0)
    less = sources(interfaces=counted(lo=payload // 2))
    assert checks(ranks_of(2, cross_check_sources=less))["network"].agrees is False


def test_interface_counters_are_undecided_if_no_recorded_collective_has_a_payload() -> None:
    ranks = [Rank(n, 2, cross_check_sources=sources(interfaces=counted(lo=MB))) for n in range(2)]
    for step in range(STEPS):
        at = 100 * MS * step
        for rank in ranks:
            rank.step(at, at + 100 * MS)
            rank.collective(step, at + 70 * MS, at + 90 * MS, op="barrier")
    found = checks(ranks)["network"]
    assert (found.ours, found.other, found.agrees) == (0.0, 1.0, None)


def test_a_run_that_switched_mode_counts_bytes_of_records_and_summary_once() -> None:
    # The summary counts the steps from 600 ms on; the records end at 800 ms, so both have 2 steps.
    payload = 2 * 8 * STEPS * MB
    run = world_run(ranks_of(2, cross_check_sources=sources(interfaces=counted(lo=payload))))
    later = [(int(code), 1, 6, 6 * 8 * MB) for code in [OPS.index("all_reduce")]]
    operations = [Mock(op=op, group=group, bytes=size) for op, group, _, size in later]
    summary = Mock(spec=Summary, operations=operations, begin_ns=600 * MS)
    traces = {}
    for rank, trace in run.traces.items():
        time_ns = trace.records["timestamp_ns"]
        kept = trace.records[(time_ns < 800 * MS)]
        traces[rank] = replace(trace, records=kept, summary=summary)
    result = analyse_world(replace(run, traces=traces))
    assert result is not None
    (found,) = [check for check in result.cross_checks if check.name == "network"]
    assert (found.ours, found.other, found.agrees) == (payload / MB, payload / MB, True)
    assert found.note == TRAFFIC


def test_a_host_s_counters_come_from_the_rank_that_captured_longest() -> None:
    payload = 2 * 8 * STEPS * MB
    ranks = ranks_of(2)
    for rank, sent in zip(ranks, (payload // 2, payload), strict=True):
        rank.metadata["cross_check_sources"] = sources(interfaces=counted(lo=sent))
    assert checks(ranks)["network"].agrees


def test_ranks_that_left_their_trace_elsewhere_are_not_called_free_of_network() -> None:
    alone = ranks_of(2, cross_check_sources=sources(interfaces=counted(lo=8 * MB)))[:1]
    note = checks(alone, world_size=1)["network"].note  # a replica was started alone
    assert note == "a process group has 2 ranks, but only 1 left a trace"


def test_the_network_check_gives_the_reason_for_missing_counters() -> None:
    assert "some traces lack" in checks(ranks_of(2))["network"].note
    sound = sources(interfaces=counted(lo=1))
    missing = checks(ranks_of(2, cross_check_sources=sound)[:1], world_size=2)["network"]
    assert missing.note == "some ranks left no trace"
    ranks = ranks_of(3)
    for rank, namespace in zip(ranks, ("net:[1]", "net:[2]", ""), strict=True):
        rank.metadata["cross_check_sources"] = {**sound, "network_namespace": namespace}
    assert checks(ranks)["network"].note == "the host of rank 2 is not known"
    assert math.isnan(missing.difference)


@pytest.mark.parametrize(
    ("op", "size_mb", "sent_mb"),
    [
        ("all_reduce", 8, 12),
        ("broadcast", 8, 6),
        ("reduce", 8, 6),
        ("all_gather", 8, 24),
        ("reduce_scatter_tensor", 8, 6),
        ("all_to_all_single", 8, 6),
        ("gather", 8, 6),
        ("scatter", 8, 6),
        ("send", 8, 8),
        ("recv", 8, 0),
        ("barrier", 0, 0),
    ],
)
def test_bytes_sent_per_operation_by_one_of_four_ranks(op: str, size_mb: int, sent_mb: int) -> None:
    rank = Rank(0, 4)
    rank.collective(0, 1, 2, bytes=size_mb * MB, op=op)
    trace = rank.trace()
    assert sent_bytes(trace, columns.collectives(trace)).tolist() == [sent_mb * MB]


def test_bytes_sent_are_nan_for_unknown_operations_and_groups() -> None:
    rank = Rank(0, 4)
    rank.collective(0, 1, 2, bytes=8, op="other")
    rank.collective(0, 1, 2, bytes=8, group=9)
    trace = rank.trace()
    assert all(math.isnan(x) for x in sent_bytes(trace, columns.collectives(trace)).tolist())


def test_bytes_sent_are_known_for_every_operation_but_other() -> None:
    rank = Rank(0, 2)
    for op in OPS:
        rank.collective(0, 1, 2, bytes=8, op=op)
    trace = rank.trace()
    sent = sent_bytes(trace, columns.collectives(trace)).tolist()
    assert [op for op, size in zip(OPS, sent, strict=True) if math.isnan(size)] == ["other"]


def test_the_difference_of_a_check_is_nan_without_both_figures() -> None:
    check = CrossCheck("a", "b", "ms", 100.0, 90.0, None, "")
    assert check.difference == pytest.approx(-0.1)
    assert math.isnan(dataclasses.replace(check, ours=0.0).difference)
    assert math.isnan(dataclasses.replace(check, other=math.nan).difference)


THEORY_STEPS = 8


def gathering_ranks(count: int, **metadata: Any) -> list[Rank]:
    ranks = [Rank(rank, count, **metadata) for rank in range(count)]
    for step in range(THEORY_STEPS):
        at = 100 * MS * step
        for rank in ranks:
            rank.step(at, at + 100 * MS)
            rank.phase(Phase.FORWARD, at, at + 50 * MS)
            for part, (op, sent, received) in enumerate(
                [
                    ("all_gather_into_tensor", 3 * MB // count, 3 * MB),
                    ("all_gather_into_tensor", MB // count, MB),
                    ("reduce_scatter_tensor", 2 * MB, 2 * MB // count),
                ]
            ):
                begin = at + (10 + 10 * part) * MS
                sizes = {"bytes_in": sent, "bytes_out": received}
                rank.collective(3 * step + part, begin, begin + 5 * MS, op=op, **sizes)
    return ranks


def row(op: str, size_bytes: int) -> dict[str, Any]:
    return {"op": op, "size_bytes": size_bytes, "formula": "on paper"}


def theory_checks_of(
    ranks: list[Rank], expected: list[dict[str, Any]] | None
) -> dict[str, CrossCheck]:
    result = analyse_world(world_run(ranks, expected=expected))
    assert result is not None
    return {check.name: check for check in result.cross_checks if check.name.startswith("theory")}


def test_theory_check_agrees_only_if_the_bytes_per_step_are_equal() -> None:
    expected = [row("all_gather_into_tensor", 4 * MB), row("reduce_scatter_tensor", 3 * MB)]
    found = theory_checks_of(gathering_ranks(2), expected)

    gathered = found["theory_all_gather_into_tensor"]
    assert (gathered.ours, gathered.other, gathered.agrees) == (4.0, 4.0, True)
    assert (gathered.what, gathered.unit, gathered.note) == (
        "all_gather_into_tensor per step by theory", "MB", "on paper",
    )  # fmt: skip
    scattered = found["theory_reduce_scatter_tensor"]
    assert (scattered.ours, scattered.other, scattered.agrees) == (2.0, 3.0, False)


def test_theory_check_disagrees_if_an_expected_operation_was_never_issued() -> None:
    found = theory_checks_of(gathering_ranks(2), [row("all_reduce", MB)])["theory_all_reduce"]

    assert (found.ours, found.other, found.agrees) == (0.0, 1.0, False)


def test_theory_check_shows_the_rank_with_the_largest_difference() -> None:
    ranks = gathering_ranks(2)
    ranks[1].collective(99, 705 * MS, 706 * MS, bytes=MB, op="all_reduce")
    for step in range(THEORY_STEPS):
        ranks[1].collective(200 + step, (100 * step + 5) * MS, (100 * step + 6) * MS, bytes=MB)
    found = theory_checks_of(ranks, [row("all_reduce", 0)])["theory_all_reduce"]

    assert (found.ours, found.other, found.agrees) == (1.0, 0.0, False)


@pytest.mark.parametrize("expected", [None, []])
def test_without_expected_bytes_there_is_no_theory_check(
    expected: list[dict[str, Any]] | None,
) -> None:
    assert theory_checks_of(gathering_ranks(2), expected) == {}


def test_theory_check_is_undecided_with_python_capture() -> None:
    found = theory_checks_of(gathering_ranks(2, capture="python"), [row("all_reduce", MB)])[
        "theory_all_reduce"
    ]

    assert found.agrees is None
    assert math.isnan(found.ours)
    assert "Python capture" in found.note
