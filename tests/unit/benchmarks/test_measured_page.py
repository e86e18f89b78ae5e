from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import strategies
from benchmarks.judging import results_file
from benchmarks.judging.demands import Demand
from benchmarks.judging.results_file import Lines
from benchmarks.strategies import COMMANDS, RESULT, context_of, shown
from tools.make_measured import NOT_YET, PAGE, RESULTS, STUDIES, _alike, _row_of, page


def verdicts(text: str, title: str) -> list[str]:
    """A row of met demands counts as often as the number in its cell says."""
    after = text.split(f"\n| **{title}** (")[1].split("\n\n")[0].splitlines()[1:]
    found: list[str] = []
    for row in after:
        missed = row.startswith("| **NOT met**: ")
        if row.startswith("| **") and not missed:
            break
        found += ["NOT met" if missed else "met"] * int(row.split(" | ")[1] or 0)
    return found


def hang(seed: int, right: bool = True) -> dict[str, Any]:
    return {"seed": seed, "right": right, "beyond_threshold_s": 0.5, "has_stacks": True}


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path.parent


def test_the_measured_page_is_generated_from_the_committed_results() -> None:
    assert PAGE.read_text() == page(RESULTS), "run `python -m tools.make_measured`"


def test_every_results_file_belongs_to_a_study() -> None:
    kept = {path.relative_to(RESULTS).with_suffix("") for path in RESULTS.rglob("*.json*")}
    assert kept <= {Path(study.file).with_suffix("") for study in STUDIES}


def test_every_study_command_names_an_existing_script() -> None:
    for study in STUDIES:
        script = study.command.split()[0]
        assert (RESULTS.parent / script).exists(), study.command


def test_studies_without_a_results_file_are_shown_as_not_measured(tmp_path: Path) -> None:
    text = page(tmp_path)
    rows = re.findall(rf"^\| .* \|  \| {NOT_YET} \|  \|$", text, re.MULTILINE)
    assert len(rows) == sum(len(study.asked) for study in STUDIES)
    assert f"Of 0 demands on measured figures, 0 are met; {len(rows)} lines are {NOT_YET}." in text


def test_missed_demands_are_marked_on_the_page(tmp_path: Path) -> None:
    rows = [hang(seed, right=seed != 7) for seed in range(20)]
    text = page(written(tmp_path / "hangs.jsonl", rows))
    assert verdicts(text, "Ranks that hang") == ["NOT met", "NOT met", "met"]
    missed = "| **NOT met**: the hanging rank named, and no other | 1 | 19 of 20 | 20 of 20 |"
    assert missed in text
    assert "**Ranks that hang** (`attribution/hangs.py`) |" in text


def test_too_few_hang_runs_meet_no_demand(tmp_path: Path) -> None:
    text = page(written(tmp_path / "hangs.jsonl", [hang(seed) for seed in range(19)]))
    assert verdicts(text, "Ranks that hang") == ["NOT met"] * 3


def test_the_page_shows_day_and_machine_of_a_measurement(tmp_path: Path) -> None:
    path = tmp_path / "hangs.jsonl"
    kept = Lines(path)
    for seed in range(20):
        kept.append(hang(seed))
    lines = path.read_text().splitlines()
    # The first line is the context of the session.
    assert len(lines) == 21
    about = json.loads(lines[0])["context"]
    text = page(tmp_path)
    assert f"**Ranks that hang** (`attribution/hangs.py`, {about['timestamp'][:10]}) |" in text
    machine = about["machine"]
    assert f"on {machine['usable_cpu_count']} cores ({machine['cpu_model']}).\n" in text


def test_a_late_rank_stopped_by_its_host_counts_as_found(tmp_path: Path) -> None:
    late = [
        {"seed": i, "late": True, "rank": 1, "phase": "pause", "named": 1, "named_phase": phase}
        for i, phase in enumerate(["host pause"] * 48 + ["data"] * 2)
    ]
    clean = [{"seed": i, "late": False} for i in range(50)]
    clean[0] |= {"named": 0, "named_phase": "data"}
    text = page(written(tmp_path / "late_rank.jsonl", [*late, *clean]))
    title = "50 seeded runs with a late rank, and 50 runs without a late rank"
    assert verdicts(text, title) == ["met", "met", "met"]
    late[0]["named_phase"] = "data"
    text = page(written(tmp_path / "late_rank.jsonl", [*late, *clean]))
    assert verdicts(text, title) == ["met", "NOT met", "met"]


def test_pytorchs_ddp_tests_must_end_the_same_with_and_without_capture(tmp_path: Path) -> None:
    counts = {"listed": 3, "run": 3, "passed_without": 2, "passed_with": 2, "different": {}}
    path = tmp_path / "torch_ddp_tests.json"
    path.write_text(json.dumps({"modules": {"torch.x": counts}}))
    assert "(2 pass without, 2 with) | 1 | 3 of 3 | 3 of 3 |" in page(tmp_path)
    counts |= {"passed_with": 1, "different": {"test_y": ["passed", "failed"]}}
    path.write_text(json.dumps({"modules": {"torch.x": counts}}))
    assert verdicts(page(tmp_path), "PyTorch's own DDP tests") == ["NOT met"]


def test_a_fault_row_is_met_only_if_all_tries_pass_in_all_respects(tmp_path: Path) -> None:
    rows = {
        "SIGKILL": {"tries": 10, "yes": [10, 10, 10]},
        "full disk": {"tries": 10, "yes": [10, 9, 10]},
    }
    (tmp_path / "faults.json").write_text(json.dumps(rows))
    shown = page(tmp_path)
    # The other faults were not tried, nor was any fault with watchers.
    assert verdicts(shown, "The fault matrix") == ["met", "NOT met", "NOT met", "NOT met"]
    assert "| 1 | 10, 9 and 10 of 10 | all |" in shown
    assert "rows tried | 1 | 2 of " in shown


def test_the_trials_of_the_committed_file_are_all_counted(tmp_path: Path) -> None:
    (tmp_path / "predictions").mkdir()
    shutil.copy(RESULTS / "predictions/trial_truth.jsonl", tmp_path / "predictions")
    assert page(tmp_path).count("| 1 | 20 of 20 | 20 of 20 |") == 2


def test_merged_rows_of_the_page_still_count_every_demand() -> None:
    text = PAGE.read_text()
    for study in STUDIES:
        for path in RESULTS.glob(f"{Path(study.file).with_suffix('')}.*"):
            judged = sorted("met" if one.met else "NOT met" for one in study.judge(path))
            assert sorted(verdicts(text, study.title)) == judged


def demand(what: str, figure: str, asked: str = "at least 2x", met: bool = True) -> Demand:
    return Demand(what, figure, asked, met)


@pytest.mark.parametrize(
    ("demands", "row"),
    [
        ([demand("sum of 4 MB", "3.00x [2, 4]")], "| sum of 4 MB | 1 | 3.00x | at least 2x |"),
        (
            [demand("sum of 4 MB", "3.5x"), demand("sum of 25 MB", "21x [9, 30]")],
            "| sum of ... MB | 2 | 3.5x to 21x | at least 2x |",
        ),
        (
            [demand("sum, 4 ranks", "1,000 B"), demand("sum, 8 ranks", "-2 B")],
            "| sum, ... ranks | 2 | -2 B to 1,000 B | at least 2x |",
        ),
        (
            [demand("a fault: named", "yes", "all"), demand("b fault: named", "all", "all")],
            "| ... fault: named | 2 |  | all |",
        ),
        ([demand("sum", "1x [0, 2]", met=False)], "| **NOT met**: sum | 1 | 1x [0, 2] | at least"),
    ],
)
def test_similar_demands_share_a_row(demands: list[Demand], row: str) -> None:
    (alike,) = _alike(demands)
    assert _row_of(alike).startswith(row)


@pytest.mark.parametrize(
    "other",
    [
        demand("sum of 4 MB", "3x", "at least 3x"),
        demand("sum of 4 MB", "1x", met=False),
        demand("time to the first byte", "3x"),
    ],
)
def test_dissimilar_demands_have_separate_rows(other: Demand) -> None:
    assert len(_alike([demand("sum of 4 MB", "3x"), other])) == 2


def test_the_strategies_page_shows_the_committed_results() -> None:
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


def test_the_context_of_figures_names_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"git_commit": "0123456789", "timestamp": "now", "machine": {"cpu_model": "x"}}
    monkeypatch.setattr(results_file, "about", lambda: here)
    run = {"timestamp": "then", "backend": "gloo", "threads_per_rank": 1, "description": "mlp"}
    assert context_of({**run, "machine": {"hostname": "a"}}) == {**here, **run}


def test_compressed_files_of_results_are_read_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_file, "about", lambda: {"timestamp": "now"})
    rows, parts = tmp_path / "rows.jsonl.gz", tmp_path / "parts.json.gz"
    for _ in range(2):
        lines = Lines(rows)
        lines.append({"a": 1})
        lines.append({"a": 2})
    results_file.write_part(parts, "sum", {"ms": [1.5, 2.5]})
    results_file.write_part(parts, "mean", {"ms": [3.5]})
    assert results_file.read_rows(rows) == [{"a": 1}, {"a": 2}] * 2
    assert len(results_file.contexts(rows)) == 2
    assert results_file.read_parts(parts) == {"sum": {"ms": [1.5, 2.5]}, "mean": {"ms": [3.5]}}
    assert {path.read_bytes()[:2] for path in (rows, parts)} == {b"\x1f\x8b"}


def test_strategies_with_a_missing_library_end_before_overwriting_results(
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
