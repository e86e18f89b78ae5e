"""The table of strategies in docs/measured.md is that of the committed results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import strategies
from benchmarks.judging import results_file
from benchmarks.strategies import COMMANDS, RESULT, context_of, shown
from tools.make_measured import PAGE


def test_the_page_shows_the_committed_results() -> None:
    results = json.loads(RESULT.read_text())
    assert results.keys() == COMMANDS.keys()
    for result in results.values():
        shown = {(row["strategy"], row["world_size"]) for row in result["rows"]}
        assert shown == {(name, size) for name in ("ddp", "fsdp") for size in (1, 2, 4)}
    page = PAGE.read_text()
    for name, result in results.items():
        for row in result["rows"]:
            cells = f"| {name} | {row['world_size']} | {row['strategy']} | "
            assert f"{cells}{row['samples_per_s']:.1f} | {row['versus_first']:.2f}x |" in page


def test_the_tables_of_every_workload_are_printed() -> None:
    text = shown(json.loads(RESULT.read_text()))
    for workload, parameters in (("transformer", "2,137,600"), ("resnet50", "23,528,522")):
        assert f"{workload}: {parameters} parameters" in text
    assert text.count("all_gather_into_tensor") == 6


def test_figures_say_from_which_commit_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"git_commit": "0123456789", "timestamp": "now", "machine": {"cpu_model": "x"}}
    monkeypatch.setattr(results_file, "about", lambda: here)
    run = {"timestamp": "then", "backend": "gloo", "threads_per_rank": 1, "description": "mlp"}
    assert context_of({**run, "machine": {"hostname": "a"}}) == {**here, **run}


def test_a_library_that_is_missing_ends_it_before_anything_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "strategies.json"
    kept.write_text("{}")
    monkeypatch.setattr(strategies, "RESULT", kept)
    monkeypatch.setattr(strategies, "NEEDS", {"lora": ("json", "no_such_library")})
    monkeypatch.setattr(strategies, "measure", lambda name: pytest.fail(f"{name} was run"))
    monkeypatch.setattr(sys, "argv", ["strategies.py", "--fresh"])
    with pytest.raises(SystemExit, match=r"no_such_library.*pip install 'commprof\[lora\]'"):
        strategies.main()
    assert kept.read_text() == "{}"
