from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.analysed import analyse_run, problems_of
from tests.support.machines.programs.programs import needs
from tests.support.machines.shown import ROOT, blocks, run_shown

pytestmark = pytest.mark.slow
STEPS = 20


@dataclass(frozen=True)
class Example:
    needs: tuple[str, ...] = ()
    extra: str = ""
    operations: frozenset[str] = frozenset({"all_reduce"})
    reads_batches: bool = True


EXAMPLES = {
    "ddp": Example(),
    "fsdp2": Example(
        operations=frozenset({"all_gather_into_tensor", "reduce_scatter_tensor"}),
        reads_batches=False,
    ),
    "with_accelerate": Example(("accelerate",), "hf"),
    "with_lightning": Example(("pytorch_lightning",), "lightning"),
    "with_ray": Example(("ray",), "ray"),
    "with_transformers": Example(("transformers", "accelerate"), "hf"),
}


def first_lines(name: str) -> list[str]:
    docstring = ast.get_docstring(ast.parse((ROOT / f"examples/{name}.py").read_text()))
    assert docstring is not None
    commands = ("torchrun ", "python ", "commprof ")
    return [line for line in docstring.splitlines() if line.startswith(commands)]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=needs(*it.needs)) for name, it in EXAMPLES.items()],
)
def test_each_example_runs_as_documented_and_is_reported(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    train, show = first_lines(name)

    done = run_shown(train, tmp_path, timeout_s=400)
    assert done.returncode == 0, done.stderr
    shown = run_shown(show, tmp_path, timeout_s=60)
    assert shown.returncode == 0, shown.stderr

    (world,) = analyse_run(tmp_path / "commprof-trace").worlds
    assert (world.world_size, world.timing.steps, world.timing.steps_end) == (2, STEPS, "declared")
    assert not world.recording.missing_ranks
    assert problems_of(world) == []
    assert {row.kind.op for row in world.communication.collectives} >= example.operations
    assert world.training.samples_source == ("dataloader" if example.reads_batches else "")
    parts = world.parts
    assert min(parts.forward_ms, parts.backward_ms, parts.optimizer_ms) > 0
    # Lightning runs the backward pass inside the update, so the update could appear too long.
    assert parts.optimizer_ms < parts.backward_ms + parts.exposed_ms


def test_every_example_is_named_in_some_test() -> None:
    others = [file.read_text() for file in Path(__file__).parents[1].rglob("test_*.py")]
    for file in (ROOT / "examples").glob("*.py"):
        assert file.stem in EXAMPLES or any(file.name in text for text in others), file.name


def test_python_blocks_in_your_job_md_are_excerpts_of_examples() -> None:
    page = [block for block in blocks() if block.page == "docs/your_job.md"]
    shown = [block for block in page if block.language == "python"]
    assert len(shown) >= len(EXAMPLES)
    sources = [stripped(file.read_text()) for file in sorted((ROOT / "examples").glob("*.py"))]
    for block in shown:
        assert any(stripped(block.text) in source for source in sources), block.first_line


def stripped(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())
