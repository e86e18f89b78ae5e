"""What the command makes of a measurement's end: exit code, lines, and the rows that are kept."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from commprof.analysis.sweeps.sweep_file import read_sweep, write_sweep
from commprof.commands.microbench import MicrobenchCommand, make_plan, show_measured
from commprof.commands.options.microbench_arguments import add_arguments
from commprof.errors import RankFailedError, UsageError
from commprof.microbench.plan import Plan
from commprof.microbench.timing.context import interfaces
from tests.support.builders.sweeps import row, sweep_result


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
    plan = Plan(("all_reduce",), (2,), (8,), str(tmp_path / "result.json"))
    json_file = tmp_path / "kept.json"
    return show_measured(measure, plan, json_file), json_file


def test_what_went_well_is_shown_and_kept(
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
def test_a_failure_is_one_line_and_keeps_the_rows(
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


def test_wrong_data_are_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, kept = run(tmp_path, measuring(tmp_path / "result.json", wrong=3))
    assert code == 1
    assert "3 elements were wrong" in capsys.readouterr().err
    assert read_sweep(kept).rows[0].wrong == 3


def test_arguments_become_a_plan() -> None:
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
def test_bad_input_leaves_no_file(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "result.json"
    args = arguments("all_gather", "--nproc", "2", "--json", str(path), *words)
    with pytest.raises(UsageError):
        MicrobenchCommand().run(args)
    assert not path.exists()


def test_launched_ranks_are_all_taken_and_no_more() -> None:
    assert make_plan(arguments("all_reduce"), 8).world_sizes == (8,)
    with pytest.raises(UsageError, match="asks for 16 ranks and 8 were launched"):
        make_plan(arguments("all_reduce", "--nproc", "2,16"), 8)


def test_interfaces_that_are_up_and_their_speed_where_it_is_known(tmp_path: Path) -> None:
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
    assert interfaces(tmp_path) == [
        {"name": "eth0", "speed_mbit_per_s": 10_000},
        {"name": "lo", "speed_mbit_per_s": None},
        {"name": "veth", "speed_mbit_per_s": None},
    ]
    assert interfaces(tmp_path / "none") == []
