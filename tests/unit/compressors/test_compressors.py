"""Compressors before they are attached: options, text form, states."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

from commprof import _native, compressors
from commprof.compressors import compressor
from commprof.compressors.compressor import SCHEMES
from commprof.errors import CommprofError, UsageError

native = pytest.mark.skipif(_native.native is None, reason="no native module")


def test_each_function_makes_its_scheme() -> None:
    for name in SCHEMES:
        assert getattr(compressors, name)().scheme == compressors.parse(name).scheme == name
    assert compressors.topk().label == "topk:ratio=0.01"
    assert compressors.powersgd(2, seed=7).label == "powersgd:rank=2,seed=7"
    assert compressors.powersgd(2, feedback=False).label == "powersgd:rank=2,feedback=0"
    assert (
        compressors.int8(start_step=3, measure_every=5).label == "int8:start_step=3,measure_every=5"
    )


@pytest.mark.parametrize("text", ["none", "topk:ratio=0.001,feedback=0", "powersgd:rank=8,seed=3"])
def test_a_label_parses_to_itself(text: str) -> None:
    assert compressors.parse(text).label == text
    assert compressors.parse(compressors.parse(text).label).label == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zip", "unknown compressor 'zip' (allowed: none, fp16, bf16"),
        (
            "topk:k=3",
            "topk has no option 'k' (allowed: ratio, feedback, start_step, checksum, hierarchical)",
        ),
        ("none:feedback=1", "none has no option 'feedback' (allowed: none)"),
        ("topk:ratio=2", "topk: ratio=2.0 is out of range (allowed: a number from 1e-09 to 1)"),
        ("topk:ratio=nan", "ratio=nan is out of range"),
        ("powersgd:rank=1.5", "rank=1.5 is out of range (allowed: a whole number from 1 to 16)"),
        ("topk:ratio=big", "'ratio=big' is not option=number"),
        ("topk:ratio", "'ratio' is not option=number (as in topk:ratio=0.01)"),
        ("int8:measure_every=-1", "measure_every=-1 is out of range"),
        (
            "topk:ratio=0.01,ratio=0.5",
            "topk: option 'ratio' is given twice; keep one of them",
        ),
        ("int8:seed=1,seed=1", "int8: option 'seed' is given twice"),
        ("int8:seed=0.5", "int8: seed=0.5 is not a whole number"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        compressors.parse(text)


def test_the_help_text_has_a_line_for_each() -> None:
    lines = compressor.help_text().splitlines()
    assert [line.split()[0].partition(":")[0] for line in lines] == list(SCHEMES)


def test_making_one_loads_no_torch() -> None:
    make = "import sys; from commprof import compressors; compressors.topk()"
    check = f"{make}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_what_needs_a_model_says_so() -> None:
    with pytest.raises(CommprofError, match="is not attached to a model"):
        compressors.fp16().state_dict()
    with pytest.raises(UsageError, match="not both above 0"):
        compressors.fp16().set_loss_scale(0, 1)


def states(world_size: int = 2) -> list[dict[str, object]]:
    return [
        {
            "version": 1,
            "scheme": "powersgd",
            "options": {"rank": 1.0},
            "seed": 0,
            "step": 5,
            "world_size": world_size,
            "rank": rank,
            "parameters": {
                "a": {"residual": torch.full((3,), float(rank)), "q": torch.ones(2)},
                **({"b": {"residual": torch.ones(1)}} if rank == 0 else {}),
            },
        }
        for rank in range(world_size)
    ]


def test_merged_residuals_are_means_over_the_ranks() -> None:
    merged = compressors.merge_states(list(reversed(states(4))))
    parameters = merged["parameters"]
    assert parameters["a"]["residual"].tolist() == [1.5] * 3
    assert parameters["a"]["q"].tolist() == [1.0, 1.0]
    assert parameters["b"]["residual"].tolist() == [0.25]  # the others have zeros
    assert (merged["step"], merged["world_size"], merged["rank"]) == (5, -1, -1)


def test_states_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(UsageError, match="needed: one state of each rank"):
        compressors.merge_states(states()[:1])
    with pytest.raises(UsageError, match="needed: one state of each rank"):
        compressors.merge_states([])
    first, second = states()
    with pytest.raises(UsageError, match="has step 6, but rank 0's has 5"):
        compressors.merge_states([first, {**second, "step": 6}])
