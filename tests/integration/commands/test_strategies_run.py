from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commprof import _native
from commprof.analysis.world import WorldResult
from commprof.commands import main
from commprof.launch.elastic import launch, stop_fork_server
from commprof.launch.job import Job
from commprof.trace.run.run_directory import read_world, world_directory
from tests.support.analysed import analyse_world, problems_of
from tests.support.builders.small_workloads import SMALL_OF
from tests.support.machines.commands import RUN, call

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_native.native is None, reason="Python capture sees DDP's buckets only"),
]

SMALL = SMALL_OF["transformer"]
STEPS = 6


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    yield
    stop_fork_server()


def run_directory(base: Path, ranks: int = 2, workload: str = SMALL, **options: Any) -> Path:
    return base / re.sub(r"\W+", "-", f"{workload[:4]} {ranks} {sorted(options.items())}")


def trained(base: Path, ranks: int = 2, workload: str = SMALL, **options: Any) -> WorldResult:
    run = run_directory(base, ranks, workload, **options)
    job = Job(
        *(workload, ranks, world_directory(run, ranks)),
        **{"steps": STEPS, "batch_size": 16, "scaling": "strong", "hook": False, **options},
    )
    launch(job, job.directory / "logs")
    result = analyse_world(read_world(run, ranks))
    assert result is not None
    assert problems_of(result) == []
    return result


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("strategies")


@pytest.fixture(scope="module")
def ddp(base: Path) -> WorldResult:
    return trained(base)


def bytes_of(world: WorldResult) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in world.communication.collectives:
        found[row.kind.op] = found.get(row.kind.op, 0) + row.total_bytes
    return found


def check_theory(world: WorldResult, *operations: str) -> None:
    checks = {check.name: check for check in world.cross_checks if check.name.startswith("theory")}
    assert checks.keys() == {f"theory_{op}" for op in operations}
    for check in checks.values():
        assert check.ours == check.other > 0, check
        assert check.agrees
    steps = world.timing.measured_steps * len(world.ranks)
    for op in operations:
        assert bytes_of(world)[op] == round(checks[f"theory_{op}"].other * 1e6) * steps


def test_ddp_exchanges_gradients(ddp: WorldResult) -> None:
    check_theory(ddp, "all_reduce")
    assert ddp.training.weights_differ == ()
    assert all(300e6 > rank.peak_rss_bytes - rank.before_rss_bytes > 0 for rank in ddp.ranks)


@pytest.mark.parametrize(
    ("strategy", "ranks", "operations"),
    [
        ("zero1", 2, ("all_reduce", "broadcast")),
        ("fsdp", 2, ("all_gather_into_tensor", "reduce_scatter_tensor")),
        ("fsdp:wrap_blocks=2", 2, ("all_gather_into_tensor", "reduce_scatter_tensor")),
        ("hsdp", 4, ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce")),
    ],
)
def test_every_strategy_trains_like_ddp_and_exchanges_what_theory_says(
    ddp: WorldResult, base: Path, strategy: str, ranks: int, operations: tuple[str, ...]
) -> None:
    world = trained(base, ranks, strategy=strategy)

    check_theory(world, *operations)
    assert world.training.step_losses == pytest.approx(ddp.training.step_losses, rel=1e-5)


def test_blocks_wrapped_together_are_gathered_together(base: Path) -> None:
    directory, three = base / "three", SMALL.replace("layers=2", "layers=3")
    world = trained(directory, workload=three, strategy="fsdp:wrap_blocks=2")
    calls = Counter[str]()
    for row in world.communication.collectives:
        calls[row.kind.op] += round(row.calls_per_step)
    # The root and two units are gathered in forward, and the two units again in backward.
    assert calls == {"all_gather_into_tensor": 5, "reduce_scatter_tensor": 3}
    assert world.training.step_losses == pytest.approx(
        trained(directory, workload=three, strategy="fsdp").training.step_losses, rel=1e-5
    )


def test_fsdp_with_bf16_accumulation_and_checkpointing_trains_like_ddp(
    ddp: WorldResult, base: Path
) -> None:
    options = {"precision": "bf16", "accumulate": 2, "checkpoint_activations": True}
    world = trained(base, strategy="fsdp", batch_size=8, clip_norm=1.0, **options)

    check_theory(world, "all_gather_into_tensor", "reduce_scatter_tensor")
    assert world.training.step_losses == pytest.approx(ddp.training.step_losses, rel=2e-2)
    (gathered,) = {
        row.kind.dtype
        for row in world.communication.collectives
        if row.kind.op.startswith("all_gather")
    }
    assert gathered == "BFloat16"


@pytest.mark.parametrize(
    ("strategy", "calls", "again"), [("fsdp", {8, 6}, "on,off"), ("zero1", set(), "")]
)
def test_sharded_steps_are_predicted(
    base: Path, strategy: str, calls: set[int], again: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world = trained(base, strategy=strategy, steps=40)
    directory = world_directory(run_directory(base, strategy=strategy, steps=40), 2)
    asked = ["--reshard-after-forward", again] if again else []
    arguments = ["--format", "json", *asked]
    assert main(["predict", str(directory), *arguments]) == 0
    document = json.loads(capsys.readouterr().out)

    assert document["is_sharded"] is True
    assert abs(document["checks"][0]["error"]) < 0.25
    predictions = [answer["prediction"] for answer in document["answers"]]
    assert not calls or {found["buckets"] for found in predictions} == calls
    own = predictions[0]
    measured_s = document["checks"][0]["measured_s"]
    assert own["step_s"]["value"] == pytest.approx(measured_s, rel=0.25)
    assert own["wait_s"] + own["transfer_s"] + own["compute_s"] == pytest.approx(
        own["step_s"]["value"]
    )
    sharded = world.communication.sharding
    assert (sharded is None) == (strategy == "zero1")
    assert sharded is None or sharded.groups == 3


def test_fsdp_makes_no_superfluous_gathers_between_accumulated_passes(base: Path) -> None:
    # The root of this model has no parameters. A gather for the root could hide that the gather for
    # a layer is missing.
    timed = "timed:layers=3,forward_ms=1,backward_ms=1,data_ms=0,gradient_mb=0.1"
    world = trained(base, workload=timed, strategy="fsdp", accumulate=2)

    check_theory(world, "all_gather_into_tensor", "reduce_scatter_tensor")
    (gathered,) = (
        row for row in world.communication.collectives if row.kind.op == "all_gather_into_tensor"
    )
    assert gathered.calls_per_step == 2 * 2 * 3


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp"])
def test_fp16_with_loss_scaling_trains_like_fp32(
    ddp: WorldResult, base: Path, strategy: str
) -> None:
    world = trained(base, strategy=strategy, precision="fp16", clip_norm=1.0)

    assert world.training.step_losses == pytest.approx(ddp.training.step_losses, rel=2e-2)
    assert world.training.weights_differ == ()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    "workload",
    ["mlp", "resnet50", "transformer", pytest.param("lora", marks=pytest.mark.needs("peft"))],
)
def test_every_workload_trains_with_all_options_together(
    base: Path, workload: str, strategy: str
) -> None:
    options = {"accumulate": 2, "clip_norm": 1.0, "checkpoint_activations": True, "steps": 2}
    world = trained(
        *(base, 2, SMALL_OF[workload]), strategy=strategy, precision="bf16", batch_size=4, **options
    )

    assert len(world.training.step_losses) == 2
    assert all(0 < loss < 20 for loss in world.training.step_losses)
    # Buffers do not count: FSDP leaves each rank its own statistics of batch norm.
    assert world.training.weights_differ == ()
    if strategy == "fsdp":
        check_theory(world, "all_gather_into_tensor", "reduce_scatter_tensor")
    elif workload != "resnet50":
        check_theory(world, "all_reduce")


def test_ddp_sends_buffers_once_per_update(base: Path) -> None:
    world = trained(base, workload=SMALL_OF["resnet50"], accumulate=2, batch_size=4)
    check_theory(world, "all_reduce", "broadcast")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_batch_norm_under_16_bit_fsdp_gives_the_loss_of_ddp(base: Path, precision: str) -> None:
    # A backward pass in 16 bits takes seconds of CPU for each image.
    options = {"precision": precision, "batch_size": 4, "steps": 1}
    whole, cut = (
        trained(base, workload=SMALL_OF["resnet50"], strategy=strategy, **options)
        for strategy in ("ddp", "fsdp")
    )

    # DDP's autocast computes batch norm in fp32, and FSDP must do so, too.
    assert cut.training.step_losses[0] == pytest.approx(whole.training.step_losses[0], rel=1e-4)
    check_theory(cut, "all_gather_into_tensor", "reduce_scatter_tensor")


def test_four_passes_per_update_take_a_quarter_of_the_synchronisations(
    ddp: WorldResult, base: Path
) -> None:
    parts = trained(base, accumulate=4, batch_size=4)
    once, fourth = (
        trained(base, steps=12, batch_size=4),
        trained(base, accumulate=4, steps=3, batch_size=4),
    )

    assert parts.training.step_losses == pytest.approx(ddp.training.step_losses, rel=1e-5)
    check_theory(parts, "all_reduce")
    per_pass = bytes_of(once)["all_reduce"] / once.timing.measured_steps
    assert bytes_of(fourth)["all_reduce"] / fourth.timing.measured_steps / 4 == per_pass / 4
    assert sum(once.training.step_samples) == sum(fourth.training.step_samples) == 12 * 4


@pytest.mark.needs("peft", "transformers")
def test_only_lora_adapters_are_synchronised(base: Path) -> None:
    world = trained(base, workload="lora:sequence=8,samples=32", batch_size=8)

    # Each of the 4 layers has adapters of rank 16, for q and o (256 + 256) and k and v (256 + 128).
    adapters = 4 * 16 * (2 * 512 + 2 * 384)
    steps = world.timing.measured_steps * 2
    reduced = [row for row in world.communication.collectives if row.kind.op == "all_reduce"]
    assert sum(row.total_bytes for row in reduced) == 4 * adapters * steps
    assert all(check.agrees for check in world.cross_checks if check.name.startswith("theory"))
    sharded = trained(base, workload="lora:sequence=8,samples=32", batch_size=8, strategy="fsdp")
    check_theory(sharded, "all_gather_into_tensor", "reduce_scatter_tensor")
    assert sharded.training.step_losses == pytest.approx(world.training.step_losses, rel=1e-5)


def test_strategies_are_shown_side_by_side(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = call(
        *RUN, "--world-sizes", "1,2", "--strategy", "ddp,fsdp", "--workload", "mlp:width=64",
        "--steps", "6", "--overhead-steps", "0", "--output", str(run), "--precision", "bf16",
        "--all",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [
        tuple(row) for row in re.findall(r"^ +(\d) +(\w+) +[\d.]+ +([\d.]+)x ", done.stdout, re.M)
    ]
    one, two = [("1", "ddp"), ("1", "fsdp")], [("2", "ddp"), ("2", "fsdp")]
    assert [row[:2] for row in rows] == [*two, *one, *one, *two]
    assert {row[2] for row in rows if row[1] == "ddp"} == {"1.00"}
    assert re.search(r"^ +2 +fsdp +all_gather_into_tensor ", done.stdout, re.M)
    assert "precision bf16" in done.stdout
    shown = call("-m", "commprof", "report", str(run), "--all")
    tables = shown.stdout.partition("\n\nRun it again:")[0]
    assert tables == done.stdout.partition("\n\nRun directory:")[0]
    document = json.loads((run / "result.json").read_text())
    assert [row["strategy"] for row in document["strategies"]] == ["ddp", "fsdp"] * 2
    alone = call("-m", "commprof", "report", str(run / "fsdp"), "--all")
    assert "strategy fsdp, precision bf16, backend gloo" in alone.stdout
    assert "theory" in alone.stdout
    assert f"--config {run}/config.yaml (in " in alone.stdout


def test_eight_and_sixteen_ranks_converge_alike_with_accumulation(tmp_path: Path) -> None:
    done = call(
        *RUN, "--world-sizes", "1,8,16", "--scaling", "strong", "--batch-size", "32",
        "--workload", "mlp:inputs=16,width=32,layers=2,samples=512,learning_rate=0.4",
        "--accumulate", "2", "--steps", "24", "--overhead-steps", "8",
        "--output", str(tmp_path / "run"),
        timeout_s=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["loss_agreement"]["world_sizes"] == [1, 8, 16]
    assert result["loss_agreement"]["agrees"]
    text = re.sub(r"\s+", " ", done.stdout)
    assert (
        "* Loss curves of 1, 8 and 16 ranks agree: the runs used the same 64 samples per step for "
        "24 steps" in text
    )
    for run in result["runs"]:
        metrics = run["aggregated_metrics"]
        losses = metrics["step_losses"]
        assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
        assert metrics["weights_differ"] == []
        reduced = [row for row in metrics["collectives"] if row["op"] == "all_reduce"]
        sizes = sum(row["total_bytes"] for row in reduced)
        weights = 17 * 32 + 33 * 32 + 33 * 10
        assert sizes == 4 * weights * metrics["measured_steps"] * run["num_processes"]
        _check_costs(metrics, run["num_processes"])


def _check_costs(metrics: dict[str, Any], ranks: int) -> None:
    assert metrics["overhead"]["steps_on"] == 4
    ratio = metrics["overhead"]["on_over_off"]
    assert 0 < ratio["low"] <= ratio["value"] <= ratio["high"] < math.inf
    parts = metrics["parts"]
    assert ranks == 1 or 0 < parts["exposed_ms"] < parts["step_ms"]
    names = ("data_ms", "forward_ms", "backward_ms", "exposed_ms", "optimizer_ms", "other_ms")
    assert sum(parts[name] for name in names) == pytest.approx(parts["step_ms"], rel=1e-3)
    recording_ms = metrics["records_per_step"] * metrics["record_cost_ns"] / 1e6
    assert 0 < recording_ms < 0.01 * parts["step_ms"]
