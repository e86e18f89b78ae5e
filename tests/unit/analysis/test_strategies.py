from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from commprof.analysis.collectives.in_flight import TimeInFlight
from commprof.analysis.scaling import RunResult
from commprof.analysis.strategies import StrategyRow, strategy_rows
from commprof.report.export.as_json import SCHEMA_FILE, render_strategies
from commprof.report.sections.setup import setup_text
from commprof.report.strategies import render
from tests.support.builders.results import collective, context, run_result, world

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/golden/strategies_table.txt"

REDUCED = collective(exposed_ms=30.0)
GATHERED = collective(
    op="all_gather_into_tensor", reduce_op="", size_bytes=(2_000_000, 2_000_000), calls=80,
    calls_per_step=4.0, total_bytes=160_000_000, phases=(("forward", 60), ("backward", 20)),
    exposed_ms=5.0,
)  # fmt: skip
SCATTERED = collective(op="reduce_scatter_tensor", exposed_ms=7.5)


def results() -> list[RunResult]:
    ddp = run_result(
        world(1),
        world(2, collectives=(REDUCED,), times_in_flight=(TimeInFlight("all_reduce", 40.0),)),
        context=context(strategy="ddp", training={"precision": "bf16"}),
    )
    fsdp = run_result(
        world(
            2,
            samples_per_s=150.0,
            step_median_ms=133.3,
            collectives=(GATHERED, SCATTERED),
            times_in_flight=(TimeInFlight("all_gather_into_tensor", 20.0),),
        ),
        context=context(strategy="fsdp", training={"precision": "bf16"}),
        failures=((4, "rank 1 failed: no"),),
    )
    return [ddp, fsdp]


def row_of(strategy: str, world_size: int) -> StrategyRow:
    (row,) = (
        row
        for row in strategy_rows(results())
        if (row.strategy, row.world_size) == (strategy, world_size)
    )
    return row


def test_strategy_rows_are_ordered_by_world_size_and_strategy() -> None:
    rows = strategy_rows(results())
    assert [(row.world_size, row.strategy) for row in rows] == [
        (1, "ddp"), (2, "ddp"), (2, "fsdp"),
    ]  # fmt: skip
    assert strategy_rows([]) == ()


@pytest.mark.parametrize("unknown", [0, 1])
def test_training_memory_is_that_of_ranks_with_known_memory(unknown: int) -> None:
    ranks = list(world(2).ranks)
    ranks[unknown] = replace(ranks[unknown], peak_rss_bytes=math.nan)
    assert strategy_rows([run_result(world(2, ranks=tuple(ranks)))])[0].training_bytes == 5e8


def test_the_step_spread_is_nan_if_the_median_is_zero() -> None:
    still = world(2, step_median_ms=0.0, step_quartiles_ms=(0.0, 1.0))
    assert math.isnan(strategy_rows([run_result(still)])[0].step_spread)


def test_a_strategy_row_has_figures_relative_to_the_first_strategy() -> None:
    row = row_of("fsdp", 2)
    assert row.versus_first == 0.75
    assert math.isnan(row.efficiency)
    assert row.step_spread == pytest.approx(4 / 133.3)
    assert (row.exposed_ms, row.exposed_share) == (30.0, 0.3)
    assert row.training_bytes == 500_000_000
    assert [op.op for op in row.operations] == ["all_gather_into_tensor", "reduce_scatter_tensor"]
    gathered, scattered = row.operations
    # 80 calls of 160 MB together on 2 ranks in 10 steps are 4 calls and 8 MB per rank and step.
    assert (gathered.calls, gathered.size_bytes) == (4.0, 8_000_000)
    assert gathered.phase == "forward + backward"
    assert gathered.overlapped == 0.75
    assert math.isnan(scattered.overlapped)


def test_a_world_size_without_the_first_strategy_has_no_comparison() -> None:
    alone = [results()[1], results()[0]]
    (row,) = (row for row in strategy_rows(alone) if row.world_size == 1)
    assert math.isnan(row.versus_first)


def test_collective_rows_of_one_operation_are_added_up() -> None:
    kinds = (collective(), collective(group="7"))
    times = (TimeInFlight("all_reduce", 1.0),)
    result = run_result(
        world(2, collectives=kinds, times_in_flight=times), context=context(strategy="ddp")
    )
    ((operation,),) = (row.operations for row in strategy_rows([result]))
    assert (operation.calls, operation.size_bytes) == (2.0, 8_000_000)
    assert (operation.in_flight_ms, operation.exposed_ms) == (1.0, 11.0)
    # The overlap is never negative, although more time was exposed than in flight.
    assert operation.overlapped == 0.0


def rendered() -> str:
    found = results()
    places = [Path("run/ddp"), Path("run/fsdp")]
    return render(dict(zip(places, found, strict=True)), strategy_rows(found), 100)


def test_the_strategies_table_equals_the_golden_file() -> None:
    # ``python -m tests.unit.analysis.test_strategies`` prints the text for the golden file.
    assert rendered() == GOLDEN.read_text()


def test_remarks_are_shown_with_the_strategy_s_name() -> None:
    ddp, fsdp = results()
    remark = "More threads than cores at 2 ranks."
    found = [ddp, replace(fsdp, remarks=(remark,))]
    places = [Path("run/ddp"), Path("run/fsdp")]
    text = render(dict(zip(places, found, strict=True)), strategy_rows(found), 100)
    assert f"* fsdp: {remark}\n" in text
    assert f"ddp: {remark}" not in text


def test_the_setup_counts_cores_and_not_hardware_threads() -> None:
    machine = {"usable_cpu_count": 8, "usable_core_count": 4, "cpu_model": "x"}
    assert setup_text(context(machine=machine)).endswith("4 usable cores (x)")


def test_the_setup_names_settings_that_are_not_default() -> None:
    assert setup_text(context()).startswith("weak scaling, backend gloo")
    assert setup_text(context(strategy="ddp", training={})) == setup_text(context())
    chosen = {"accumulate": 4, "checkpoint_activations": True}
    text = setup_text(context(strategy="fsdp", training=chosen))
    assert text.startswith("weak scaling, strategy fsdp, accumulate 4, checkpoint activations, ")


def test_the_strategies_json_matches_its_schema() -> None:
    found = results()
    document = json.loads(
        render_strategies(found, strategy_rows(found), [None, None], [None, None])
    )
    assert document.keys() == {"schema_version", "strategies", "results"}
    assert [run["context"]["strategy"] for run in document["results"]] == ["ddp", "fsdp"]
    rows = document["strategies"]
    assert rows[2]["operations"][0]["overlapped"] == 0.75
    assert rows[2]["operations"][1]["overlapped"] is None
    names = {name for row in rows for name in row}
    names |= {name for row in rows for operation in row["operations"] for name in operation}
    described = json.loads(SCHEMA_FILE.read_text())["$defs"]["strategies"]["properties"]
    assert described.keys() == document.keys()
    row = described["strategies"]["items"]["properties"]
    assert row.keys() | row["operations"]["items"]["properties"].keys() == names


if __name__ == "__main__":
    print(rendered(), end="")
