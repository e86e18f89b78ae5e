from __future__ import annotations

import dataclasses
import math

import pytest

from commprof.analysis.collectives.nccl import NcclRow, NcclWorld, nccl_world
from commprof.trace import schema
from commprof.trace.documents import Communicator
from commprof.trace.reader import Trace
from commprof.trace.schema import FLAG_DEVICE_TIME, NCCL_ALGORITHMS, NCCL_PROTOCOLS, Kind, Phase
from tests.support.builders.traces import MS, Rank

FOREIGN = 1_000_000


class NcclRank(Rank):
    def __init__(self, rank: int, world_size: int, group_size: int = 0) -> None:
        """``group_size`` is the number of ranks in communicator 1; 0 means all ranks."""
        super().__init__(rank, world_size)
        self.group_size = group_size or world_size

    def nccl_op(
        self,
        op_id: int,
        begin: int,
        end: int,
        seq: int,
        op: str = "all_reduce",
        replay: int = 0,
        size: int = 4096,
        tuning: str = "RING SIMPLE",
    ) -> None:
        """``bytes_out`` holds the spread of the channels' begins (500 ns) and ends (1000 ns)."""
        algorithm, protocol = tuning.split()
        code = 16 * NCCL_ALGORITHMS.index(algorithm) + NCCL_PROTOCOLS.index(protocol)
        self._add(
            Kind.NCCL_OP,
            begin,
            thread=0,
            op_id=op_id,
            op=schema.OPS.index(op),
            value=end,
            group=1,
            seq=seq,
            aux=replay,
            dtype=4,
            reduce_op=code,
            bytes_in=size,
            bytes_out=500 << 32 | 1000,
            flags=FLAG_DEVICE_TIME if end > begin else 0,
        )

    def bucket(self, op_id: int, index: int, ready: int) -> None:
        self._add(Kind.BUCKET, ready, op_id=op_id, aux=index, value=ready, group=1, bytes_in=4096)

    def send(
        self, op_id: int, peer: int, network: int, wait: int, gpu: int, size: int, group: int = 1
    ) -> None:
        end = 1000 + network + wait + gpu
        same = {"op_id": op_id, "group": group, "aux": peer, "thread": size}
        self._add(Kind.NCCL_SEND, 1000, value=end, bytes_in=gpu, bytes_out=wait, **same)

    def told(self) -> Trace:
        rank, size = self.rank % self.group_size, self.group_size
        described = Communicator(1, f"0abc{self.rank // size}", "dp0", rank, size)
        return dataclasses.replace(self.trace(), communicators={1: described})


def analysed(*ranks: NcclRank, clocks_shared: bool = True) -> NcclWorld:
    traces = [rank.told() for rank in ranks]
    found = nccl_world(ranks[0].world_size, traces, traces, clocks_shared)
    assert found is not None
    return found


def row_of(found: NcclWorld, op: str = "all_reduce") -> NcclRow:
    (row,) = [row for row in found.rows if row.kind.op == op]
    return row


def two_ranks() -> list[NcclRank]:
    ranks = []
    for number in range(2):
        rank = NcclRank(number, 2)
        for step in range(3):
            at = step * 10 * MS
            rank.step(at, at + 10 * MS)
            rank.phase(Phase.BACKWARD, at + MS, at + 5 * MS)
            op_id = rank.collective(step, at + 2 * MS, at + 6 * MS, graph_task=step)
            rank.bucket(op_id, 3, at + 2 * MS)
            late = MS if (step, number) == (1, 1) else 0
            rank.nccl_op(op_id, at + 2 * MS + late, at + 6 * MS, step)
        ranks.append(rank)
    return ranks


def test_operations_have_phase_and_bucket_of_their_call() -> None:
    found = analysed(*two_ranks())
    row = row_of(found)
    kind, times = row.kind, row.times
    assert (kind.communicator, kind.size, kind.algorithm, kind.protocol) == (
        *("dp0", 2, "RING", "SIMPLE"),
    )
    assert (row.operations, row.replayed, kind.channels) == (6, 0, (4, 4))
    assert (row.phases, row.buckets) == ((("backward", 6),), (3,))
    assert (times.duration_ms, times.begin_spread_ms, times.end_spread_ms) == (4.0, 0.0005, 0.001)
    assert row.steps == 3


def test_the_shortest_kernel_came_last() -> None:
    found = analysed(*two_ranks())
    row = row_of(found)
    assert row.times.wait_by_kernels_ms == row.times.wait_by_clocks_ms == pytest.approx(1 / 6)
    assert row.times.transfer_ms == pytest.approx((4 + 3 + 4) / 3)
    assert found.waits is not None
    assert (found.waits.collectives, found.waits.same_last) == (3, 3)
    assert found.waits.difference_ms == 0


def test_without_a_common_clock_only_kernels_tell_waits() -> None:
    found = analysed(*two_ranks(), clocks_shared=False)
    assert found.waits is None
    assert math.isnan(row_of(found).times.wait_by_clocks_ms)
    assert row_of(found).times.wait_by_kernels_ms == pytest.approx(1 / 6)


def test_replays_keep_the_phase_of_their_capture() -> None:
    rank = NcclRank(0, 1)
    rank.step(0, 10 * MS)
    rank.step(10 * MS, 30 * MS)
    rank.phase(Phase.FORWARD, 0, 5 * MS)
    op_id = rank.collective(0, MS, 0)
    for replay in range(1, 11):
        begin = 10 * MS + replay * MS
        rank.nccl_op(op_id, begin, begin + MS // 2, replay - 1, replay=replay)
    found = analysed(rank)
    assert (row_of(found).operations, row_of(found).replayed, found.replays) == (10, 10, 10)
    assert (row_of(found).phases, row_of(found).steps) == ((("forward", 10),), 1)


def test_foreign_calls_have_no_phase() -> None:
    rank = NcclRank(0, 1)
    rank.collective(0, MS, 2 * MS)
    rank.nccl_op(FOREIGN, 3 * MS, 4 * MS, 0)
    assert (row_of(analysed(rank)).phases, row_of(analysed(rank)).buckets) == ((), ())


def test_communicators_of_the_same_name_wait_apart() -> None:
    ranks = [NcclRank(number, 4, group_size=2) for number in range(4)]
    for rank, begin in zip(ranks, (1, 3, 11, 12), strict=True):
        end = 5 if rank.rank < 2 else 20
        rank.nccl_op(FOREIGN, begin * MS, end * MS, 0)
    row = row_of(analysed(*ranks))
    assert (row.kind.communicator, row.kind.size, row.operations) == ("dp0", 2, 4)
    assert row.times.wait_by_kernels_ms == row.times.wait_by_clocks_ms == (2 + 1) / 4
    assert row.times.transfer_ms == (2 + 8) / 2


def test_communicators_of_the_same_name_and_other_sizes_are_other_rows() -> None:
    ranks = [NcclRank(0, 6, group_size=2), NcclRank(3, 6, group_size=3)]
    for rank in ranks:
        rank.nccl_op(FOREIGN, MS, 2 * MS, 0)
    assert {row.kind.size: row.operations for row in analysed(*ranks).rows} == {2: 1, 3: 1}


@pytest.mark.parametrize("what", ["a rank", "an end", "an operation"])
def test_waits_are_not_known_if_something_is_missing(what: str) -> None:
    ranks = []
    for number in range(1 if what == "a rank" else 2):
        rank = NcclRank(number, 2)
        if what != "an operation" or number == 0:
            lost = what == "an end" and number == 1
            rank.nccl_op(FOREIGN, MS, MS if lost else 2 * MS, 0)
        ranks.append(rank)
    found = analysed(*ranks)
    row = row_of(found)
    assert math.isnan(row.times.wait_by_kernels_ms)
    assert math.isnan(row.times.wait_by_clocks_ms)
    assert math.isnan(row.times.transfer_ms)
    assert row.times.duration_ms == 1.0
    assert found.waits is None


@pytest.mark.parametrize("op", ["broadcast", "reduce", "send", "recv"])
def test_kernels_that_do_not_end_together_have_no_waits(op: str) -> None:
    ranks = [NcclRank(number, 2) for number in range(2)]
    for rank in ranks:
        rank.nccl_op(FOREIGN, MS + rank.rank * MS, 4 * MS, 0, op=op)
    row = row_of(analysed(*ranks), op)
    assert math.isnan(row.times.wait_by_kernels_ms)
    assert row.times.duration_ms == 2.5


def test_other_algorithms_and_sizes_are_other_rows() -> None:
    rank = NcclRank(0, 1)
    for seq, tuning in enumerate(["RING SIMPLE", "TREE LL", "RING SIMPLE", "NVLS SIMPLE"]):
        rank.nccl_op(FOREIGN + seq, seq * MS, seq * MS + 1000, seq, tuning=tuning)
    rank.nccl_op(FOREIGN + 9, 9 * MS, 9 * MS + 1000, 4, size=4 << 20)
    found = analysed(rank)
    kinds = {
        (row.kind.algorithm, row.kind.protocol, row.kind.size_bytes[0]): row.operations
        for row in found.rows
    }
    assert kinds == {
        ("RING", "SIMPLE", 4096): 2,
        ("TREE", "LL", 4096): 1,
        ("NVLS", "SIMPLE", 4096): 1,
        ("RING", "SIMPLE", 4 << 20): 1,
    }


def ring(count: int, slow: int, factor: int, recorded: int | None = None) -> NcclWorld:
    ranks = []
    for number in range(count if recorded is None else recorded):
        rank = NcclRank(number, count)
        rank.nccl_op(FOREIGN, MS, 2 * MS, 0)
        network = 10_000 * (factor if number == slow else 1)
        rank.send(FOREIGN, (number + 1) % count, network, 3000, 2000, 100_000)
        ranks.append(rank)
    return analysed(*ranks)


def test_a_slow_link_is_named_by_its_ends() -> None:
    found = ring(6, slow=2, factor=3)
    assert [(link.from_rank, link.to_rank) for link in found.links if link.slow] == [("2", "3")]
    slowest = found.links[0]
    assert slowest.slower == pytest.approx(3.0)
    assert (slowest.transfers, slowest.total_bytes) == (1, 100_000)
    assert slowest.gb_per_s == pytest.approx(100_000 / 30_000)
    assert dataclasses.astuple(slowest.split) == (0.03, 0.003, 0.002)
    split = row_of(found).split
    assert split is not None
    assert dataclasses.astuple(split) == pytest.approx((0.08 / 6, 0.003, 0.002))


def test_no_link_is_slow_among_equals_or_few() -> None:
    assert not any(link.slow for link in ring(6, slow=2, factor=1).links)
    few = ring(3, slow=2, factor=3).links
    assert not any(link.slow for link in few)
    assert all(math.isnan(link.slower) for link in few)


def test_a_peer_that_was_not_recorded_is_named_by_its_communicator() -> None:
    ends = {link.to_rank for link in ring(6, slow=0, factor=1, recorded=5).links}
    assert ends == {"1", "2", "3", "4", "5 of dp0"}


def test_transfers_for_other_processes_are_counted_apart() -> None:
    rank = NcclRank(0, 2)
    rank.nccl_op(FOREIGN, MS, 2 * MS, 0)
    rank.send(0, 1, 1000, 0, 0, 10, group=0)
    found = analysed(rank)
    assert (found.for_others, found.links) == (1, ())
    assert row_of(found).split is None


def test_transfers_of_operations_that_are_not_known_belong_to_the_link() -> None:
    rank = NcclRank(0, 2)
    rank.nccl_op(FOREIGN, MS, 2 * MS, 0)
    rank.send(0, 1, 1000, 0, 0, 10)
    found = analysed(rank)
    assert (found.for_others, found.links[0].transfers) == (0, 1)
    assert row_of(found).split is None


def test_without_the_plugin_there_is_nothing() -> None:
    rank = NcclRank(0, 1)
    rank.collective(0, MS, 2 * MS)
    trace = rank.trace()
    assert nccl_world(1, [trace], [trace], True) is None
