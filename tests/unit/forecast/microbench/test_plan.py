from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.sweeps.sweep_file import read_sweep, write_sweep
from commprof.errors import RankFailedError, UsageError
from commprof.forecast.commands.microbench import (
    MicrobenchCommand,
    add_arguments,
    make_plan,
    show_measured,
)
from commprof.forecast.microbench.context import context, interfaces
from commprof.forecast.microbench.measure import samples_per_round, warmup_calls
from commprof.forecast.microbench.operations import OPERATIONS, dtype_name, operation
from commprof.forecast.microbench.plan import BenchPlan, check_memory, ladder, parse_size
from tests.support.builders.sweeps import row, sweep_result

MS = 1_000_000


def plan(**changes: Any) -> BenchPlan:
    values: dict[str, Any] = {
        "ops": ("all_reduce",),
        "world_sizes": (2,),
        "sizes_bytes": (8, 16),
        "result_path": "result.json",
    }
    return BenchPlan(**{**values, **changes})


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("8", 8), ("1K", 1024), ("1k", 1024), ("128M", 134_217_728), ("2G", 2 << 30), ("64KB", 65536)],
)
def test_sizes_are_parsed_as_in_nccl_tests(text: str, size_bytes: int) -> None:
    assert parse_size(text, "-b") == size_bytes


@pytest.mark.parametrize("text", ["", "K", "1.5M", "-8", "8T", "eight"])
def test_a_malformed_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"-e '{text}' is not a size"):
        parse_size(text, "-e")


def test_a_ladder_of_sizes_multiplies_or_adds_up_to_its_end() -> None:
    assert ladder(8, 64, 2, None) == (8, 16, 32, 64)
    assert ladder(8, 100, 4, None) == (8, 32)
    assert ladder(8, 8, None, None) == (8,)
    assert ladder(10, 45, None, 10) == (10, 20, 30, 40)
    assert len(ladder(8, 128 << 20, None, None)) == 25


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((16, 8, 2, None), "-b 16 to -e 8 bytes are not possible"),
        ((0, 8, 2, None), "-b 0 to -e 8"),
        ((8, 16, 1, None), "-f 1 is out of range"),
        ((8, 16, None, 0), "-i 0 is out of range"),
        ((8, 16, 2, 8), "exclude each other"),
        ((1, 1 << 20, None, 1), "more than 1000 sizes"),
    ],
)
def test_an_unusable_ladder_of_sizes_is_refused(arguments: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ladder(*arguments)


def test_element_counts_are_computed_as_in_nccl_tests() -> None:
    # 1 MiB has 2**18 floats, which are 2**16 floats for each of 4 ranks.
    counts = {name: kind.count(1 << 20, 4, 4) for name, kind in OPERATIONS.items()}
    whole, part = 1 << 18, 1 << 16
    assert counts == {
        "all_reduce": whole,
        "all_gather": part,
        "reduce_scatter": part,
        "broadcast": whole,
        "reduce": whole,
        "all_to_all": part,
        "send_recv": whole,
        "barrier": 0,
    }
    assert operation("all_gather").elements(part, 4) == (part, whole)
    assert operation("reduce_scatter").elements(part, 4) == (whole, part)
    assert operation("all_to_all").elements(part, 4) == (whole, whole)


def test_torch_names_of_types_are_accepted() -> None:
    assert [dtype_name(text) for text in ("float", "float32", "bf16", "fp16", "int64")] == [
        *("float", "float", "bfloat16", "half", "int64")
    ]
    with pytest.raises(UsageError, match=r"unknown type 'complex' .allowed: int8"):
        dtype_name("complex")


def test_sizes_too_small_for_the_ranks_are_left_out() -> None:
    sweeps = list(plan(ops=("all_gather", "barrier"), world_sizes=(2, 4)).sweeps())
    assert [(one.op, one.world_size, one.counts) for one in sweeps] == [
        ("all_gather", 2, (1, 2)),
        ("all_gather", 4, (1,)),
        ("barrier", 2, (0,)),
        ("barrier", 4, (0,)),
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ops": ("all_reduced",)}, "unknown operation 'all_reduced' .allowed: all_reduce, all_g"),
        ({"world_sizes": (0,)}, "needs 1 rank or more, not 0"),
        ({"ops": ("send_recv",), "world_sizes": (1, 2)}, "send_recv needs 2 ranks or more, not 1"),
        ({"ops": ("all_gather",), "world_sizes": (8,)}, "16 bytes are less than one float for eac"),
        ({"redop": "mean"}, "unknown reduce op 'mean' .allowed: sum, prod"),
        ({"iterations": 0}, "-n 0 is out of range"),
        ({"warmup": -1}, "-w -1 is out of range"),
        ({"check": -1}, "-c -1 is out of range"),
        ({"ops": ("barrier",), "overlap": True}, "barrier moves no data"),
        ({"ops": ("hook:fp16",), "overlap": True}, "--overlap is for operations"),
        ({"ops": ("hook:fp16",), "dtype": "half"}, "--hook compresses float"),
        ({"backend": "nccl", "overlap": True}, "--overlap computes on the CPU"),
    ],
)
def test_an_unusable_plan_is_refused(changes: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan(**changes)


def test_a_plan_is_unchanged_by_saving_and_loading(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    given = plan(ops=("all_reduce", "hook:topk:ratio=0.01"), world_sizes=(2, 4), iterations=3)
    given.save(path)
    assert BenchPlan.load(path) == given
    assert given.rounds == 3
    assert given.total_rounds() == 2 * 2 * 3
    assert dataclasses.replace(given, iterations=None).rounds == 10


def test_the_number_of_samples_follows_from_their_duration_within_bounds() -> None:
    assert sum(samples_per_round(1.0, 10, None)) == 400
    assert sum(samples_per_round(2 * MS, 10, None)) == 100
    assert samples_per_round(500 * MS, 10, None) == (2,) * 10


def test_a_given_number_of_samples_is_spread_evenly_over_rounds() -> None:
    assert samples_per_round(1.0, 10, 25) == (2, 3) * 5
    assert samples_per_round(1.0, 1, 7) == (7,)


def test_warmup_takes_one_to_five_calls_depending_on_their_time() -> None:
    assert [warmup_calls(ns, None) for ns in (1.0, 1.25 * MS, 100 * MS)] == [5, 4, 1]
    assert warmup_calls(1.0, 0) == 0


def test_sizes_that_exceed_the_memory_are_refused(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 2000000 kB\nMemAvailable: 1000000 kB\n")
    check_memory(plan(sizes_bytes=(64 << 20,)), meminfo)
    with pytest.raises(UsageError, match=r"2 ranks .* 134217728 bytes need about 1.6 GB .* 1.0 GB"):
        check_memory(plan(sizes_bytes=(128 << 20,)), meminfo)
    # 20 processes need this memory even with little data, unless the processes run already.
    with pytest.raises(UsageError, match=r"20 ranks .* need about 3"):
        check_memory(plan(world_sizes=(20,)), meminfo)
    check_memory(plan(world_sizes=(20,)), meminfo, launched_here=20)
    many = plan(world_sizes=(16,), sizes_bytes=(64 << 20,))
    check_memory(many, meminfo, launched_here=2)
    with pytest.raises(UsageError, match="4 ranks"):
        check_memory(many, meminfo, launched_here=4)
    check_memory(plan(sizes_bytes=(128 << 20,)), tmp_path / "none")
    # A hook keeps a model of each size.
    few, more = (tuple(range(1 << 20, (n + 1) << 20, 1 << 20)) for n in (8, 12))
    check_memory(plan(ops=("hook:fp16",), sizes_bytes=few), meminfo)
    with pytest.raises(UsageError, match="sizes up to 12582912 bytes need about 1"):
        check_memory(plan(ops=("hook:fp16",), sizes_bytes=more), meminfo)


def test_sums_that_cannot_be_verified_are_refused_at_planning() -> None:
    with pytest.raises(UsageError, match="a sum over 200 ranks is not exact in int8"):
        plan(world_sizes=(2, 200), dtype="int8", sizes_bytes=(1024,))
    plan(world_sizes=(200,), dtype="int8", sizes_bytes=(1024,), check=0)
    plan(world_sizes=(200,), dtype="int8", sizes_bytes=(1024,), redop="max")
    plan(ops=("broadcast",), world_sizes=(200,), dtype="int8", sizes_bytes=(1024,))


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def measuring(path: Path, wrong: int = 0, error: BaseException | None = None) -> Callable[[], None]:
    def measure() -> None:
        write_sweep(path, sweep_result(row(wrong=wrong)))
        if error is not None:
            raise error

    return measure


def run(tmp_path: Path, measure: Callable[[], None]) -> tuple[int, Path]:
    plan = BenchPlan(("all_reduce",), (2,), (8,), str(tmp_path / "result.json"))
    json_file = tmp_path / "kept.json"
    return show_measured(measure, plan, json_file), json_file


def test_a_successful_sweep_is_shown_and_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, kept = run(tmp_path, measuring(tmp_path / "result.json"))
    assert code == 0
    assert read_sweep(kept) == sweep_result(row())
    out, error = capsys.readouterr()
    assert out.endswith(f"# JSON: {kept}\n")
    assert error == ""


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (RankFailedError(1, -9, "", Path("log")), 1, "rank 1 failed: its process was ended by SIG"),
        (RuntimeError("connection closed\nby peer"), 1, "RuntimeError: connection closed\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_a_failed_sweep_is_reported_in_one_line_and_keeps_its_rows(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    line: str,
) -> None:
    found, kept = run(tmp_path, measuring(tmp_path / "result.json", error=error))
    assert found == code
    assert len(read_sweep(kept).rows) == 1
    assert len(read_sweep(kept).problems) == 1
    out, said = capsys.readouterr()
    assert "# Cut short: " in out
    assert said.startswith(f"commprof microbench: {line}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("wrong", "said"), [(1, "1 element was wrong"), (3, "3 elements were wrong")]
)
def test_wrong_data_make_the_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: int, said: str
) -> None:
    code, kept = run(tmp_path, measuring(tmp_path / "result.json", wrong=wrong))
    assert code == 1
    assert said in capsys.readouterr().err
    assert read_sweep(kept).rows[0].wrong == wrong


def test_command_line_arguments_become_a_plan() -> None:
    args = arguments(
        *("all_reduce", "all_reduce", "--hook", "topk:ratio=0.5", "--nproc", "4,2", "-b", "1K"),
        *("-e", "4K", "-d", "float32", "-o", "max", "-n", "7", "-w", "0", "-c", "2"),
    )
    plan = make_plan(args, None)
    assert plan.ops == ("all_reduce", "hook:topk:ratio=0.5")
    assert plan.world_sizes == (2, 4)
    assert plan.sizes_bytes == (1024, 2048, 4096)
    assert (plan.dtype, plan.redop, plan.iterations, plan.warmup, plan.check) == (
        *("float", "max", 7, 0, 2),
    )


@pytest.mark.parametrize("words", [("-d", "int8", "-e", "1"), ("--backend", "mpi")])
def test_unusable_microbench_options_leave_no_json_file(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    path = tmp_path / "result.json"
    args = arguments("all_gather", "--nproc", "2", "--json", str(path), *words)
    with pytest.raises(UsageError):
        MicrobenchCommand().run(args)
    assert not path.exists()


def test_the_default_world_size_is_all_launched_ranks_and_no_more_are_allowed() -> None:
    assert make_plan(arguments("all_reduce"), 8).world_sizes == (8,)
    with pytest.raises(UsageError, match="asks for 16 ranks, but 8 were launched"):
        make_plan(arguments("all_reduce", "--nproc", "2,16"), 8)


def test_the_context_names_each_ranks_host() -> None:
    clocks = [
        ("boot b", "time 1"),
        ("boot a", "time 1"),
        ("boot a", "time 1"),
        ("boot b", "time 1"),
    ]
    # Network namespaces of one machine count as separate hosts, but have the same clock.
    hosts = [("b", "net 1"), ("a", "net 1"), ("a", "net 2"), ("b", "net 1")]
    made = context(plan(), clocks, hosts)
    assert (made["hosts"], made["rank_hosts"], made["world_size"]) == (3, [0, 1, 2, 0], 4)
    assert made["time"].startswith("if the measured ranks are on machines that share no clock: ")
    alone = context(plan(), clocks[1:3], hosts[1:3])
    assert (alone["hosts"], alone["rank_hosts"]) == (2, [0, 1])
    assert alone["time"] == "from the latest begin to the latest end of any rank"


def test_the_context_names_the_language_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "commprof.forecast.microbench.context.loop_language",
        lambda on_cpu: "C++" if on_cpu else "Python",
    )
    changes: dict[str, Any]
    for changes, language in (
        ({}, "C++"),
        ({"overlap": True}, "Python"),
        ({"ops": ("hook:fp16",)}, "Python"),
        ({"ops": ("all_reduce", "hook:fp16")}, "C++ and Python"),
    ):
        assert context(plan(**changes), ["clock"], ["host"])["loop"] == language


def test_interfaces_not_down_are_listed_with_their_known_speed(tmp_path: Path) -> None:
    for name, state, speed in (
        ("eth0", "up", "10000"),
        ("eth1", "down", "1000"),
        ("lo", "unknown", None),
        ("veth", "up", "-1"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "operstate").write_text(f"{state}\n")
        if speed is not None:
            (tmp_path / name / "speed").write_text(f"{speed}\n")
    (tmp_path / "bonding_masters").write_text("bond0\n")
    assert interfaces(tmp_path) == [
        {"name": "eth0", "speed_mbit_per_s": 10_000},
        {"name": "lo", "speed_mbit_per_s": None},
        {"name": "veth", "speed_mbit_per_s": None},
    ]
    assert interfaces(tmp_path / "none") == []
