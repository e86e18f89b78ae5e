from __future__ import annotations

import dataclasses
import json
import math
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.predicted import read_predictions
from commprof.analysis.sweeps.sweep_file import read_sweep, render
from commprof.errors import CommprofError, TraceError
from commprof.forecast.costs.cost_model import SAME_HOST, HeldOut
from commprof.forecast.costs.hook_costs import HookFigures
from commprof.forecast.costs.machine_profile import (
    LinkProfile,
    MachineProfile,
    load_profile,
    save_profile,
)
from commprof.forecast.fit.points import read_points
from commprof.trace.reader import read_trace
from commprof.trace.run.run_directory import read_result
from tests.support.builders import trace_bytes as made
from tests.support.builders.run_directories import answer, write_predictions
from tests.support.builders.schedules import curve, hook
from tests.support.builders.sweeps import row, sweep_result

WRONG: tuple[Any, ...] = ("2", "", [], {}, [1], None, True, -1, 1.5, 10**400, math.inf, math.nan)
ACCOUNT = {
    "step_ns": [10, 20],
    "step_samples": [4, 4],
    "losses": [0.5, 0.25],
    "average_loss": 0.4,
    "overhead": [["on", 5]],
    "record_cost_ns": 12.5,
    "expected": [{"op": "all_reduce"}],
    "memory": {"peak": 1},
}


def machine_profile(path: Path) -> Any:
    figures = HookFigures((1e-4, 1e-9), (0.0, 1e-9), (0.0, 1e-9), 1e-3)
    costs = hook(low=figures, high=figures, replicates=(figures,))
    fitted = dataclasses.replace(
        curve(), held_out_size=HeldOut(0.1, 0.2, 3), replicates=(((1e-5, 1e-9),),)
    )
    links = {SAME_HOST: LinkProfile({"all_reduce": fitted})}
    save_profile(MachineProfile(links, {"fp16": costs}), path)
    return json.loads(path.read_text())


def sweep(_: Path) -> Any:
    return json.loads(render(sweep_result(row(), row())))


def predictions(path: Path) -> Any:
    return json.loads(write_predictions(path, answer(16, 1000.0), answer(4, 400.0)).read_text())


def of_trace(path: Path) -> object:
    path.write_bytes(
        made.file_header() + made.document(made.METADATA_BLOCK, json.loads(path.read_text()))
    )
    return read_trace(path)


DOCUMENTS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], object]]] = {
    "machine profile": (machine_profile, load_profile),
    "sweep": (sweep, read_sweep),
    "points of a sweep": (sweep, read_points),
    "account of a rank": (lambda _: ACCOUNT, read_result),
    "predictions": (predictions, read_predictions),
    "metadata of a trace": (lambda _: made.metadata(), of_trace),
}


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


def read_damaged(read: Callable[[Path], object], path: Path, document: Any) -> str:
    path.write_text(json.dumps(document))
    try:
        read(path)
    except (CommprofError, TraceError) as error:
        return str(error)
    except ValueError as error:
        assert read is read_result  # Callers of read_result expect a ValueError.
        return str(error)
    return ""


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_damaged_documents_raise_an_error_that_names_the_file(kind: str, tmp_path: Path) -> None:
    make, read = DOCUMENTS[kind]
    path = tmp_path / "document.json"
    whole = json.dumps(make(path))
    assert read_damaged(read, path, json.loads(whole)) == ""
    generator = random.Random(1)
    complaints = 0
    for number in range(len(list(places(json.loads(whole))))):
        for wrong in generator.sample(WRONG, 4):
            document = json.loads(whole)
            inside, key = list(places(document))[number]
            inside[key] = wrong
            complaint = read_damaged(read, path, document)
            complaints += bool(complaint)
            if complaint and isinstance(key, str):
                assert path.name in complaint
        document = json.loads(whole)
        inside, key = list(places(document))[number]
        del inside[key]
        complaint = read_damaged(read, path, document)
        assert path.name in complaint or not complaint
    assert complaints > 10


@pytest.mark.parametrize(
    ("kind", "where", "wrong", "said"),
    [
        ("points of a sweep", ("rows", 0, "world_size"), "2", "not a whole number .*: '2'"),
        ("sweep", ("rows", 1, "time_us"), [1], r"rows\[1\].time_us is not a number: \[1\]"),
        ("sweep", ("rows", 0, "op"), 5, r"rows\[0\].key.op is not a string: 5"),
        ("machine profile", ("links",), [], r"links is not an object: \[\]"),
        ("machine profile", ("hooks", "fp16", "ranks"), "two", "hooks.fp16.ranks is not a whole"),
        ("machine profile", ("hooks", "fp16", "encode"), [1], "encode has 1 items, not 2"),
        (
            "predictions",
            ("answers", 1, "interval_s", "low"),
            "a",
            r"answers\[1\].interval_s.low is not a number: 'a'",
        ),
        ("account of a rank", ("losses", 1), "nan", r"losses\[1\] is not a number: 'nan'"),
        ("metadata of a trace", ("clock", "source"), 1, "clock.source is not a string: 1"),
    ],
)
def test_a_wrong_value_in_a_document_is_named_with_its_key(
    kind: str, where: tuple[Any, ...], wrong: Any, said: str, tmp_path: Path
) -> None:
    make, read = DOCUMENTS[kind]
    document = json.loads(json.dumps(make(tmp_path / "a.json")))
    inside = document
    for key in where[:-1]:
        inside = inside[key]
    inside[where[-1]] = wrong
    assert re.search(said, read_damaged(read, tmp_path / "a.json", document))


def test_a_machine_profile_is_unchanged_by_loading_and_saving(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    machine_profile(path)
    again = tmp_path / "b.json"
    save_profile(load_profile(path), again)
    assert again.read_text() == path.read_text()
