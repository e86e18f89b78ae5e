"""``python -m tests.integration.capture.test_coverage`` writes the tables of docs/your_job.md."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from commprof.analysis.collectives.calls import DEFAULT_GLOO_THREADS
from commprof.trace import schema
from tests.support.builders.coverage import CASES
from tests.support.machines.ranks import run_module

PAGE = Path(__file__).parents[3] / "docs" / "your_job.md"
BEGIN, END = "<!-- coverage -->\n", "<!-- end of coverage -->"

_HEAD = """\
Each row was run on two ranks over gloo with torch {version}, and
`tests/integration/capture/test_coverage.py` compares the trace with theory (operation, type,
reduction, group, bytes, sequence numbers). P: parameters, n: ranks, B: bytes of a tensor.

| issued by | seen as | bytes in -> out |
|---|---|---|
"""

_SAMPLE = """
Not seen: a collective issued on a `Backend` object itself, which torch's own strategies do not do,
and replays of a CUDA graph (the graph's capture is seen once, without times). If a backend runs
coalesced calls as one, as NCCL does, each call is seen, and the wait for all of them counts for the
last; without device events their transfer and hidden time are not known. A call that gloo refuses
is seen if it was issued, and has the flag `failed`:

| issued by | seen as | error |
|---|---|---|
"""


@cache
def outputs() -> list[list[dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as directory:
        texts = run_module("tests.support.ranks.capture.coverage_rank", [directory], 2)
    return [json.loads(text.strip().splitlines()[-1]) for text in texts]


def seen_as(rank: int, case: int) -> str:
    counts = Counter(call["row"][0] for call in outputs()[rank][case]["calls"])
    return ", ".join(op if n == 1 else f"{n} {op}" for op, n in counts.items()) or "nothing"


def document() -> str:
    served, refused = [], []
    for case, (name, (_, formula)) in enumerate(CASES.items()):
        error = outputs()[0][case]["error"]
        seen = seen_as(0, case)
        other = seen_as(1, case)
        seen = seen if seen == other else f"{seen} / {other}"
        (refused if error else served).append(f"| {name} | {seen} | {error or formula} |\n")
    version = torch.__version__.split("+")[0]
    return _HEAD.format(version=version) + "".join(served) + _SAMPLE + "".join(refused)


NAMES = [case.__name__ for case, _ in CASES.values()]


@pytest.mark.parametrize("case", range(len(CASES)), ids=NAMES)
def test_each_way_to_issue_a_collective_is_recorded_with_the_expected_bytes(case: int) -> None:
    for rank in range(2):
        found = outputs()[rank][case]
        assert [call["row"] for call in found["calls"]] == found["expected"], found["error"]
        assert all(call["group"] == ["gloo", 2] for call in found["calls"])


@pytest.mark.parametrize("case", range(len(CASES)), ids=NAMES)
def test_sequence_numbers_have_no_gaps_and_every_call_ends(case: int) -> None:
    for rank in range(2):
        numbers: dict[str, list[int]] = {}
        for call in outputs()[rank][case]["calls"]:
            assert call["ended"], call
            if call["seq"] != schema.NO_SEQ:  # Messages from any source have no number.
                numbers.setdefault(str(call["sequence"]), []).append(call["seq"])
        for sequence, found in numbers.items():
            assert found == list(range(found[0], found[0] + len(found))), sequence


def test_calls_that_gloo_refuses_are_the_expected_ones() -> None:
    refused = [case["error"] for case in outputs()[0] if case["error"]]
    after_issue = 1 + ("gathered_into_one_tensor" in NAMES)
    assert len(refused) == 1 + after_issue
    assert all("gloo" in error.lower() for error in refused)
    refused_after_issue = [case["failed"] for case in outputs()[0]]
    assert refused_after_issue == [0] * (len(CASES) - after_issue) + [1] * after_issue


def test_the_coverage_tables_in_your_job_md_are_current() -> None:
    shown = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert shown
    if f"torch {torch.__version__.split('+')[0]}," not in shown:
        pytest.skip("written with another torch")
    assert document() == shown


def test_gloo_has_as_many_threads_as_the_queue_assumes() -> None:
    assert dist.ProcessGroupGloo._Options()._threads == DEFAULT_GLOO_THREADS


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + document() + END + rest.partition(END)[2])
