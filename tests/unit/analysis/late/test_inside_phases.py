from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from commprof.analysis.late.functions import GrownFunction, read_samples
from commprof.analysis.late.lines import LongerLines, sentences
from commprof.analysis.verdict import _in_the_phases
from commprof.analysis.world import WorldResult
from commprof.errors import CommprofError
from commprof.trace.schema import Kind, Phase
from tests.support.analysed import analyse_world
from tests.support.builders.traces import MS, THREAD, Rank, world_run

STEPS = 8
LINES = {1: "/job/train.py:40 main", 2: "/job/train.py:52 main", 3: "/job/model.py:60 sync"}
TORCH = "/lib/site-packages/torch/distributed/x.py:1 all_reduce"


def issue(rank: Rank, seq: int, at_ms: float, line: int, thread: int = THREAD) -> int:
    issue_ns = round(at_ms * MS)
    op_id = rank.collective(
        seq, issue_ns, issue_ns // (100 * MS) * 100 * MS + 50 * MS, thread=thread
    )
    if line:
        rank.stacks = {number: (TORCH, frame) for number, frame in LINES.items()}
        rank._add(Kind.STACK, issue_ns, op_id=op_id, value=line)
    return op_id


def late_world(no_core_ms: int = 0, lines: tuple[int, int, int] = (1, 2, 3)) -> WorldResult:
    ranks = [Rank(rank, 3) for rank in range(3)]
    for rank in ranks:
        second, third = (36, 48) if rank.rank == 2 else (20, 30)
        for step in range(STEPS):
            begin = 100 * step
            rank.step(begin * MS, (begin + 100) * MS)
            rank.phase(Phase.FORWARD, begin * MS, (begin + 10) * MS)
            rank.phase(Phase.BACKWARD, (begin + 10) * MS, (begin + third) * MS)
            issue(rank, 4 * step, begin + 10, lines[0])
            issue(rank, 4 * step + 1, begin + 15, 3, thread=THREAD + 7)
            issue(rank, 4 * step + 2, begin + second, lines[1])
            last = issue(rank, 4 * step + 3, begin + third, lines[2])
            rank.wait(last, (begin + third) * MS, (begin + 50) * MS)
            if rank.rank == 2 and no_core_ms:
                rank.no_core((begin + 10) * MS, (begin + 36) * MS, no_core_ms * MS)
    world = analyse_world(world_run(ranks))
    assert world is not None
    assert world.lateness.late_rank is not None
    assert world.lateness.late_rank.rank == 2
    return world


def test_the_lines_between_which_a_late_rank_s_phase_takes_longer_are_named() -> None:
    world = late_world()
    assert world.lateness.longer_lines == (
        LongerLines(2, "backward", pytest.approx(18), LINES[1], LINES[2], pytest.approx(16)),
        LongerLines(2, "backward", pytest.approx(18), LINES[2], LINES[3], pytest.approx(2)),
    )
    assert _in_the_phases(world) == [
        "Rank 2's backward takes 18 ms longer than on the other ranks: 16 ms of this between "
        "train.py:40 and train.py:52, 2 ms of this between train.py:52 and model.py:60."
    ]


def test_time_without_a_core_is_subtracted_from_the_longer_lines() -> None:
    first, second = late_world(no_core_ms=4).lateness.longer_lines
    assert (first.phase_ms, first.longer_ms) == (pytest.approx(14), pytest.approx(12))
    assert second.longer_ms == pytest.approx(2)


def test_an_operation_without_a_stack_does_not_divide_the_lines() -> None:
    (only,) = late_world(lines=(1, 0, 3)).lateness.longer_lines
    assert (only.begin, only.end) == (LINES[1], LINES[3])


def test_without_stacks_there_are_no_lines() -> None:
    assert late_world(lines=(0, 0, 0)).lateness.longer_lines == ()


def test_sentences_name_lines_at_the_start_and_the_end_of_a_step() -> None:
    pairs = (("", LINES[1]), (LINES[1], LINES[1]), (LINES[1], ""), ("", ""))
    (said,) = sentences([LongerLines(0, "data", 9.0, *pair, 2.0) for pair in pairs])
    assert said == (
        "Rank 0's data takes 9 ms longer than on the other ranks: 2 ms of this between the start "
        "of the step and train.py:40, 2 ms of this between operations of train.py:40, 2 ms of this "
        "between train.py:40 and the end of the step, 2 ms of this in steps without operations."
    )


MAIN = "thread (100): MainThread;main (train.py:9)"
#: Python's int() refuses a text of 5000 digits.
NOISE = f"{MAIN} -3\n{MAIN} ٣\n{MAIN} {'9' * 5000}\n\n;; 3\nx\n"
ENGINE = f"{MAIN};backward (torch/_tensor.py:5);_engine_run_backward (torch/autograd/graph.py:8)"


def read(directory: Path, text: str | bytes, thread: int = THREAD, is_main: bool = True) -> object:
    path = directory / "rank_0.samples.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    found = read_samples(path, thread, is_main)
    return found.total, {found.label(f): n.total() for f, n in found.lines.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{MAIN} 3\n{MAIN};f (a b.py:1) 4\n", (7, {"main (train.py:9)": 3, "f (a b.py:1)": 4})),
        (f"{MAIN};f (a.py:1) 4\n{MAIN};f (a.py:7) 5\n", (9, {"f (a.py:7)": 9})),
        (f"{MAIN};f (a.py:1);f (a.py:1);<lambda> (a.py) 2\n", (2, {"<lambda> (a.py)": 2})),
        (f"{MAIN};cblas_sgemm 2\n", (2, {"cblas_sgemm": 2})),
        # Frames of torch.distributed mean waiting, and waiting counts for no function.
        (f"thread (100): MainThread 5\n{MAIN};w (/x/torch/distributed/c10d.py:3) 6\n", (11, {})),
        (f"thread (7): Thread-1;g (b.py:1) 9\n{MAIN} 1\n", (1, {"main (train.py:9)": 1})),
        ("thread (0x7F): MainThread;f (a.py:1) 2\n", (2, {"f (a.py:1)": 2})),
        ('process 9:"p; x";thread (100): T;f (a.py:1) 2\n', (2, {"f (a.py:1)": 2})),
        (f"{MAIN} 2\n{MAIN};f (a.py:1) 30", (2, {"main (train.py:9)": 2})),
        (f"{MAIN} 2\n{MAIN};f (a.py:1) 0\n", (2, {"main (train.py:9)": 2})),
        (f"{MAIN} 2\n{NOISE}", (2, {"main (train.py:9)": 2})),
        (f"{MAIN};größe (模\u2028型.py:3) 2\n", (2, {"größe (模\u2028型.py:3)": 2})),
        (f"{MAIN};f (".encode() + b"\xff.py:3) 2\n", (2, {"f (\ufffd.py:3)": 2})),
    ],
)  # fmt: skip
def test_samples_are_counted_by_innermost_function_of_the_training_thread(
    tmp_path: Path, text: str | bytes, expected: object
) -> None:
    assert read(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("text", "thread", "is_main"),
    [
        ("", THREAD, True),
        # py-spy names no thread without its option --threads.
        ("f (a.py:1) 3\n", THREAD, True),
        (f"{MAIN} 0\n", THREAD, True),
        (f"{MAIN} 3\n", 101, False),
    ],
)
def test_samples_without_the_training_thread_are_refused(
    tmp_path: Path, text: str, thread: int, is_main: bool
) -> None:
    with pytest.raises(CommprofError, match="has no sample of the training thread; make the file"):
        read(tmp_path, text, thread, is_main)


def sampled(directory: Path, *texts: str, no_core_ms: int = 0) -> WorldResult:
    ranks = [Rank(rank, 3, pid=THREAD) for rank in range(3)]
    for rank in ranks:
        for step in range(STEPS):
            begin = 100 * step * MS
            until = begin + (80 if rank.rank == 2 else 50) * MS
            rank.step(begin, begin + 100 * MS)
            rank.phase(Phase.BACKWARD, begin + 10 * MS, begin + 80 * MS)
            rank.collective(step, until, begin + 80 * MS, graph_task=step)
            rank.finalize(until, begin + 80 * MS, 0, graph_task=step)
            if no_core_ms:
                rank.no_core(begin, begin + 40 * MS, no_core_ms * MS)
    for rank, text in enumerate(texts):
        if text:
            (directory / f"rank_{rank}.samples.txt").write_text(text)
    world = analyse_world(replace(world_run(ranks), directory=directory))
    assert world is not None
    assert world.lateness.late_rank is not None
    assert world.lateness.late_rank.rank == 2
    return world


def test_functions_that_take_longer_on_the_late_rank_are_named(tmp_path: Path) -> None:
    """On ranks 0 and 1, DDP waits for 30 ms of the 70 ms that the engine takes per step."""
    other = f"{MAIN} 100\n{ENGINE} 700\n{MAIN};augment (data.py:31) 200\n"
    late = f"{MAIN} 95\n{ENGINE} 560\n{MAIN};noise (a.py:1) 5\n"
    late += f"{MAIN};augment (data.py:31) 240\n{MAIN};augment (data.py:33) 100\n"
    world = sampled(tmp_path, other, other, late)
    found = world.lateness.grown_functions
    assert found is not None
    assert (found.rank, found.problem) == (2, "")
    assert found.functions == (
        GrownFunction(
            "_engine_run_backward (torch/autograd/graph.py:8)",
            pytest.approx(56, rel=0.01),
            pytest.approx(40, rel=0.01),
        ),
        GrownFunction("augment (data.py:31)", pytest.approx(34), pytest.approx(20)),
    )
    assert _in_the_phases(world) == [
        "According to py-spy's samples, rank 2 spends more time per step than the other ranks in "
        "_engine_run_backward (torch/autograd/graph.py:8) +16 ms and augment (data.py:31) +14 ms."
    ]


def test_functions_that_grew_less_than_the_time_without_a_core_are_not_named(
    tmp_path: Path,
) -> None:
    other, late = (f"{MAIN} {1000 - n}\n{MAIN};augment (data.py:31) {n}\n" for n in (200, 340))
    world = sampled(tmp_path, other, other, late, no_core_ms=15)
    assert _in_the_phases(world) == [
        "py-spy's samples do not show that any function takes at least 15 ms longer on rank 2 than "
        "on the others."
    ]


def test_growth_that_may_be_chance_with_few_samples_is_not_reported(tmp_path: Path) -> None:
    other, late = (f"{MAIN} 50\n{MAIN};augment (data.py:31) {n}\n" for n in (10, 20))
    world = sampled(tmp_path, other, other, late)
    assert world.lateness.grown_functions is not None
    assert world.lateness.grown_functions.functions == ()
    assert _in_the_phases(world) == [
        "py-spy's samples do not show that any function takes at least 1 ms longer on rank 2 than "
        "on the others."
    ]


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (("", "", f"{MAIN} 9\n"), "no other rank was sampled"),
        ((f"{MAIN} 9\n", "", ""), "rank_2.samples.txt cannot be read (No such file or directory)"),
        (
            (f"{MAIN} 9\n", "x\n", f"{MAIN} 9\n"),
            "rank_1.samples.txt has no sample of the training thread; make the file with py-spy "
            "record --format raw --threads --idle",
        ),
    ],
)
def test_the_reason_why_functions_are_not_compared_is_given(
    tmp_path: Path, texts: tuple[str, ...], problem: str
) -> None:
    world = sampled(tmp_path, *texts)
    assert world.lateness.grown_functions is not None
    assert world.lateness.grown_functions.problem == problem
    assert _in_the_phases(world) == [f"The functions of rank 2 are not compared: {problem}."]


def test_without_sample_files_no_functions_are_compared(tmp_path: Path) -> None:
    assert sampled(tmp_path).lateness.grown_functions is None
