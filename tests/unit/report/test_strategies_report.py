from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from commprof.analysis.strategies import strategy_rows
from commprof.commands import main
from commprof.report import markdown
from commprof.report.full_report import ComparedStrategies, FullReport
from commprof.report.html import page
from commprof.report.sections import incidents as incidents_table
from commprof.report.sections.step import DEVICE_LEGEND, PARTS_LEGEND
from commprof.report.strategies import render_screen, strategy_sections
from tests.support.builders import results
from tests.support.builders.results import context, detail, incidents, run_result
from tests.support.builders.run_directories import write_strategies


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_strategies(tmp_path_factory.mktemp("strategies") / "run")


def shown(run: Path, format: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["report", str(run), "--format", format, "-o", "-"]) == 0
    return capsys.readouterr().out


def data_of(text: str) -> Any:
    return json.loads(text.split('id="data">')[1].split("</script>")[0])


def test_the_page_names_every_strategy(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(run, "html", capsys)
    for title in ("Verdict", "Strategies side by side", "Where each step goes", "Scaling",
                  "Timeline of the collectives", "Who waits for whom"):  # fmt: skip
        assert f">{title}</h2>" in text
    worlds = [(world["name"], world["ranks"]) for world in data_of(text)["worlds"]]
    assert worlds == [("ddp", 1), ("ddp", 2), ("fsdp", 1), ("fsdp", 2)]
    assert "fsdp: At 2 ranks the step is bound by" in text
    for world in data_of(text)["worlds"]:
        low, high = world["samples_per_s_range"]
        assert low <= world["samples_per_s"] * 1.001
        assert high >= world["samples_per_s"] * 0.999


def test_the_terminal_report_begins_with_the_verdict_of_each_strategy(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run), "--all"]) == 0
    text = capsys.readouterr().out
    verdicts = [line for line in text.splitlines() if "the step is bound by" in line]
    assert [line.partition(":")[0] for line in verdicts] == ["ddp", "fsdp", "* ddp", "* fsdp"]
    assert text.index(verdicts[1]) < text.index("effi-")


def test_json_has_the_verdict_of_each_strategy(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(shown(run, "json", capsys))["results"]
    assert ["the step is bound by" in each["verdict"]["headline"] for each in found] == [True] * 2


def test_markdown_has_the_strategies_table(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(run, "markdown", capsys)
    rows = [line for line in text.splitlines() if line.startswith("| 2 | ")]
    # Each of 2 ranks trains 10 samples in 101.5 ms; fsdp's steps take 10 ms more.
    assert rows[0].startswith("| 2 | ddp | 197 | 1.00x |")
    assert rows[1].startswith("| 2 | fsdp | 179 | 0.91x |")


def test_the_page_of_long_runs_of_two_strategies_is_below_1_mb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_strategies(tmp_path / "run", steps=200, world_size=8)
    assert len(shown(run, "html", capsys).encode()) < 1_000_000


def test_incidents_and_overhead_have_sections_named_after_the_strategy() -> None:
    ddp = run_result(results.world(2), context=context(strategy="ddp"), incidents=(incidents(),))
    fsdp = run_result(results.world(2, overhead=None), context=context(strategy="fsdp"))
    fsdp = dataclasses.replace(fsdp, overhead=None)
    reports = tuple(FullReport(result, (detail(2),), None, None) for result in (ddp, fsdp))
    compared = ComparedStrategies(reports, strategy_rows([ddp, fsdp]))
    found = list(strategy_sections(compared))
    titles = [section.title for section in found]
    assert f"{incidents_table.TITLE}: ddp" in titles
    assert titles[-1] == "Overhead of commprof: ddp"
    assert not [title for title in titles if title.endswith(": fsdp")]
    assert len({section.id for section in found}) == len(found)
    assert "Overhead of commprof: ddp" in page.render_strategies(compared)


def test_names_from_a_run_directory_are_shown_as_text() -> None:
    about = context(strategy="[x](y)", description="a\n\x1b[2J")
    result = run_result(results.world(2), context=about, incidents=(incidents(),))
    rows = strategy_rows([result])
    assert render_screen([result], rows, [None], "c").splitlines()[0] == "a \\x1b[2J"
    reports = (FullReport(result, (detail(2),), None, None),)
    text = markdown.render_strategies(ComparedStrategies(reports, rows))
    assert r"## Incidents: \[x\](y)" in text


@pytest.mark.parametrize(("device_timed", "legend"), [(0, PARTS_LEGEND), (9, DEVICE_LEGEND)])
def test_the_legend_of_steps_depends_on_whether_the_device_was_timed(
    device_timed: int, legend: str
) -> None:
    ddp = run_result(results.world(2), context=context(strategy="ddp"))
    fsdp = run_result(results.world(2, device_timed=device_timed), context=context(strategy="fsdp"))
    reports = tuple(FullReport(result, (detail(2),), None, None) for result in (ddp, fsdp))
    found = strategy_sections(ComparedStrategies(reports, strategy_rows([ddp, fsdp])))
    assert [section.legend for section in found if section.id == "step"] == [legend]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--format", "csv"], "--format csv needs the run of one strategy; give"),
        (["--price-per-hour", "2"], "a price or a prediction needs the run of one strategy; give"),
    ],
)
def test_options_for_one_strategy_are_refused_for_several(
    run: Path, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run), *arguments]) == 2
    assert complaint in capsys.readouterr().err
