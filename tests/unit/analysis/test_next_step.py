from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.collectives.host_links import HostLinks
from commprof.analysis.collectives.kinds import CollectiveRow
from commprof.analysis.exchange import Exchange, SmallCalls, exchange
from commprof.analysis.late.stragglers import LateRank
from commprof.analysis.mean_step import PARTS, mean_step
from commprof.analysis.next_step import NextStep, next_step, trial_command
from commprof.analysis.world import WorldResult
from commprof.commands import make_parser
from commprof.trace.schema import Phase
from tests.support.analysed import analyse_world
from tests.support.builders.results import collective, context, detail, parts, with_fields, world
from tests.support.builders.traces import MS, Rank, world_run

RUN = {"workload": "timed", "strategy": "ddp", "nodes": 1}


LARGE = collective(size_bytes=(4, 25_000_000))


def run(**values: Any) -> dict[str, Any]:
    return context(**{**RUN, **values})


def advised(
    about: dict[str, Any],
    of: WorldResult,
    exposed: float = 30,
    exchange: Exchange = Exchange(),  # noqa: B008
    **ms: float,
) -> NextStep:
    """``exposed`` and ``ms`` are the parts of a step of 100 ms, in ms."""
    step = mean_step(detail(of.world_size, **{"backward": 50, "transfer": exposed, **ms}))
    return next_step(about, of, step, {name: f"the {name}" for name in PARTS}, exchange)


def test_little_exposed_time_is_not_the_bottleneck() -> None:
    found = advised(run(), world(2), exposed=9.9, backward=5, data=80)
    assert found.advice == (
        "Communication is not the bottleneck and needs no change: waiting for communication takes "
        "less than 10% of a step. First look at the data."
    )
    assert found.command == ""


def test_with_much_exposed_time_a_trial_is_advised() -> None:
    found = advised(run(), world(2, collectives=(LARGE,)))
    assert found.advice == (
        "To measure whether compression or other buckets would make the job's steps shorter, type:"
    )
    assert found.command == (
        "commprof run --nproc 2 --trial fp16,int8,topk:ratio=0.01,bucket-cap=5"
    )


@pytest.mark.parametrize(("transfer", "tried"), [(5.0, False), (20.0, True)])
def test_if_ranks_wait_for_one_another_balancing_their_work_is_advised_first(
    transfer: float, tried: bool
) -> None:
    found = advised(run(), world(2), transfer, backward=45, wait=30)
    assert found.advice.startswith(
        "First balance the work of the ranks: they wait for one another during 30% of the step, "
        "and no single rank stands out. "
        + ("To measure whether" if tried else "No change to the communication can save this time.")
    )
    assert found.command.startswith("commprof run --nproc 2 --trial") is tried


def test_a_trial_leaves_out_a_bucket_cap_above_every_bucket() -> None:
    small = collective(size_bytes=(4, 5 * 2**20))
    found = advised(run(), world(2, collectives=(small,)))
    assert found.advice == (
        "To measure whether compression would make the job's steps shorter, type:"
    )
    assert found.command == "commprof run --nproc 2 --trial fp16,int8,topk:ratio=0.01"


def on_hosts(ranks: int, hosts: int) -> WorldResult:
    one = world(ranks)
    placed = [
        dataclasses.replace(rank, host=f"host-{rank.rank * hosts // ranks}") for rank in one.ranks
    ]
    return dataclasses.replace(one, ranks=tuple(placed))


def test_for_several_machines_a_trial_command_for_each_is_given() -> None:
    typed = "python -m commprof.run --nnodes 2 --node-rank 0 --nproc 2 --seed 3"
    typed += " --rdzv-endpoint=first:29500 --output /shared/run"
    found = advised(run(nodes=2, command=typed), on_hosts(4, 2))
    assert found.advice.endswith(
        "would make the step shorter, type this on every machine, with N replaced by the machine's "
        "index, and NEW by a new directory that all machines can see:"
    )
    assert found.command == (
        "commprof run --nproc 2 --trial fp16,int8,topk:ratio=0.01 "
        "--nnodes 2 --node-rank N --rdzv-endpoint first:29500 --output NEW --seed 3"
    )


def test_for_several_machines_without_a_known_command_the_trial_option_is_given() -> None:
    typed = "python -m commprof.run --config run.yaml --node-rank 0"
    found = advised(run(nodes=2, command=typed), on_hosts(4, 2))
    assert found.advice.endswith(
        "repeat the run with --trial fp16,int8,topk:ratio=0.01 on every machine."
    )
    assert found.command == ""
    assert advised(run(nodes=2, strategy="fsdp"), on_hosts(4, 2)).advice == ""


TWO_CORES = {"usable_cpu_count": 2, "cpu_model": "x"}
LACKING = {"parts": parts(no_core_ms=3.0)}


def test_more_cores_are_advised_first_if_ranks_waited_for_a_core() -> None:
    for exposed in (30, 5):
        found = advised(run(machine=TWO_CORES), world(4, **LACKING), exposed=exposed)
        assert found.advice == (
            "First give every rank a core: for 10% of the exposed time, ranks were ready to run "
            "but had no core. This run cannot show what communication would cost with a core "
            "for every rank."
        )
        assert found.command == ""


def test_cores_are_not_mentioned_if_no_rank_waited_for_one() -> None:
    asleep = world(4, parts=parts(no_core_ms=0.0))
    assert "a core" not in advised(run(machine=TWO_CORES), asleep).advice
    assert advised(run(machine=TWO_CORES), asleep).command


def test_a_run_with_more_cores_is_advised_if_waiting_for_cores_was_not_measured() -> None:
    unread = world(4, parts=parts(no_core_ms=math.nan))
    assert advised(run(machine=TWO_CORES), unread).advice.startswith(
        "First repeat the run with a core for each thread: this run did not measure whether ranks"
    )
    assert advised(run(), unread).command


def test_without_measured_waiting_few_cores_do_not_change_the_advice() -> None:
    asleep = world(4, parts=parts(no_core_ms=0.0))
    found = advised(run(machine=TWO_CORES), asleep, exposed=5)
    assert found.advice.startswith("Communication is not the bottleneck ")
    assert found == advised(run(), asleep, exposed=5)


def test_larger_buckets_are_advised_before_more_cores() -> None:
    small = Exchange(SmallCalls(200, 2e4, 0.9))
    found = advised(run(machine=TWO_CORES), world(2, **LACKING), exchange=small)
    assert found.advice.startswith("First try larger buckets. ")


def test_a_little_waiting_for_cores_does_not_change_the_advice() -> None:
    # Time without a core is 12 % of the exposed time, but only 0.6 % of the step of 100 ms.
    little = world(4, parts=parts(exposed_ms=5.0, no_core_ms=0.6))
    assert "core" not in advised(run(), little, exposed=5).advice


def test_a_part_far_larger_than_communication_is_advised_first() -> None:
    found = advised(run(), world(2), exposed=12, backward=30, data=58)
    assert found == NextStep(
        "First look at the data: it takes 58% of the step, but communication only 12%.", ""
    )
    assert advised(run(), world(2), exposed=30, backward=12, data=58).command


LINK = HostLinks(2, ("eth1",), 6e6, 0.1, 0.08, 2e8, 2e8, "", 0.007, ("eth0",))


def test_using_an_idle_interface_is_advised_before_a_trial() -> None:
    found = advised(run(), world(2), exchange=Exchange(link=LINK))
    assert found == NextStep(
        "The hosts communicate over eth1, while eth0 is idle and not rated slower. If this is not "
        "on purpose, set GLOO_SOCKET_IFNAME=eth0.",
        "",
    )


@pytest.mark.parametrize(
    ("exchange", "cap", "first"),
    [
        (Exchange(overlapped=0.03), 1, "First try smaller buckets, which can be sent sooner. "),
        (Exchange(SmallCalls(200, 2e4, 0.9)), None, "First try larger buckets. "),
        (
            Exchange(link=dataclasses.replace(LINK, idle=())),
            None,
            "The link between the hosts is slow for the data of a step: eth1 at 0.1 Gbit/s. Find "
            "out whether the network can be faster. ",
        ),
    ],
)
def test_advice_on_the_exchange_comes_before_the_trial(
    exchange: Exchange, cap: int | None, first: str
) -> None:
    found = advised(
        run(), world(2, collectives=(collective(size_bytes=(4, 2**22)),)), exchange=exchange
    )
    assert found.advice.startswith(first + "To measure whether")
    assert found.command.endswith(f"bucket-cap={cap}" if cap else "ratio=0.01")


def tiny(**values: Any) -> CollectiveRow:
    same = {"op": "all_gather", "size_bytes": (8, 8), "calls": 100, "calls_per_step": 5.0}
    return collective(
        **{**same, "total_bytes": 800, "phases": (("other", 100),), "exposed_ms": 20.0, **values}
    )


def test_calls_too_small_to_compress_get_no_trial() -> None:
    of = world(2, collectives=(tiny(callers=(("train.py:12 loop", 100),)), LARGE))
    step = mean_step(detail(2, backward=50, transfer=30))
    found = next_step(run(), of, step, dict.fromkeys(PARTS, ""), exchange(of, step))
    assert found == NextStep(
        "First look at the small calls: join calls whose results are not used before the next "
        "call, or make the calls in fewer steps. 67% of the exposed time is in 5 all_gather calls "
        "per step (8 bytes on average) at train.py:12 loop. Neither compression nor other buckets "
        "would shorten them.",
        "",
    )


def test_a_line_is_named_for_no_more_small_calls_than_it_issued() -> None:
    """Lightning's Trainer broadcasts a flag before each batch, and DDP then broadcasts buffers."""
    flag = (("trainer.py:9 flag", 20), ("model.py:5 forward", 20))
    rows = (
        tiny(op="broadcast", calls=40, calls_per_step=2.0, callers=flag),
        tiny(op="broadcast", calls=20, calls_per_step=1.0, callers=(("model.py:5 forward", 20),)),
    )
    of = world(2, collectives=(*rows, LARGE))
    small = exchange(of, mean_step(detail(2, backward=50, transfer=30))).small_calls
    assert small is not None
    assert small.name.endswith(" on average), 67% of them at model.py:5 forward")


def test_small_calls_of_several_operations_are_named_with_all_of_them() -> None:
    messages = {"op": "send", "callers": (("pipe.py:7 step", 80),), "exposed_ms": 15.0}
    of = world(
        2,
        no_ddp="no DDP model exchanged gradients in this run",
        collectives=(
            tiny(**messages, calls=80),
            tiny(op="recv", calls=80, exposed_ms=12.0),
            tiny(op="all_reduce", calls=100, exposed_ms=3.0),
        ),
    )
    step = mean_step(detail(2, backward=50, transfer=30))
    small = exchange(of, step).small_calls
    assert small is not None
    steps = len(of.ranks) * of.timing.measured_steps
    assert dict(small.ops) == {"send": 80 / steps, "recv": 80 / steps, "all_reduce": 100 / steps}
    number = f"{80 / steps:.0f}"
    assert small.name.startswith(f"{number} send, {number} recv and {100 / steps:.0f} all_reduce")
    assert small.name.endswith("on average), send at pipe.py:7 step")
    advice = next_step(run(), of, step, dict.fromkeys(PARTS, ""), exchange(of, step)).advice
    assert "send fewer and larger messages" in advice
    assert "join" not in advice


def test_small_calls_that_cost_little_leave_the_trial() -> None:
    of = world(2, collectives=(with_fields(LARGE, exposed_ms=25.0), tiny(exposed_ms=5.0)))
    assert "--trial" in advised(run(), of).command


def test_exposed_time_outside_of_the_gradients_gets_no_trial() -> None:
    gathered = collective(op="all_gather", phases=(("other", 20),), exposed_ms=25.0)
    found = advised(run(), world(2, collectives=(gathered, LARGE)))
    assert found == NextStep(
        "First look at all_gather of 4 MB outside of all phases: 82% of the exposed time is in "
        "these calls.",
        "",
    )


NO_DDP = "no DDP model exchanged gradients in this run"


def test_all_reduces_of_the_script_s_own_hooks_are_no_buckets() -> None:
    hooks = {"op": "all_reduce", "phases": (("backward", 100),)}
    rows = (tiny(**hooks, calls=1000, callers=(("train.py:9 reduce", 1000),)),)
    step = mean_step(detail(2, backward=50, transfer=30))
    found = exchange(world(2, collectives=rows, no_ddp=NO_DDP), step).small_calls
    assert found is not None
    assert "let DistributedDataParallel join the gradients into buckets" in found.remedy
    hook = "the communication hook own exchanges the gradients instead of DDP's all-reduce"
    of_hook = exchange(world(2, collectives=rows, no_ddp=hook), step).small_calls
    assert of_hook is not None
    assert "DistributedDataParallel" not in of_hook.remedy
    outside = exchange(world(2, collectives=(tiny(calls=1000),), no_ddp=NO_DDP), step).small_calls
    assert outside is not None
    assert "DistributedDataParallel" not in outside.remedy


def of_own_hooks(rank: Rank) -> None:
    rank.finalize(5 * MS, 6 * MS, 1)
    sources = {"begin_monotonic_ns": 2**62, "ddp_logs": [], "ddp_models": 0}
    trained = {"parameter_bytes": 8, "sharded": False, "ddp_bytes": 0, "ignored_bytes": 0}
    trained["other_libraries"] = []
    rank.metadata.update(cross_check_sources=sources, trained=trained)


@pytest.mark.parametrize(
    ("of", "exchanges"),
    [
        (lambda rank: rank.finalize(5 * MS, 6 * MS, 1), ""),
        (lambda rank: None, NO_DDP),
        (of_own_hooks, NO_DDP),
        (
            lambda rank: rank.metadata.update(
                cross_check_sources={"ddp_logs": [{"own_exchange": "the communication hook own"}]}
            ),
            "the communication hook own exchanges the gradients instead of DDP's all-reduce",
        ),
    ],
)
def test_no_trial_is_advised_where_none_can_take_place(
    of: Callable[[Rank], Any], exchanges: str
) -> None:
    """DeepSpeed, fairscale and some loops make no DDP model, but reduce gradients in hooks."""
    ranks = [Rank(rank, 2) for rank in range(2)]
    for rank in ranks:
        for step in range(4):
            begin = step * 10 * MS
            rank.phase(Phase.BACKWARD, begin, begin + 3 * MS)
            op_id = rank.collective(step, begin + 3 * MS, begin + 8 * MS, bytes=4_000_000)
            rank.wait(op_id, begin + 3 * MS, begin + 8 * MS)
            rank.step(begin, begin + 10 * MS)
        of(rank)
    found = analyse_world(world_run(ranks))
    assert found is not None
    assert found.communication.no_ddp == exchanges
    advice = advised(run(), with_fields(world(2, collectives=(LARGE,)), no_ddp=exchanges))
    assert ("--trial" in advice.command) is (exchanges == "")
    if exchanges:
        assert advice.advice.endswith(
            f"commprof's trials change only DDP's own all-reduce, and {exchanges}."
        )


def test_with_enough_cores_finding_other_processes_is_advised() -> None:
    found = advised(run(), world(4, **LACKING))
    assert found.advice.startswith("First find out what else runs on the ranks' cores: for 10% of")


@pytest.mark.parametrize(("wait_ms", "named"), [(12.0, True), (8.0, False)])
def test_a_rank_that_costs_the_others_a_tenth_of_the_step_is_advised_first(
    wait_ms: float, named: bool
) -> None:
    late = LateRank(1, wait_ms * 1e6, 0.9, 0.001, 9, 10, 0.1, "data", 0.8)
    found = advised(run(), world(2, late_rank=late))
    said = "delays rank 1 in its data phase: the other ranks spend 12% of their step waiting for it"
    assert (said in found.advice) is named
    assert (found.command == "") is named


def test_for_a_rank_with_host_pauses_looking_at_its_host_is_advised() -> None:
    late = LateRank(1, 12e6, 0.9, 0.001, 9, 10, 0.1, "host pause", 0.8)
    for hosts, there in ((1, ""), (2, " on host-1")):
        found = advised(run(), with_fields(on_hosts(2, hosts), late_rank=late))
        assert found.advice.startswith(
            f"First find out what stops the process of rank 1{there} (a debugger"
        )
        assert "spend 12% of their step waiting for it" in found.advice
        assert "phase" not in found.advice
        assert found.command == ""


def test_there_is_no_advice_for_a_single_rank() -> None:
    assert advised(run(), world(1)).advice == ""


@pytest.mark.parametrize(
    ("command", "more", "expected"),
    [
        (
            "python -m commprof.run --world-sizes 1,2,4 --steps=50 --seed 3 --output x",
            {},
            "commprof run --nproc 4 --trial T --seed 3",
        ),
        (
            "python -m commprof run --nproc 4 -m job.train --steps 50 --output 'a b'",
            {"script": ["-m", "job.train", "--steps", "50", "--output", "a b"]},
            "commprof run --nproc 4 --trial T -m job.train --steps 50 --output 'a b'",
        ),
        (
            "commprof run --nproc 4 --seed 3 train.py --mode x",
            {"script": ["train.py", "--mode", "x"]},
            "commprof run --nproc 4 --trial T --seed 3 train.py --mode x",
        ),
        (
            "commprof run --price-per-hour 3 --price-per=rank --mode always-on --max-restarts 2",
            {},
            "commprof run --nproc 4 --trial T",
        ),
        ("commprof run --config job.yaml --seed 3", {}, ""),
        ("commprof run --config=job.yaml", {"script": ["train.py"]}, ""),
        ("commprof report x", {}, ""),
        ("python -m commprof.run --strategy fsdp", {"strategy": "fsdp"}, ""),
        ("python -m commprof.run --hook int8", {"hook": "int8"}, ""),
        ("python -m commprof.run --bucket-cap-mb 5", {"bucket_cap_mb": 5.0}, ""),
        (
            "commprof run --fsdp prefetch=2 train.py",
            {"script": ["train.py"], "fsdp": "prefetch=2"},
            "",
        ),
        (
            # In a Slurm step, Slurm sets the number of nodes and the node rank.
            "python -m commprof.run --rdzv-endpoint a:1 --world-sizes 2,4 --seed 3",
            {"nodes": 2},
            "commprof run --nproc 2 --trial T --nnodes 2 --node-rank N "
            "--rdzv-endpoint a:1 --output NEW --seed 3",
        ),
        (
            "python -m commprof.run --workload mlp",
            {"nodes": 4},
            "commprof run --nproc 1 --trial T --nnodes 4 --node-rank N "
            "--rdzv-endpoint HOST:PORT --output NEW --workload mlp",
        ),
        ("python train.py", {}, ""),
        ("python -m commprof.run 'torn", {}, ""),
    ],
)
def test_a_run_s_command_is_turned_into_a_valid_trial_command(
    command: str, more: dict[str, Any], expected: str
) -> None:
    found = trial_command(run(command=command, **more), 4, 5)
    assert found == expected.replace("T", "fp16,int8,topk:ratio=0.01,bucket-cap=5", 1)
    if found:
        words = shlex.split(found)
        arguments = words[1 + next(i for i, word in enumerate(words) if word.endswith("run")) :]
        nodes = more.get("nodes", 1)
        arguments = ["0" if word == "N" else word for word in arguments]
        args = make_parser().parse_args(["run", *arguments])
        assert (args.nproc * nodes, args.world_sizes) == (4, None)
        assert (args.output, args.nnodes) == ((None, None) if nodes == 1 else (Path("NEW"), nodes))


def test_a_run_without_a_commprof_command_has_no_trial_command() -> None:
    assert trial_command(context(), 2, 5) == ""
