"""``commprof report``: each format to the terminal and into a file, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commprof.commands import main
from tests.support.predictions import answer, write_predictions
from tests.support.run_directories import ranks_of, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("run")
    write_predictions(base / "p.json", answer(16, 1000.0))
    return write_run(base / "r", ranks_of(1, 9), ranks_of(2, 9))


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [
        ([], "timed: a workload.\n"),
        (["--format", "json"], '{\n  "schema_version": 1,'),
        (["--format", "markdown"], "# commprof report\n"),
        (["--format", "csv"], "world_size,measured_steps,"),
        (["--format", "csv", "--rows", "steps"], "world_size,rank,step,step_ms,"),
        (["--format", "html", "-o", "-"], "<!doctype html>\n"),
    ],
)
def test_a_file_holds_what_the_terminal_shows(
    run: Path, tmp_path: Path, arguments: list[str], begins: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run), *arguments]) == 0
    shown = capfd.readouterr().out
    assert shown.startswith(begins)
    if "-o" in arguments:
        return
    target = tmp_path / "report"
    assert main(["report", str(run), *arguments, "-o", str(target)]) == 0
    assert capfd.readouterr().out == f"Written: {target}\n"
    assert target.read_text() == shown


def test_a_page_goes_into_the_run_and_is_not_overwritten(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", str(run), "--format", "html"]
    assert main(words) == 0
    assert capsys.readouterr().out == f"Written: {run}/report.html\n"
    assert main(words) == 2
    assert "is there already; give --force" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0


def test_a_price_is_in_every_format(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    priced = ["report", str(run), "--price-per-hour", "3.6", "--price-per", "rank"]
    assert main(priced) == 0
    assert "Cost at 3.6 per hour and rank:" in capsys.readouterr().out
    assert main([*priced, "--format", "json", "--epoch-samples", "1000"]) == 0
    cost = json.loads(capsys.readouterr().out)["cost"]
    assert [row["billed"] for row in cost["rows"]] == [1, 2]
    # 10 samples a rank and step of 101.5 ms on average, at 0.001 a second and rank.
    assert cost["rows"][1]["s_per_epoch"] == pytest.approx(1000 / (20 / 0.1015))
    assert cost["rows"][1]["cost_per_epoch"] == pytest.approx(0.002 * 1000 / (20 / 0.1015))
    assert main([*priced, "--format", "markdown"]) == 0
    assert "## Cost" in capsys.readouterr().out


def test_predictions_stand_beside_what_was_measured(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "report",
        str(run),
        "--format",
        "markdown",
        "--predictions",
        str(run.parent / "p.json"),
    ]
    assert main(words) == 0
    assert "| 16 | as recorded | 1000 \\[800, 1250\\] |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rows", "steps"], "--rows is for --format csv and parquet, not for table"),
        (["--price-per", "rank"], "--price-per says nothing without --price-per-hour"),
        (["--epoch-samples", "7"], "--epoch-samples says nothing without --price-per-hour"),
        (["--price-per-hour", "0"], "--price-per-hour 0.0 is out of range"),
        (["--price-per-hour", "nan"], "--price-per-hour nan is out of range"),
        (["--price-per-hour", "1", "--epoch-samples", "0"], "--epoch-samples 0 is out of range"),
        (["--predictions", "p.json"], "--predictions is for --format html and markdown"),
        (["-o", "missing/a"], "missing is no directory"),
    ],
)
def test_refusals(
    run: Path, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run), *arguments]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("format", ["table", "html", "parquet"])
def test_a_directory_that_is_no_run(
    tmp_path: Path, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path / "none"), "--format", format]) == 1
    assert "holds neither run.json nor" in capsys.readouterr().err
