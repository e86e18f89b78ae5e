from __future__ import annotations

from pathlib import Path

import pytest

from commprof.recordings.profiler import read_recording
from commprof.trace import columns
from tests.support.builders.profiler_traces import (
    Event,
    all_reduce,
    annotation,
    document,
    kernel,
    write,
)

ITERATIONS = 6


def backward(begin_us: float, end_us: float) -> Event:
    event = annotation("autograd::engine::evaluate_function: AddBackward0", begin_us, end_us)
    return {**event, "cat": "cpu_op"}


def update(optimizer: str, begin_us: float, end_us: float) -> Event:
    return annotation(f"Optimizer.step#{optimizer}.step", begin_us, end_us)


def recorded(
    folder: Path, iteration: list[Event], eager: int = ITERATIONS
) -> tuple[list[float], list[float], list[str]]:
    """Returns begins and ends of the steps in µs, and the problems.

    After the first ``eager`` iterations a CUDA graph replays the backward pass, which then records
    no operators.
    """
    events = []
    for number in range(ITERATIONS):
        base = 1e6 + 1000.0 * number
        events += [kernel("gemm", base, base + 300), all_reduce(base + 300, base + 400, number)]
        shown = [event for event in iteration if number < eager or event["cat"] != "cpu_op"]
        events += [{**event, "ts": event["ts"] + base} for event in shown]
    found = read_recording(write(folder, [document(events, 0)]))
    assert found is not None
    steps = columns.steps(found.traces[0])
    begin, end = ((at / 1000 - 1e6).tolist() for at in (steps.begin_ns, steps.end_ns))
    return begin, end, list(found.problems)


@pytest.mark.parametrize(
    ("iteration", "end_us"),
    [
        # A wrapper such as ZeroRedundancyOptimizer calls the optimizer of the rank's own part.
        ([backward(100, 150), update("Wrapper", 800, 950), update("AdamW", 805, 850)], 950),
        ([backward(100, 150), update("Muon", 800, 850), update("AdamW", 860, 900)], 850),
        ([backward(100, 150), update("AdamW", 800, 850), update("AdamW", 860, 900)], 850),
        # The closure of LBFGS runs backward passes.
        ([update("LBFGS", 100, 900), backward(200, 250), backward(500, 550)], 900),
        (
            [
                *(backward(100, 200), update("SGD", 110, 190)),
                *(backward(210, 300), update("SGD", 220, 300)),
                update("AdamW", 300, 350),
            ],
            350,
        ),
        ([update("Wrapper", 800, 950), update("AdamW", 805, 850)], 950),
    ],
)
def test_unmarked_steps_end_with_the_update_of_one_optimizer(
    tmp_path: Path, iteration: list[Event], end_us: float
) -> None:
    begin, end, problems = recorded(tmp_path / "job", iteration)
    ends = [1000 * number + end_us for number in range(ITERATIONS)]
    assert begin == pytest.approx(ends[:-1])
    assert end == pytest.approx(ends[1:])
    assert any("steps are from one optimizer step to the next" in text for text in problems)


def test_the_optimizer_with_most_updates_ends_the_steps(tmp_path: Path) -> None:
    """In a GAN, the generator updates once and the critic twice in an iteration."""
    critic = [backward(400, 420), update("RMSprop", 430, 450)]
    critic += [backward(800, 820), update("RMSprop", 830, 850)]
    begin, _, _ = recorded(
        tmp_path / "job", [backward(100, 150), update("Adam", 200, 250), *critic]
    )
    assert begin == pytest.approx([430 + 20 + 400 * n + 200 * (n // 2) for n in range(11)])


def test_updates_between_replays_of_a_cuda_graph_end_steps(tmp_path: Path) -> None:
    iteration = [backward(100, 150), update("AdamW", 800, 850)]
    begin, _, _ = recorded(tmp_path / "job", iteration, eager=ITERATIONS - 2)
    assert begin == pytest.approx([1000 * number + 850 for number in range(ITERATIONS - 1)])


def test_updates_only_inside_backward_passes_do_not_end_steps(tmp_path: Path) -> None:
    iteration = [backward(100, 200), update("SGD", 110, 190), backward(210, 300)]
    begin, _, problems = recorded(tmp_path / "job", [*iteration, update("SGD", 220, 290)])
    assert begin == pytest.approx([1000 * number + 300 for number in range(ITERATIONS - 1)])
    assert any("repeats: it counts as one step" in text for text in problems)
