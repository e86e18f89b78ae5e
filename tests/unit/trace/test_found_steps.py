from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from commprof.analysis.step.measured import samples_read
from commprof.analysis.step.merged import merged_steps
from commprof.trace import columns, schema
from commprof.trace.reader import Trace, read_trace
from commprof.trace.schema import Phase
from tests.support.builders import trace_bytes as made

UPDATED, SKIPPED = schema.STEP_UPDATED, schema.STEP_SKIPPED


def trace_of(directory: Path, *rows: bytes) -> Trace:
    path = directory / "rank_1.trace"
    path.write_bytes(made.trace(made.block(made.RECORDS_BLOCK, b"".join(rows)), made.end()))
    return read_trace(path)


def mark(time_ns: int, step: int, found: int = 0, *, ends: bool = True) -> bytes:
    return made.record(time_ns, made.STEP, op_id=step, aux=int(ends), seq=found, thread=1)


def phase(phase: Phase, begin: int, end: int, samples: int = 0) -> bytes:
    return made.record(begin, made.PHASE, aux=phase, value=end, seq=samples, thread=1)


def backward(begin: int, end: int) -> tuple[bytes, bytes]:
    return phase(Phase.BACKWARD, begin, end), made.record(begin + 1, made.ISSUE, value=1)


START = mark(0, 0, ends=False)


def test_declared_steps_override_found_ones(tmp_path: Path) -> None:
    marks = (START, mark(8, 0, UPDATED), mark(10, 1), mark(20, 2), mark(30, 3))
    steps = columns.steps(trace_of(tmp_path, *marks))
    assert steps.source == "declared"
    # The begin of step 1 is not known, because nothing before 10 ns was declared.
    assert list(zip(steps.index, steps.begin_ns, steps.end_ns, strict=True)) == [
        (2, 10, 20),
        (3, 20, 30),
    ]


def test_optimizer_updates_and_skipped_updates_end_steps(tmp_path: Path) -> None:
    steps = columns.steps(trace_of(tmp_path, START, mark(10, 0, SKIPPED), mark(20, 1, UPDATED)))
    assert (steps.source, steps.end_ns.tolist()) == ("update", [10, 20])


def test_without_updates_communicating_backward_passes_end_steps(tmp_path: Path) -> None:
    silent = phase(Phase.BACKWARD, 1, 3)
    steps = columns.steps(trace_of(tmp_path, START, silent, *backward(5, 9), *backward(15, 18)))
    assert steps.source == "backward"
    assert steps.index.tolist() == [0, 1]
    assert (steps.begin_ns.tolist(), steps.end_ns.tolist()) == ([0, 9], [9, 18])


def test_a_pause_of_capture_between_backward_passes_belongs_to_no_step(tmp_path: Path) -> None:
    passes = [row for begin in (5, 15, 105, 115) for row in backward(begin, begin + 4)]
    rows = [*passes[:4], mark(100, 0, ends=False), *passes[4:]]
    steps = columns.steps(trace_of(tmp_path, START, *rows))
    assert list(zip(steps.index, steps.begin_ns, steps.end_ns, strict=True)) == [
        (0, 0, 9),
        (1, 9, 19),
        (2, 100, 109),
        (3, 109, 119),
    ]


def iteration(begin: int, passes: int, step: int | None) -> list[bytes]:
    rows = [row for i in range(passes) for row in backward(begin + 3 * i, begin + 3 * i + 2)]
    end = begin + 3 * passes
    if step is not None:
        rows += [phase(Phase.OPTIMIZER, end, end + 1), mark(end + 1, step, UPDATED)]
    return rows


def merged(directory: Path, *iterations: list[bytes]) -> list[int]:
    trace = trace_of(directory, START, *(row for rows in iterations for row in rows))
    found = merged_steps([trace])
    assert merged_steps([trace, trace], [columns.collectives(trace)] * 2) == found
    return sorted(found)


def test_a_step_with_two_iterations_and_one_update_is_reported_as_merged(tmp_path: Path) -> None:
    regular = [iteration(20 * i, 1, i) for i in range(4)]
    left_out = iteration(80, 1, None)
    assert merged(tmp_path, *regular, left_out, iteration(100, 1, 4)) == [4]


def test_gradient_accumulation_is_not_reported_as_merged_steps(tmp_path: Path) -> None:
    assert merged(tmp_path, *(iteration(20 * i, 4, i) for i in range(4))) == []
    # A step can take over the rest of an epoch's passes: 6 is no multiple of 4.
    steps = [iteration(20 * i, 4, i) for i in range(3)]
    assert merged(tmp_path, *steps, iteration(60, 6, 3)) == []


def test_the_update_of_a_second_model_is_not_reported_as_merged_steps(tmp_path: Path) -> None:
    steps = [iteration(20 * i, 1, i) for i in range(3)]
    other = [*backward(60, 62), phase(Phase.OPTIMIZER, 63, 64)]
    assert merged(tmp_path, *steps, [*other, *iteration(66, 1, 3)]) == []


def test_samples_are_summed_over_the_given_steps(tmp_path: Path) -> None:
    reads = [phase(Phase.DATA, 10 * i + 1, 10 * i + 2, samples=4) for i in range(4)]
    epoch_end = phase(Phase.DATA, 35, 36)  # the read that ends an epoch gives no batch
    marks = [mark(10 * i + 10, i, UPDATED) for i in range(4)]
    trace = trace_of(tmp_path, START, *marks, *reads, epoch_end)
    assert samples_read([trace], np.array([1, 2, 3]))[0] == 12
    assert samples_read([trace], np.array([1, 3]))[0] == 8
    assert math.isnan(samples_read([trace], np.array([], dtype=np.int64))[0])


def test_the_sum_of_samples_is_unknown_if_one_batch_is_unknown(tmp_path: Path) -> None:
    known = phase(Phase.DATA, 1, 2, samples=4)
    unknown = phase(Phase.DATA, 11, 12, samples=schema.SAMPLES_UNKNOWN)
    trace = trace_of(
        tmp_path, START, known, mark(10, 0, UPDATED), unknown, mark(20, 1, UPDATED), mark(30, 2, 1)
    )
    assert samples_read([trace], np.array([0]))[0] == 4
    assert math.isnan(samples_read([trace], np.array([0, 1]))[0])
    assert math.isnan(samples_read([trace], np.array([2]))[0])
