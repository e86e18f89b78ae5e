from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.causes.memory_for_gathers import is_worth_memory
from commprof.analysis.causes.slow_interface import CAUSE as SLOW_INTERFACE
from commprof.analysis.named_cause import Saving
from commprof.stats.intervals import Interval
from commprof.trace.schema import FLAG_DEVICE_ASYNC, Phase
from tests.support.builders.caused import Script, causes_of, mean_step_ms, saved

MB = 1_000_000

UNUSED = {
    "find_unused_parameters": 1,
    "unused_parameter_size": 400_000,
    "most_unused_parameter_size": 400_000,
    "least_unused_parameter_size": 400_000,
    "num_parameter_tensors": 100,
    "parameter_bytes": [3_600_000, 400_000],
}


def searched(script: Script, step: int) -> None:
    script.forward(10.0)
    script.backward(20.0, {4 * MB: 2.0}, marks={400: 1.0})
    script.work(1.0, Phase.OPTIMIZER)


def test_a_search_that_finds_the_same_each_time_needs_a_static_graph() -> None:
    found = causes_of(searched, log=UNUSED)
    assert list(found) == ["ddp-static-graph"]
    cause = found["ddp-static-graph"]
    assert "each time finds parameters of the same size (400 kB)" in cause.sentence
    assert "static_graph=True" in cause.fix
    assert saved(cause) == pytest.approx(1 / 34, abs=1e-3)


@pytest.mark.parametrize(
    "log",
    [
        {"least_unused_parameter_size": 0},
        {"unused_parameter_size": 300_000},
        {"static_graph": 1},
        {"least_unused_parameter_size": None},
        {"find_unused_parameters": 0},
    ],
)
def test_a_search_that_finds_others_each_time_is_right(log: dict[str, int | None]) -> None:
    assert causes_of(searched, log={**UNUSED, **log}) == {}


def frozen(share: float) -> dict[str, Any]:
    size = round(share * 4_000_000)
    unused = {f"{which}unused_parameter_size": size for which in ("", "most_", "least_")}
    return {**UNUSED, **unused, "parameter_bytes": [4_000_000 - size, size]}


def test_gradients_of_parameters_that_no_pass_used_are_exchanged_for_nothing() -> None:
    found = causes_of(searched, log=frozen(0.9))
    assert set(found) == {"ddp-frozen-gradients", "ddp-static-graph"}
    cause = found["ddp-frozen-gradients"]
    assert "exchanges 4 MB of gradients per pass, and 3.6 MB of them, 90%" in cause.sentence
    assert cause.share == pytest.approx(3 / 34, abs=0.01)
    assert "requires_grad_(False)" in cause.fix
    assert "ddp-frozen-gradients" not in causes_of(searched, log=frozen(0.2))


def trained(script: Script, step: int) -> None:
    script.forward(10.0)
    script.backward(20.0, {4 * MB: 2.0})
    script.work(1.0, Phase.OPTIMIZER)


def test_weights_that_differ_are_named_first() -> None:
    checks = {"every": 5, "checks": 3, "first_step": 5, "ranks": ["1"]}
    found = causes_of(trained, sync_checks=checks)
    assert next(iter(found)) == "weights-differ"
    assert found["weights-differ"].is_wrong
    assert (
        "The model of rank 1 is not bit-identical with the model of most other ranks"
        in found["weights-differ"].sentence
    )
    assert "at step 5 or earlier (3 comparisons" in found["weights-differ"].sentence
    assert causes_of(trained, sync_checks={**checks, "ranks": []}) == {}


def sharded(ms: float, again: bool, script: Script, step: int) -> None:
    script.rank.metadata["machine"]["memory_bytes"] = 8000 * MB
    script.sharded([2 * MB] * 6, ms, again)
    script.work(1.0, Phase.OPTIMIZER)


def test_units_that_are_gathered_again_in_backward_are_named_if_there_is_memory() -> None:
    found = causes_of(partial(sharded, 2.0, True), models=0)
    assert list(found) == ["fsdp-gathers-twice"]
    cause = found["fsdp-gathers-twice"]
    assert "There is memory for the whole model, 12 MB per rank." in cause.sentence
    # The fix removes six of 18 collectives of 1 ms each; compute takes 36 ms, the update 1 ms.
    assert saved(cause) == pytest.approx(6 / 55, abs=1e-3)
    assert "YOUR_MODEL.set_reshard_after_forward(False)" in cause.fix


def test_units_that_are_kept_or_gathered_in_little_time_or_too_large_are_usual() -> None:
    assert causes_of(partial(sharded, 2.0, False), models=0) == {}
    assert causes_of(partial(sharded, 8.0, True), models=0) == {}

    def large(script: Script, step: int) -> None:
        sharded(2.0, True, script, step)
        script.rank.metadata["machine"]["memory_bytes"] = 100 * MB

    assert causes_of(large, models=0) == {}


@pytest.mark.parametrize(
    ("waited", "low", "is_worth"),
    [
        (0.1, 0.05, True),
        (0.1, None, True),
        (0.09, 0.2, True),  # FSDP's copies take longer than the waiting
        (0.09, 0.09, False),
        (0.09, None, False),
        (0.04, 0.2, False),
    ],
)
def test_a_fix_that_needs_memory_must_save_much(
    waited: float, low: float | None, is_worth: bool
) -> None:
    saving = None if low is None else Saving(Interval(low, low, low), "replayed")
    assert is_worth_memory(waited, saving) == is_worth


def on_device(host_ms: float, script: Script, step: int) -> None:
    script.forward(10.0)
    script.call(size=4 * MB, ms=2.0, flags=FLAG_DEVICE_ASYNC)
    script.work(1.0, Phase.OPTIMIZER)
    for _ in range(2):
        if host_ms:
            script.call(size=4, ms=host_ms)


def test_host_tensors_beside_those_of_devices_are_named() -> None:
    found = causes_of(partial(on_device, 1.0), models=0)
    assert list(found) == ["host-tensors"]
    cause = found["host-tensors"]
    assert "tensors of the host in 2 collectives (4 bytes on average)" in cause.sentence
    assert cause.share == pytest.approx(2 / 15, abs=1e-3)
    assert causes_of(partial(on_device, 0.0), models=0) == {}
    assert causes_of(partial(on_device, 0.1), models=0) == {}


def test_without_devices_tensors_of_the_host_are_usual() -> None:
    def body(script: Script, step: int) -> None:
        trained(script, step)
        script.call(size=4, ms=3.0)

    assert "host-tensors" not in causes_of(body)


def linked(idle_mbit: int, ms: float, script: Script, step: int) -> None:
    script.rank.metadata["machine"].update(
        boot_id=f"boot {script.rank.rank}", hostname=f"host {script.rank.rank}"
    )
    sources = script.rank.metadata["cross_check_sources"]
    carried = {"received_bytes": 10**9, "sent_bytes": 10**9}
    idle = {"received_bytes": 1000, "sent_bytes": 1000}
    sources["begin_monotonic_ns"] = 2
    sources["network_namespace"] = f"net {script.rank.rank}"
    sources["interfaces"] = {"eth0": carried, "ib0": idle}
    sources["rated_mbit_per_s"] = {"eth0": 1000, "ib0": idle_mbit}
    script.forward(10.0)
    script.backward(20.0, {4 * MB: ms})
    script.work(1.0, Phase.OPTIMIZER)


def test_a_faster_interface_that_is_idle_is_named() -> None:
    found = causes_of(partial(linked, 100_000, 30.0))
    assert list(found) == ["slow-interface"]
    cause = found["slow-interface"]
    assert "over eth0 (rated 1 Gbit/s), while ib0 (rated 100 Gbit/s) is idle" in cause.sentence
    assert '["NCCL_SOCKET_IFNAME"] = "ib0"' in cause.fix
    assert cause.share == pytest.approx(30 / 61 * 0.99, abs=0.01)


@pytest.mark.parametrize(("idle_mbit", "ms"), [(1000, 30.0), (0, 30.0), (100_000, 1.0)])
def test_an_interface_that_is_no_faster_or_hardly_matters_is_usual(
    idle_mbit: int, ms: float
) -> None:
    assert SLOW_INTERFACE.id not in causes_of(partial(linked, idle_mbit, ms))


def test_a_rank_with_fewer_batches_is_named() -> None:
    found = causes_of(trained, fewer={1: 2}, ranks=3, steps=14)
    assert list(found) == ["fewer-batches"]
    assert found["fewer-batches"].sentence.startswith(
        "Rank 1 trains fewer batches than the other ranks: as few as 12 steps instead of 14."
    )
    ended = {"ending": {"error": "KeyboardInterrupt"}}
    assert causes_of(trained, fewer={1: 2}, ranks=3, steps=14, **ended) == {}
    paused = {"capture_state": {"recording": True, "monotonic_ns": 1}}
    assert causes_of(trained, fewer={1: 2}, ranks=3, steps=14, **paused) == {}


def in_turns(groups: tuple[int, ...], script: Script, step: int) -> None:
    script.rank.groups[2] = ("rows", 2)
    trained(script, step)
    for group in groups:
        script.call(size=4000, group=group)


def test_calls_of_two_groups_that_wait_for_each_other_are_named() -> None:
    found = causes_of(partial(in_turns, (1, 2, 1, 2, 1)))
    assert list(found) == ["groups-in-turns"]
    cause = found["groups-in-turns"]
    assert "5 calls that alternate between 2 groups" in cause.sentence
    assert cause.share == pytest.approx(2 / 38, abs=1e-3)


@pytest.mark.parametrize("groups", [(1, 2, 1), (1, 1, 2, 2), (2, 2, 2)])
def test_few_calls_of_two_groups_are_usual(groups: tuple[int, ...]) -> None:
    assert "groups-in-turns" not in causes_of(partial(in_turns, groups))


def queued(scatter_ms: float, apart: bool, script: Script, step: int) -> None:
    rank, size = script.rank, 2 * MB
    rank.groups[2] = ("scatter", 2)

    def issued(op: str, free_ms: float, ms: float, task: int, group: int) -> tuple[int, float]:
        script._seq += 1
        end = max(script.now_ms, free_ms) + ms
        sizes = {"bytes": size, "bytes_out": size // 2}
        if op == "all_gather_into_tensor":
            sizes = {"bytes": size // 2, "bytes_out": size}
        begin = round(script.now_ms * 1e6)
        op_id = rank.collective(
            script._seq,
            begin,
            round(end * 1e6),
            graph_task=task,
            group=group,
            op=op,
            dtype=1,
            **sizes,
        )
        return op_id, end

    def waited(op_id: int, end: float) -> None:
        begin = script.now_ms
        script.now_ms = max(begin, end)
        rank.wait(op_id, round(begin * 1e6), round(script.now_ms * 1e6))

    begin = script.now_ms
    for _ in range(4):
        waited(*issued("all_gather_into_tensor", 0.0, 0.5, -1, 1))
        script.now_ms += 3.0
    rank.phase(Phase.FORWARD, round(begin * 1e6), round(script.now_ms * 1e6))
    begin, task, free_ms = script.now_ms, script.passes, 0.0
    script.passes += 1
    last = None
    for _ in range(4):
        gathered = issued("all_gather_into_tensor", 0.0 if apart else free_ms, 0.5, task, 1)
        waited(*gathered)
        script.now_ms += 6.0
        last = issued(
            "reduce_scatter_tensor", max(free_ms, gathered[1]), scatter_ms, task, 1 + apart
        )
        free_ms = last[1]
    assert last is not None
    waited(*last)
    now = round(script.now_ms * 1e6)
    rank.finalize(now, now + 1, 0, graph_task=task)
    rank.phase(Phase.BACKWARD, round(begin * 1e6), now)
    script.work(1.0, Phase.OPTIMIZER)


def test_gathers_behind_reductions_of_their_group_are_named_with_what_another_group_wins() -> None:
    found = causes_of(partial(queued, 4.0, False), models=0)
    assert list(found) == ["fsdp-shared-group"]
    cause = found["fsdp-shared-group"]
    before, after = (mean_step_ms(partial(queued, 4.0, apart)) for apart in (False, True))
    assert cause.share == pytest.approx(1 - after / before, abs=1e-3)
    assert cause.wins.startswith("saves at most")
    assert "fsdp-shared-group" not in causes_of(partial(queued, 4.0, True), models=0)
    assert "fsdp-shared-group" not in causes_of(partial(queued, 0.5, False), models=0)


def crowded(no_core_ms: float, script: Script, step: int) -> None:
    script.forward(10.0)
    script.backward(20.0, {4 * MB: 8.0}, no_core_ms=no_core_ms)
    script.work(1.0, Phase.OPTIMIZER)


MACHINE = {
    "usable_cpu_count": 4,
    "cpu_count": 4,
    "memory_bytes": 1,
    "hostname": "h",
    "boot_id": "b",
}


def test_ranks_with_more_threads_than_cores_that_lack_cores_are_named() -> None:
    about = {"threads_per_rank": 4, "machine": MACHINE}
    found = causes_of(partial(crowded, 4.0), about=about)
    assert list(found) == ["too-many-threads"]
    cause = found["too-many-threads"]
    assert "2 ranks run 4 threads each on 4 usable cores" in cause.sentence
    assert cause.fix == "torch.set_num_threads(2)"
    assert cause.share == pytest.approx(4 / 39, abs=5e-3)


def test_the_threads_of_a_host_are_compared_with_its_cores() -> None:
    def body(script: Script, step: int) -> None:
        host = {"hostname": f"host {script.rank.rank // 2}"}
        script.rank.metadata["machine"] = {**script.rank.metadata["machine"], **host}
        crowded(4.0, script, step)

    about = {"threads_per_rank": 8, "machine": MACHINE}
    cause = causes_of(body, about=about, ranks=4)["too-many-threads"]
    assert "2 ranks of a host run 8 threads each on 4 usable cores" in cause.sentence
    assert cause.fix == "torch.set_num_threads(2)"


def test_threads_that_the_script_set_itself_are_known_from_the_trace() -> None:
    about = {"threads_per_rank": 1, "machine": MACHINE}
    found = causes_of(partial(crowded, 4.0), about=about, threads=8)
    assert "2 ranks run 8 threads each" in found["too-many-threads"].sentence


def test_run_delay_while_a_rank_computes_counts() -> None:
    def body(script: Script, step: int) -> None:
        begin = round(script.now_ms * 1e6)
        crowded(0.0, script, step)
        script.rank.no_core(begin, begin + 9_000_000, 6_000_000)

    about = {"threads_per_rank": 4, "machine": MACHINE}
    assert causes_of(body, about=about)["too-many-threads"].share == pytest.approx(6 / 39, abs=0.02)


@pytest.mark.parametrize(("threads", "no_core_ms"), [(1, 4.0), (2, 4.0), (4, 0.0), (4, 0.5)])
def test_threads_that_fit_or_that_have_cores_are_usual(threads: int, no_core_ms: float) -> None:
    about = {"threads_per_rank": threads, "machine": MACHINE}
    assert causes_of(partial(crowded, no_core_ms), about=about) == {}


def compared(script: Script, ms: float) -> None:
    script.forward(10.0)
    script.call(size=4 * MB, ms=ms)
    script.work(10.0, Phase.OPTIMIZER)


def test_comparisons_of_collectives_that_debugging_left_on_are_named() -> None:
    found = causes_of(lambda script, _: compared(script, 5.0), debug_level="DETAIL")
    cause = found["debug-detail"]
    assert "1 time per step, for 5 ms on the rank that comes last" in cause.sentence
    assert cause.share == pytest.approx(5 / 25, abs=0.01)
    assert "set_debug_level(torch.distributed.DebugLevel.OFF)" in cause.fix


def test_the_line_that_sets_the_debug_level_is_named_and_deleted(tmp_path: Path) -> None:
    train = tmp_path / "train.py"
    train.write_text(
        "import torch.distributed as dist\ndist.set_debug_level(dist.DebugLevel.DETAIL)\n"
    )
    os.utime(train, (0, 0))  # the script has not changed since the run
    found = causes_of(
        lambda script, _: compared(script, 5.0), debug_level="DETAIL", script_path=str(train)
    )
    cause = found["debug-detail"]
    assert cause.sentence.startswith("The debug level DETAIL, set at train.py:2, is left on: ")
    assert cause.fix == "# delete train.py:2"


@pytest.mark.parametrize(("ms", "level"), [(5.0, "OFF"), (5.0, None), (0.1, "DETAIL")])
def test_comparisons_are_not_named_if_they_are_off_or_short(ms: float, level: str | None) -> None:
    assert "debug-detail" not in causes_of(lambda s, _: compared(s, ms), debug_level=level)


def test_calls_that_debugging_makes_wait_are_not_said_to_be_waited_for_one_by_one() -> None:
    def averaged(script: Script, _: int) -> None:
        script.forward(10.0)
        for _ in range(6):
            script.call(size=64_000, ms=2.0)
        script.work(10.0, Phase.OPTIMIZER)

    assert list(causes_of(averaged, debug_level="OFF")) == ["tensors-one-by-one"]
    assert list(causes_of(averaged, debug_level="DETAIL")) == ["debug-detail"]


def test_an_optimizer_of_the_script_may_gather_what_it_updated() -> None:
    def sharing(script: Script, step: int) -> None:
        script.forward(10.0)
        script.backward(20.0, {4 * MB: 2.0})
        begin = round(script.now_ms * 1e6)
        script.call("all_gather", 3 * MB, 3.0, stack=("/job/muon.py:90 step",))
        script.rank.phase(Phase.OPTIMIZER, begin, round(script.now_ms * 1e6))

    trained = {"parameter_bytes": 8 * MB, "sharded": False, "ddp_bytes": 8 * MB}
    trained |= {"ignored_bytes": 0, "other_libraries": []}
    assert "gathered-outputs" not in causes_of(sharing, trained=trained)
