"""docs/measured.md is what the committed results make; what is missing or missed shows there."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from benchmarks.judging.results_file import Lines
from tools.make_measured import NOT_YET, PAGE, RESULTS, page
from tools.measured_studies import GROUPS

STUDIES = [study for group in GROUPS.values() for study in group]


def section(text: str, title: str) -> str:
    return text.split(f"\n### {title}\n")[1].split("\n#")[0]


def verdicts(text: str) -> list[str]:
    rows = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)[1:]
    return [row.strip("*") for row in rows]


def hang(seed: int, right: bool = True) -> dict[str, Any]:
    return {"seed": seed, "right": right, "beyond_threshold_s": 0.5, "has_stacks": True}


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path.parent


def test_the_page_is_what_the_committed_results_make() -> None:
    assert PAGE.read_text() == page(RESULTS), "run `python -m tools.make_measured`"


def test_every_file_of_results_is_shown() -> None:
    assert {path.stem for path in RESULTS.iterdir()} <= {Path(study.file).stem for study in STUDIES}


def test_every_command_names_a_script_that_is_there() -> None:
    for study in STUDIES:
        script = study.command.split()[0]
        assert (RESULTS.parent / script).exists(), study.command


def test_what_has_no_file_is_not_measured_yet(tmp_path: Path) -> None:
    text = page(tmp_path)
    rows = [row for row in re.findall(r"^\| .*", text, re.MULTILINE) if "what | figure" not in row]
    assert len(rows) == sum(len(study.asked) for study in STUDIES)
    assert all(f"| {NOT_YET} |" in row for row in rows)
    assert f"Of 0 demands on what was measured 0 are met; {len(rows)} lines are {NOT_YET}." in text


def test_what_is_missed_is_said(tmp_path: Path) -> None:
    rows = [hang(seed, right=seed != 7) for seed in range(20)]
    text = page(written(tmp_path / "hangs.jsonl", rows))
    shown = section(text, "Ranks that hang")
    assert verdicts(shown) == ["NOT met", "NOT met", "met"]
    assert (
        "| **NOT met** | the rank that hangs named, and no other | 19 of 20 | 20 of 20 |" in shown
    )
    assert "on a day that the file does not tell" in shown


def test_too_few_tries_show_nothing_yet(tmp_path: Path) -> None:
    text = page(written(tmp_path / "hangs.jsonl", [hang(seed) for seed in range(19)]))
    assert verdicts(section(text, "Ranks that hang")) == ["NOT met"] * 3


def test_day_commit_and_machine_stand_beside_the_command(tmp_path: Path) -> None:
    path = tmp_path / "hangs.jsonl"
    kept = Lines(path)
    for seed in range(20):
        kept.append(hang(seed))
    lines = path.read_text().splitlines()
    assert len(lines) == 21  # one context for the session
    about = json.loads(lines[0])["context"]
    shown = section(page(tmp_path), "Ranks that hang")
    assert f", {about['timestamp'][:10]}, commit {about['git_commit'][:10]}" in shown
    assert f"{about['machine']['usable_cpu_count']} cores (" in shown


def test_a_late_rank_stopped_by_its_host_counts_as_found(tmp_path: Path) -> None:
    late = [
        {"seed": i, "late": True, "rank": 1, "phase": "pause", "named": 1, "named_phase": phase}
        for i, phase in enumerate(["host pause"] * 48 + ["data"] * 2)
    ]
    clean = [{"seed": i, "late": False} for i in range(50)]
    clean[0] |= {"named": 0, "named_phase": "data"}
    text = page(written(tmp_path / "late_rank.jsonl", [*late, *clean]))
    title = "A late rank, in 50 seeded runs with one and 50 without"
    assert verdicts(section(text, title)) == ["met", "met", "met"]
    late[0]["named_phase"] = "data"
    text = page(written(tmp_path / "late_rank.jsonl", [*late, *clean]))
    assert verdicts(section(text, title)) == ["met", "NOT met", "met"]


def test_pytorchs_own_tests_must_all_end_alike(tmp_path: Path) -> None:
    counts = {"listed": 3, "run": 3, "passed_without": 2, "passed_with": 2, "different": {}}
    path = tmp_path / "torch_ddp_tests.json"
    path.write_text(json.dumps({"modules": {"torch.x": counts}}))
    shown = section(page(tmp_path), "PyTorch's own DDP tests")
    assert "(2 pass without, 2 with) | 3 of 3 | 3 of 3 |" in shown
    counts |= {"passed_with": 1, "different": {"test_y": ["passed", "failed"]}}
    path.write_text(json.dumps({"modules": {"torch.x": counts}}))
    assert verdicts(section(page(tmp_path), "PyTorch's own DDP tests")) == ["NOT met"]


def test_a_fault_is_asked_for_in_all_tries_and_respects(tmp_path: Path) -> None:
    rows = {
        "SIGKILL": {"tries": 10, "yes": [10, 10, 10]},
        "full disk": {"tries": 10, "yes": [10, 9, 10]},
    }
    (tmp_path / "faults.json").write_text(json.dumps(rows))
    shown = section(page(tmp_path), "The fault matrix")
    # The other faults, and those with watchers on, were not tried.
    assert verdicts(shown) == ["met", "NOT met", "NOT met", "NOT met"]
    assert "| 10, 9 and 10 of 10 | all |" in shown
    assert "| rows tried | 2 of " in shown


def test_the_trials_of_the_committed_file_are_all_counted(tmp_path: Path) -> None:
    shutil.copy(RESULTS / "trial_truth.jsonl", tmp_path)
    shown = section(page(tmp_path), "Verdicts of trials whose answer is known")
    assert shown.count("| 20 of 20 | 20 of 20 |") == 2
