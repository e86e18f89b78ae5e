from __future__ import annotations

import ast
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.causes import catalogue
from benchmarks.causes.catalogue import JOBS, JOBS_FOLDER, OPTIONS, demands, error, noise, won
from benchmarks.causes.jobs import common
from commprof.analysis.causes.registry import CAUSES

#: These causes need a device, several hosts, or a network that carries two calls at once.
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
    # Each of the two means differs from the true mean by chance.
    assert noise(row) == pytest.approx(2.0)
    said = [(demand.figure, demand.met) for demand in demands([row])]
    assert said == [
        ("0.50", False),
        ("1.00", True),
        ("3.00 % of the step", False),
        ("2.00 % of the step", True),
    ]


def test_pairs_of_turns_give_the_gain_and_its_noise() -> None:
    pairs = [[100.0, 80.0], [100.0, 70.0], [200.0, 160.0], [200.0, 140.0]]
    row = {"steps_ms": [1.0], "twin_steps_ms": [9.0], "said": [0.2], "turns_ms": pairs}
    assert won(row) == pytest.approx(0.25)
    assert error(row) == pytest.approx(5.0)
    # The twin's steps differ from 75 % of the job's steps by 5, 5, 10 and 10 ms.
    assert noise(row) == pytest.approx(100 * (250 / 3) ** 0.5 / 4**0.5 / 150)


def test_a_job_stands_still_until_its_turn_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begins, took = (
        [catalogue._pipe(tmp_path / f"{name}_{rank}") for rank in range(2)]
        for name in ("begins", "took")
    )
    monkeypatch.setattr(common, "TURNS", str(tmp_path))
    monkeypatch.setattr(common, "TURN_STEPS", 3)
    monkeypatch.setattr(common, "STEPS", 6)
    monkeypatch.setattr(catalogue, "_TURN_STEPS", 3)
    done: list[list[int]] = [[], []]

    def train(rank: int) -> None:
        for step in common.steps(rank):
            time.sleep(0.01)
            done[rank].append(step)

    threads = [threading.Thread(target=train, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    process: Any = SimpleNamespace(args=[])
    assert done == [[], []]
    for last in (2, 5):
        assert catalogue._turn_ms(process, begins, took) >= 10.0
        assert [steps[-1] for steps in done] == [last, last]
    assert all(thread.is_alive() for thread in threads)
    for pipe in begins:
        os.write(pipe, b"e")
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    for pipe in (*begins, *took):
        os.close(pipe)
