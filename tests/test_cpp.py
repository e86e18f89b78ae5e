from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from commprof.trace import columns, schema
from commprof.trace.reader import read_trace
from tests.support.builders import trace_bytes as made
from tests.support.builders.histograms import histogram_of
from tests.support.machines.core_tests import ROOT, build, run, tool

pytestmark = pytest.mark.timeout(1800)  # the first test builds the core and all its tests
TESTS = sorted(path.stem for path in (ROOT / "tests/cpp").rglob("test_*.cpp"))


@pytest.fixture(
    scope="module",
    params=["", pytest.param("address,undefined", marks=pytest.mark.slow)],
    ids=["plain", "sanitized"],
)
def built(request: pytest.FixtureRequest) -> Path:
    return build(request.param)


@pytest.mark.parametrize("name", TESTS)
def test_core(built: Path, name: str) -> None:
    command = [tool("ctest"), "--test-dir", str(built), "-R", f"^{name}$"]
    run([*command, "--output-on-failure", "--no-tests=error"])


@pytest.mark.slow
def test_many_more_random_sums_in_shared_memory() -> None:
    run([str(build("") / "test_shm_random"), "8000", "100"])


@pytest.mark.slow
def test_threads_under_the_thread_sanitizer() -> None:
    tree = build("thread")
    run([tool("ctest"), "--test-dir", str(tree), "--output-on-failure", "--no-tests=error"])


def test_python_reads_every_field_that_cpp_wrote(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "rank_1.trace"
    run([str(built / "test_layout"), str(path), json.dumps(made.metadata())])
    trace = read_trace(path)

    expected = np.zeros(len(schema.KINDS), dtype=schema.RECORD_DTYPE)
    first = {
        "timestamp_ns": 1000,
        "op_id": 2000,
        "kind": 0,
        "op": 1,
        "dtype": 2,
        "reduce_op": 3,
        "group": 3000,
        "thread": 4000,
        "aux": 5000,
        "bytes_in": 2**40,
        "bytes_out": 2**41,
        "seq": 6000,
        "flags": 7000,
        "value": 2**63,
    }
    assert set(first) == set(schema.RECORD_DTYPE.names or ())
    for name, value in first.items():
        expected[name] = np.uint64(value) + np.arange(len(expected), dtype=np.uint64)
    # The reader leaves out the first record, whose kind is "none".
    assert trace.records.tolist() == expected[1:].tolist()
    assert trace.metadata == made.metadata()
    assert (trace.complete, trace.dropped, trace.problems) == (True, 0, ())


def test_python_makes_the_same_histogram(built: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    values = np.concatenate(
        ([0, 63, 64, 127, 128, 2**42 - 1, 2**42], 2 ** random.uniform(0, 45, 3000))
    )
    numbers = values.astype(np.int64).tolist()
    path = tmp_path / "numbers"
    path.write_text("\n".join(map(str, numbers)))
    written = json.loads(run([str(built / "test_histogram"), str(path)]))
    expected = histogram_of(numbers)
    assert (written["count"], written["sum"]) == (expected.count, expected.sum_ns)
    assert (written["min"], written["max"]) == (expected.min_ns, expected.max_ns)
    assert np.cumsum(written["buckets"][::2]).tolist() == expected.buckets.tolist()
    assert written["buckets"][1::2] == expected.counts.tolist()


def test_python_finds_the_same_steps(built: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    for _ in range(60):
        marks = _random_marks(random)
        path = tmp_path / "marks"
        path.write_text("".join(f"{step} {ends} {at} {found}\n" for step, ends, at, found in marks))
        written = json.loads(run([str(built / "test_found_steps"), str(path)]))
        rows = [
            made.record(at, made.STEP, op_id=step, aux=ends, seq=found, thread=1)
            for step, ends, at, found in marks
        ]
        trace = tmp_path / "rank_0.trace"
        trace.write_bytes(made.trace(made.block(made.RECORDS_BLOCK, b"".join(rows)), made.end()))
        steps = columns.steps(read_trace(trace))
        # The first step is warm-up, and C++ leaves it out.
        expected = histogram_of((steps.end_ns - steps.begin_ns)[1:].tolist())
        assert written["steps_end"] == steps.source, marks
        assert (written["steps"]["count"], written["steps"]["sum"]) == (
            expected.count,
            expected.sum_ns,
        ), marks


def _random_marks(random: np.random.Generator) -> list[tuple[int, int, int, int]]:
    """Returns marks: a step, 1 if it ends here (else 0), a time in ns, and who placed the mark."""
    kinds = random.choice(
        ["declared", "update", "skipped", "pause"], 12, p=random.dirichlet([1] * 4)
    )
    found = {
        "declared": schema.STEP_DECLARED,
        "update": schema.STEP_UPDATED,
        "skipped": schema.STEP_SKIPPED,
    }
    marks, step, now_ns = [(0, 0, 0, schema.STEP_DECLARED)], 0, 0
    for kind in kinds[: random.integers(13)]:
        now_ns += int(random.integers(1, 1000))
        if kind == "pause":
            marks.append((step, 0, now_ns, schema.STEP_DECLARED))
        else:
            marks.append((step, 1, now_ns, found[kind]))
            step += 1
    return [mark for mark in marks if random.random() < 0.9]
