from __future__ import annotations

import csv
import dataclasses
import enum
import io
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commprof.analysis.card import CardLink, card
from commprof.analysis.checks.figure_checks import CrossCheck
from commprof.analysis.checks.losses import LossAgreement
from commprof.analysis.collectives.apart import TrainedApart
from commprof.analysis.collectives.devices import DeviceTelemetry, KernelTimes
from commprof.analysis.collectives.host_links import HostLinks
from commprof.analysis.collectives.in_flight import TimeInFlight
from commprof.analysis.collectives.kinds import SteplessCollectives
from commprof.analysis.collectives.nccl import (
    NcclKind,
    NcclLink,
    NcclRow,
    NcclTimes,
    NcclWorld,
    Split,
    WaitsCompared,
)
from commprof.analysis.collectives.sharding import FORWARD, ShardedPart, Sharding
from commprof.analysis.cost import Price, cost
from commprof.analysis.exchange import SmallCalls
from commprof.analysis.late.attempts import Attempt
from commprof.analysis.late.costs import LongerPhase, WaitCost
from commprof.analysis.late.functions import GrownFunction, GrownFunctions
from commprof.analysis.late.incidents import Incidents
from commprof.analysis.late.lines import LongerLines
from commprof.analysis.late.slower_ranks import SlowerRanks
from commprof.analysis.late.stragglers import LateRank
from commprof.analysis.named_cause import NamedCause, Saving
from commprof.analysis.replay.gains import Gain, Gains
from commprof.analysis.run import analyse_in_detail
from commprof.analysis.verdict import verdict
from commprof.analysis.world import WorldResult
from commprof.errors import UsageError
from commprof.files import plain
from commprof.report.export import as_json
from commprof.report.export.as_json import as_dict, render
from commprof.report.export.rows import CANDIDATES, TABLES, as_csv, as_parquet, rows
from commprof.report.full_report import FullReport
from commprof.stats.intervals import Interval
from tests.support.builders.results import (
    collective,
    compression,
    context,
    detail,
    incidents,
    parts,
    run_result,
    summary,
    with_fields,
    world,
)
from tests.support.builders.run_directories import ranks_of, write_run

CAUSE = NamedCause(
    id="ddp-buffers",
    title="A title",
    sentence="A sentence.",
    line="train.py:3 f",
    fix="a = 1",
    share=0.2,
    saving=Saving(Interval(0.1, 0.05, 0.15), "replayed"),
    source="https://example.org/1",
    is_wrong=False,
)


def test_the_json_has_the_values_of_the_result() -> None:
    document = full_run()
    assert document["timestamp"] == "2026-11-01T12:00:00+00:00"
    assert document["context"] == context()
    assert [run["num_processes"] for run in document["runs"]] == [1, 2]
    metrics = document["runs"][1]["aggregated_metrics"]
    assert metrics["samples_per_sec"] == 200.0
    assert (metrics["speedup"], metrics["efficiency"]) == (2.0, 1.0)
    assert (metrics["measured_steps"], metrics["warmup_steps"]) == (10, 2)
    assert metrics["step_quartiles_ms"] == [98.0, 102.0]
    assert metrics["total_duration_sec"] == 1.0
    ranks = document["runs"][1]["rank_results"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert ranks[1]["avg_loss"] == 2.5
    assert ranks[1]["final_loss"] == 2.25
    assert ranks[1]["samples_per_sec"] == 100.0
    assert document["failures"] == [{"num_processes": 4, "reason": "rank 1 failed"}]
    assert document["remarks"] == ["a remark"]
    part = metrics["parts"]
    names = ("data_ms", "forward_ms", "backward_ms", "exposed_ms", "optimizer_ms", "other_ms")
    assert sum(part[name] for name in names) == part["step_ms"]
    assert part["wait_ms"] + part["transfer_ms"] == part["exposed_ms"]


@pytest.mark.parametrize("missing", [math.nan, math.inf, -math.inf])
def test_figures_that_are_not_finite_are_null(missing: float) -> None:
    unknown = world(
        1,
        clock_error_us=missing,
        average_loss=missing,
        step_quartiles_ms=(missing, 1.0),
        overhead=None,
    )
    unknown = dataclasses.replace(unknown, parts=parts(wait_ms=missing))
    document = json.loads(render(run_result(unknown, overhead=None)))
    metrics = document["runs"][0]["aggregated_metrics"]
    assert metrics["avg_loss"] is metrics["clock_error_us"] is None
    assert metrics["step_quartiles_ms"] == [None, 1.0]
    assert metrics["parts"]["wait_ms"] is None
    assert metrics["overhead"] is metrics["late_rank"] is document["overhead"] is None


def test_the_json_of_an_empty_run_has_empty_lists() -> None:
    document = json.loads(render(run_result()))
    assert document["runs"] == document["failures"] == document["remarks"] == []


def test_the_json_text_is_ascii_and_equals_the_document() -> None:
    result = run_result(world(1), remarks=("µ \x1b[2J \udc80",))
    text = render(result)
    assert text.isascii()
    assert text.endswith("}\n")
    assert json.loads(text) == as_dict(result)


SCHEMA: dict[str, Any] = json.loads(as_json.SCHEMA_FILE.read_text())
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    target = schema.get("$ref")
    if target is None:
        return schema
    return SCHEMA if target == "#" else SCHEMA["$defs"][target.removeprefix("#/$defs/")]


def complaints(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    schema = resolved(schema)
    if "anyOf" in schema:
        ways = [list(complaints(value, way, path)) for way in schema["anyOf"]]
        yield from [] if [] in ways else ways[0]
        return
    if "const" in schema:
        yield from [] if value == schema["const"] else [f"{path} is {value!r}"]
        return
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    allowed = tuple(one for name in names for one in _TYPES[name])
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        yield f"{path} is {value!r}, not {names}"
    elif isinstance(value, list):
        for item in value:
            yield from complaints(item, schema["items"], f"{path}[]")
    elif isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        yield from (f"{path}.{key} is not described" for key in value.keys() - known.keys())
        yield from (f"{path}.{key} is missing" for key in set(schema["required"]) - value.keys())
        for key in value.keys() & known.keys():
            yield from complaints(value[key], known[key], f"{path}.{key}")


def descriptions(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {}).items()
        for inner in schema.values():
            yield from descriptions(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from descriptions(inner)


def test_a_document_with_every_field_matches_the_schema() -> None:
    assert list(complaints(full_run(), SCHEMA)) == []
    required = set(SCHEMA["required"]) | {"verdict", "card"}
    assert required == full_run().keys()


def test_a_cost_with_unknown_nodes_matches_the_schema() -> None:
    result = run_result(world(4, missing_ranks=(3,)))
    unknown = cost(result.worlds, [detail(4)], Price(3.6, "node"))
    document = json.loads(render(result, cost=unknown))
    assert document["cost"]["rows"][0]["billed"] is None
    assert [each for each in complaints(document, SCHEMA) if ".cost" in each] == []


def without_value(value: Any, path: str = "") -> Iterator[str]:
    if value is None or value == []:
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from without_value(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from without_value(inner, f"{path}[]")


def test_every_field_of_the_full_document_has_a_value() -> None:
    assert list(without_value(full_run())) == []


def test_every_field_of_the_schema_has_a_description() -> None:
    for name, one in descriptions(SCHEMA):
        assert one.get("description") or resolved(one).get("description"), name


def test_descriptions_of_the_schema_say_what_the_fields_hold() -> None:
    for name, one in descriptions(SCHEMA):
        if name in ("world_size", "num_processes"):
            assert one["description"].startswith("World size"), one
    parts = SCHEMA["$defs"]["collective"]["properties"]
    ends = [parts[name]["description"] for name in ("wait", "transfer")]
    assert ends == [
        "From the start to the last needed rank's start.",
        "From the last needed rank's start to completion.",
    ]


def test_every_definition_of_the_schema_is_used() -> None:
    text = as_json.SCHEMA_FILE.read_text()
    for name in SCHEMA["$defs"]:
        assert name == "strategies" or f'"#/$defs/{name}"' in text, name
    assert SCHEMA["properties"]["schema_version"]["const"] == as_json.SCHEMA_VERSION


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"remarks": [1]}, ".remarks[] is 1, not ['string']"),
        ({"surplus": 1}, ".surplus is not described"),
        ({"schema_version": 1}, ".schema_version is 1"),
    ],
)
def test_the_schema_check_finds_documents_that_differ(change: dict[str, Any], said: str) -> None:
    assert list(complaints(full_run() | change, SCHEMA)) == [said]


def with_devices(result: WorldResult) -> WorldResult:
    limited = {"power": 0.25, "temperature": 0.0, "hardware": 0.0}
    device = DeviceTelemetry(20, 97.0, 1800.0, 1200.0, 350.0, 40e9, limited)
    kernels = KernelTimes(5.0, 7.0, 10.0, 2.0, 4.0, 1.0, 0.0, 0.5)
    of_other = {"unphased_compute_ms": 3.0, "copies_ms": 0.5, "idle_ms": 1.5}
    ranks = tuple(
        dataclasses.replace(
            r,
            device=device,
            kernels=kernels,
            device_peak_bytes=30e9,
            parts=dataclasses.replace(r.parts, **of_other),
        )
        for r in result.ranks
    )
    parts = dataclasses.replace(result.parts, **of_other)
    return with_fields(result, ranks=ranks, parts=parts, device_clock_error_us=2.0)


def changed() -> Incidents:
    found = incidents()
    ((time, change),) = found.anomalies
    return dataclasses.replace(
        found, anomalies=((time, dataclasses.replace(change, last_step=150, ranks=(1, 2))),)
    )


def inside_nccl() -> NcclWorld:
    split = Split(3.0, 1.0, 0.5)
    row = NcclRow(
        NcclKind("dp0", 8, "all_reduce", "RING", "SIMPLE", (4, 8), (1024, 2048)),
        *(80, 40, (("backward", 40),), (0, 1), 10),
        NcclTimes(5.0, 0.1, 0.2, 1.0, 1.1, 4.0),
        split,
    )
    link = NcclLink("dp0", "0", "1", 80, 163_840, split, 12.0, 4.0)
    return NcclWorld(8, (row,), (link,), 3, 10, WaitsCompared(10, 0.1, 9))


def full_run() -> dict[str, Any]:
    errors = {"arrival_clock_error_p95_us": 40.0, "arrival_clock_error_us": 90.0}
    late = LateRank(1, 2e6, 0.8, 0.001, 8, 10, 0.02, "data", 0.9, 1.5)
    gain = Gain("phase", 1, "forward", "", 90.0, Interval(0.1, 0.08, 0.12))
    check_ = CrossCheck("phases", "a sum", "ms", 100.0, 101.0, False, "a note")
    same: dict[str, Any] = {
        "late_rank": late,
        "slower": SlowerRanks((1, 2), ("node-1",), "data", 1.5, "median", 2.0, 2, 0.8),
        "stalled_for": {7: 1},
        "wait_costs": (WaitCost(1, "data", 2.0, 0.8),),
        "longer_phase": LongerPhase(1, "backward", 18.0, 16.0, 12.0, 2.0, 3.0, 400.0, 2.0),
        "longer_lines": (LongerLines(1, "backward", 18.0, "", "train.py:7 train", 16.0),),
        "grown_functions": GrownFunctions(1, (GrownFunction("f (a.py:3)", 20.0, 6.0),), 1.0, ""),
        "gains": Gains(100.0, 10, (gain,), 0.9, 0.95, 0.8),
        "sharding": Sharding((ShardedPart(FORWARD, 4.0, 5.5, 2, 2.5, 0.0),), 4),
        "named_causes": (CAUSE,),
        "apart": TrainedApart("groups", ((0, 1), (2,)), 4_000_000, "a sentence", "advice"),
        "stalled_steps": ((7, 25_095.0),),
        "step_losses": (2.5,),
        "weights_differ": (1,),
        "times_in_flight": (TimeInFlight("all_reduce", 12.0),),
        "host_links": HostLinks(
            2, ("eth0",), 6e6, 0.8, 0.25, 240e6, 242e6, "a note", 0.046, ("eth1",)
        ),
        "cross_checks": (check_,),
        "collectives": (collective(callers=(("train.py:7 train", 20),)),),
        "compression": (
            compression(
                relative_error=0.1, cosine=0.9, residual_ratio=0.5, zeroed=0.1, saturated=0.0
            ),
        ),
    }
    worlds = (
        with_devices(world(1, missing_ranks=(0,), problems=("a",), **same)),
        with_devices(world(2, missing_ranks=(1,), problems=("b",), **same)),
    )
    details = [detail(n, step=100 + np.arange(20), epoch_samples=5000) for n in (1, 2)]
    judged = verdict(run_result(*worlds), details)
    said = card(run_result(*worlds), details, judged, Path("RUN"))
    assert said is not None
    small = dataclasses.replace(
        said,
        small_calls=SmallCalls(160.0, 12_500.0, 0.8),
        link=CardLink(("eth0",), 6e6, 0.8, ("eth1",)),
    )
    document: dict[str, Any] = json.loads(
        render(
            run_result(
                *worlds,
                failures=((4, "rank 1 failed"),),
                remarks=("a remark",),
                summaries=(
                    summary(
                        2,
                        problems=("c",),
                        cross_checks=(check_,),
                        apart=same["apart"],
                        **errors,
                    ),
                ),
                loss_agreement=LossAgreement((1, 2), 10, 16, 1e-6, 2, 7, 1e-4),
                incidents=(changed(),),
                stepless=(SteplessCollectives(8, worlds[0].communication.collectives),),
                attempts=(Attempt(4, 0, 4, 12, 3.5, 1.5, "rank 1: its process was killed"),),
                nccl=(inside_nccl(),),
            ),
            cost=cost(worlds, details, Price(3.6, "rank")),
            verdict=judged,
            card=small,
        )
    )
    return document


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> FullReport:
    run = write_run(
        tmp_path_factory.mktemp("run") / "r",
        ranks_of(1, 9),
        ranks_of(2, 9, late_ms=10, group="=HYPERLINK(1)"),
    )
    result, details = analyse_in_detail(run)
    return FullReport(result, details, None, cost(result.worlds, details, Price(3.6, "rank")))


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("table", list(TABLES))
def test_all_rows_of_a_table_have_the_same_columns(report: FullReport, table: str) -> None:
    found = rows(report, table)
    assert found
    assert all(row.keys() == found[0].keys() for row in found)


def test_csv_has_a_row_per_world_size(report: FullReport) -> None:
    first, second = read(as_csv(report, "worlds"))
    assert (first["world_size"], second["world_size"]) == ("1", "2")
    # The measured steps take 101, 102, 103, 100, 101, 102, 103 and 100 ms.
    assert float(second["step_median_ms"]) == 101.5
    assert float(second["mean_step_ms"]) == pytest.approx(101.5)
    assert float(second["samples_per_s"]) == pytest.approx(2 * 10 / 0.1015)
    assert float(second["cost_per_1000_samples"]) == pytest.approx(0.001 * 2 / (20 / 0.1015) * 1000)


def test_csv_rows_per_rank_and_step_add_up(report: FullReport) -> None:
    found = read(as_csv(report, "steps"))
    assert len(found) == 8 + 2 * 8
    for row in found:
        names = ("data", "forward", "backward", "exposed", "optimizer", "other")
        total = sum(float(row[f"{name}_ms"]) for name in names)
        assert total == pytest.approx(float(row["step_ms"]))


def test_csv_escapes_formulas_and_leaves_unknown_values_empty(report: FullReport) -> None:
    found = read(as_csv(report, "collectives"))
    assert {row["group"] for row in found if row["world_size"] == "2"} == {"'=HYPERLINK(1)"}
    assert {row["busbw_gb_per_s"] for row in found if row["world_size"] == "1"} == {""}


def test_csv_has_the_collectives_of_a_run_without_steps(report: FullReport) -> None:
    found = read(as_csv(report, "collectives"))
    assert {row["has_steps"] for row in found} == {"True"}
    kinds = report.result.worlds[1].communication.collectives
    without = dataclasses.replace(
        report.result, worlds=(), stepless=(SteplessCollectives(8, kinds),)
    )
    alone = read(as_csv(dataclasses.replace(report, result=without), "collectives"))
    assert alone == [
        {**row, "world_size": "8", "has_steps": "False"}
        for row in found
        if row["world_size"] == "2"
    ]


def test_rows_of_candidates_are_refused_without_a_trial(report: FullReport) -> None:
    with pytest.raises(
        UsageError, match=r"has none \(allowed: worlds, ranks, steps, collectives\)"
    ):
        rows(report, CANDIDATES)


def test_parquet_without_pyarrow_names_the_extra(
    report: FullReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install pyarrow"):
        as_parquet(report, "worlds")


def test_parquet_holds_the_rows_of_the_report(report: FullReport, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    (tmp_path / "steps.parquet").write_bytes(as_parquet(report, "steps"))
    found = parquet.read_table(tmp_path / "steps.parquet").to_pylist()
    expected = [
        {name: None if isinstance(x, float) and math.isnan(x) else x for name, x in row.items()}
        for row in rows(report, "steps")
    ]
    assert found == expected


class _Level(enum.IntEnum):
    HIGH = 3


_VALUES: list[Any] = [
    *(0, -1, 2**63 - 1, -(2**63), 10**30, True, False, None, _Level.HIGH),
    *(0.0, -0.0, 1.5, 1e22, 1e-7, 1e16, 0.1 + 0.2, 5e-324, math.nan, math.inf, -math.inf),
    *(np.float64(0.25), "", "plain", 'quote " and \\ and /', "\n\r\t\f\b\x00\x1f\x7f"),
    *("é ü", "\u2028", "\U0001f600", "\ud800", [], {}, (), [[]], [{}], {"": []}),
]


def test_values_are_written_as_the_json_module_writes_them() -> None:
    nested = [*_VALUES, {"a": _VALUES, 'é "': {"b": tuple(_VALUES)}}, [[[_VALUES]]]]
    for value in (*nested, {"all": nested}):
        document = {"value": value}
        expected = json.dumps(plain(document), indent=2, allow_nan=False) + "\n"
        assert as_json._text(document) == expected


def test_values_that_are_not_plain_are_left_to_the_json_module() -> None:
    assert json.loads(as_json._text({"numbers": {3: 1, 2.5: [math.nan]}})) == {
        "numbers": {"3": 1, "2.5": [None]}
    }
    with pytest.raises(TypeError):
        as_json._text({"path": Path("x")})
