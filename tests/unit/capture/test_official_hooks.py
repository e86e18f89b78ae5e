"""Each test fails once torch's c10d hooks have a feature that capture needs.

Capture replaces kernels as long as the hooks lack these features: see docs/architecture.md.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

_C10D = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d"


@pytest.fixture(scope="module")
def hooks() -> str:
    header = _C10D / "Hooks.hpp"
    if not header.exists():
        pytest.skip("torch before 2.14 has no hooks around collectives")
    return re.sub(r"//[^\n]*", "", header.read_text())


def members(text: str, struct: str) -> set[str]:
    body = re.search(rf"struct {struct} {{(.*?)\n}};", text, re.DOTALL)
    assert body is not None
    return set(re.findall(r"(\w+)(?: = [^;]+)?;", body[1]))


def test_c10d_pre_hooks_do_not_get_the_reduction(hooks: str) -> None:
    told = {"name", "async_op", "input_tensors", "output_tensors", "root", "op_id"}
    assert members(hooks, "PreHookArgs") == told


def test_c10d_post_hooks_cannot_replace_the_work(hooks: str) -> None:
    assert members(hooks, "PostHookArgs") == {"name", "async_op", "work", "op_id"}
    assert "using PostHook = std::function<void(const PostHookArgs&)>;" in hooks


def test_c10d_has_no_hook_for_a_monitored_barrier(hooks: str) -> None:
    names = re.search(r"enum class HookOpName : uint8_t {(.*?)}", hooks, re.DOTALL)
    assert names is not None
    assert "BARRIER" in names[1]
    assert "MONITORED" not in names[1]


def test_c10d_gloo_has_no_completion_hooks(hooks: str) -> None:
    assert (
        "supportsCompletionHooks() const override"
        not in (_C10D / "ProcessGroupGloo.hpp").read_text()
    )
