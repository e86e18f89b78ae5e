"""Each job of benchmarks/causes is of a cause of the catalogue, and runs by its name."""

from __future__ import annotations

import ast

import pytest

from benchmarks.causes.catalogue import JOBS, JOBS_FOLDER, OPTIONS, demands, error, noise
from commprof.analysis.causes.registry import CAUSES

#: Causes that need a device, several hosts or a network that carries two calls at once.
WITHOUT_A_JOB = {"host-tensors", "slow-interface", "fsdp-shared-group"}


def test_every_job_has_its_script_and_its_twin() -> None:
    scripts = {path.stem for path in JOBS_FOLDER.glob("*.py")} - {"common"}
    assert scripts == set(JOBS)
    for job in JOBS:
        names = ast.walk(ast.parse((JOBS_FOLDER / f"{job}.py").read_text()))
        assert any(isinstance(node, ast.Attribute) and node.attr == "FIXED" for node in names), job
    assert set(OPTIONS) <= set(JOBS)


def test_every_cause_has_a_job_where_two_ranks_of_one_host_can_show_it() -> None:
    assert set(JOBS.values()) == {cause.id for cause in CAUSES} - WITHOUT_A_JOB
    assert len(JOBS) >= 40


def test_an_error_counts_beyond_the_noise_of_repetitions() -> None:
    row = {
        "cause": "late-loading",
        "first": ["late-loading", ""],
        "twin": [[], []],
        "steps_ms": [98.0, 102.0],
        "twin_steps_ms": [80.0, 80.0],
        "said": [0.24, 0.26],
    }
    assert error(row) == pytest.approx(5.0)
    assert noise(row) == pytest.approx(2.0)  # both means differ from the true ones by chance
    said = [(demand.figure, demand.met) for demand in demands([row])]
    assert said == [
        ("0.50", False),
        ("1.00", True),
        ("3.00 % of the step", False),
        ("2.00 % of the step", True),
    ]
