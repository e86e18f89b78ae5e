from __future__ import annotations

import pytest

from commprof.errors import UsageError
from commprof.workloads.models.timed import Timed, TimedOptions
from commprof.workloads.models.transformer import Transformer, TransformerOptions
from commprof.workloads.spec import WORKLOAD_NAMES, Workload, parse_spec
from tests.support.machines.programs.programs import needs

LIBRARIES = {"lora": ("peft", "transformers")}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=needs(*LIBRARIES.get(n, ()))) for n in WORKLOAD_NAMES],
)
def test_a_bare_name_gives_the_workload_with_its_defaults(name: str) -> None:
    workload = parse_spec(name)

    assert workload.name == name
    assert workload.parameter_count > 0
    assert workload.describe().startswith(f"{name}: ")


def test_workload_options_are_parsed_by_their_types() -> None:
    workload: Workload = parse_spec("transformer:vocab=4096, learning_rate=1e-3")

    assert isinstance(workload, Transformer)
    assert workload.options == TransformerOptions(vocab=4096, learning_rate=1e-3)


def test_slashes_separate_per_layer_values() -> None:
    workload = parse_spec("timed:layers=4,backward_ms=10/0/5/5,gradient_mb=25/0/0/0,data_ms=0")

    assert isinstance(workload, Timed)
    assert workload.options == TimedOptions(
        layers=4, backward_ms=(10, 0, 5, 5), gradient_mb=(25, 0, 0, 0), data_ms=0
    )


def test_a_single_value_applies_to_each_layer() -> None:
    workload = parse_spec("timed:layers=3,gradient_mb=2")

    assert isinstance(workload, Timed)
    assert workload.options.gradient_counts == (500_000, 500_000, 500_000)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "transfomer",
            r"'transfomer' \(allowed: lora, .*, transformer\); did you mean 'transformer'",
        ),
        ("", r"unknown workload '' \(allowed: lora, .*, transformer\)$"),
        ("timed:layer=3", r"unknown option 'layer' \(allowed: .*late_every\); .* 'layers'"),
        ("timed:layers", r"'layers' is not key=value"),
        ("timed:layers=2,layers=3", r"'layers' is given twice"),
        ("timed:layers=2.5", r"layers='2.5' is not a whole number \(allowed: 1 or more\)"),
        ("timed:layers=0", r"layers=0 is out of range \(allowed: a whole number, 1 or more\)"),
        ("timed:data_ms=-1", r"data_ms=-1 is out of range \(allowed: a number, 0 or more\)"),
        ("timed:data_ms=nan", r"data_ms=nan is out of range"),
        ("timed:data_ms=inf", r"data_ms=inf is out of range"),
        ("timed:late_rank=-2", r"late_rank=-2 is out of range \(allowed: .*, -1 or more\)"),
        ("timed:late_phase=other", r"'other' .*\(allowed: data, .*, optimizer, pause\)"),
        ("timed:layers=2,backward_ms=1/x", r"backward_ms='x' is not a number"),
        ("timed:layers=2,backward_ms=1/2/3", r"has 3 values for layers=2"),
        ("timed:gradient_mb=0", "gradient_mb is 0 for every layer"),
        ("transformer:heads=3", r"heads=3 does not divide d_model=256"),
    ],
)
def test_an_unusable_spec_names_the_value_and_what_is_allowed(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_spec(spec)
