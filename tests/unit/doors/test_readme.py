"""What README and docs show is what commprof prints, takes and has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from commprof.commands import COMMANDS, load, make_parser
from commprof.report.table import render
from commprof.workloads.spec import parse_spec
from tests.support.builders.results import run_result, world
from tools.update_readme import BLOCK, replace_report

ROOT = Path(__file__).parents[3]
GOLDEN = (ROOT / "tests/golden/run_table.txt").read_text()
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")],
)


def tables(report: str) -> list[list[str]]:
    """The lines of the tables over world sizes: headers, the rule, rows."""
    blocks = [block.splitlines() for block in report.split("\n\n")]
    found = [block for block in blocks if any(re.fullmatch(r"[- ]+", line) for line in block)]
    return found[:2]  # the third is of collectives, if there are any


def headers(table: list[str]) -> list[list[str]]:
    """The words of the header lines; their columns are as wide as the figures below."""
    rule = next(i for i, line in enumerate(table) if re.fullmatch(r"[- ]+", line))
    return [line.split() for line in table[:rule]]


def legends(report: str) -> list[str]:
    """The two paragraphs that explain the tables."""
    starts = ("step: wall time", "Mean step in ms")
    blocks = report.strip("\n").split("\n\n")
    return [block for block in blocks if block.startswith(starts)]


def check_report(report: str) -> None:
    """The shape of a report of 1, 2, 4 and 8 ranks; figures are another machine's."""
    assert legends(report) == legends(GOLDEN)
    assert [headers(table) for table in tables(report)] == [
        headers(table) for table in tables(GOLDEN)
    ]
    for table, columns in zip(tables(report), (10, 11), strict=True):
        rows = [re.split(r"\s{2,}", line.strip()) for line in table if re.match(r"\s+\d", line)]
        assert [row[0] for row in rows] == ["1", "2", "4", "8"]
        assert {len(row) for row in rows} == {columns}
        for cell in (cell for row in rows for cell in row):
            assert re.search(r"\d", cell), f"{cell!r} in the report of the README"


def test_the_report_in_the_readme_is_one() -> None:
    match = BLOCK.search((ROOT / "README.md").read_text())
    assert match is not None
    report = match[2].removeprefix("```\n").removesuffix("```\n")
    lines = report.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert re.search(r"^At \d+ ranks? the (step is|largest parts)", report, re.MULTILINE)
    assert re.search(
        r"^Exposed communication: [\d.]+ ms, [\d.]+% of the step$", report, re.MULTILINE
    )
    for ranks in ("1 rank", "2 ranks", "4 ranks", "8 ranks"):
        assert re.search(rf"{ranks} [\d.]+ samples/s \(\d+%\)", report), ranks
    assert not re.search(r"/tmp|nan|failed", report)


def test_a_report_of_this_version_has_the_shape() -> None:
    check_report(render(run_result(*map(world, (1, 2, 4, 8))), 100))


def test_a_new_report_takes_the_place_of_the_old() -> None:
    readme = "a\n<!-- report: how -->\n```\nold \\1\n```\n<!-- end of report -->\nb\n"
    output = (
        "new \\1\n\nend\n\nRun directory: /tmp/x\nSee everything: commprof report /tmp/x --all\n"
    )
    assert replace_report(readme, output) == (
        "a\n<!-- report: how -->\n```\nnew \\1\n\nend\n```\n<!-- end of report -->\nb\n"
    )
    with pytest.raises(ValueError, match="0 blocks"):
        replace_report("no markers", output)


#: The file that docs/launching.md shows.
CONFIG = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/launching.md").read_text(), re.DOTALL)[0]


_COMMAND = r"(?:python -m )?commprof(?:\.run|\.microbench)?"


def commands() -> Iterator[str]:
    """The command lines in the pages' code blocks and in the commands' own help."""
    texts = [
        block
        for page in PAGES
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    ]
    texts += [make_parser().description or "", *(load(name).description for name in COMMANDS)]
    for text in texts:
        for line in re.sub(r"\\\n\s*", "", text).splitlines():
            match = re.match(rf"\s*(?:\$ )?({_COMMAND} .*)", line)
            if match:
                yield re.split(r"\s+#|\s{2,}", match[1])[0]


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_a_command_that_is_shown_can_be_given(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "--config" in line:
        (tmp_path / "RUN").mkdir()
        for name in ("run.yaml", "RUN/config.yaml"):
            (tmp_path / name).write_text(CONFIG)
        monkeypatch.chdir(tmp_path)
    line = re.sub(r"^(?:python -m )?commprof\.(run|microbench)", r"commprof \1", line)
    words = shlex.split(line.removeprefix("python -m "))
    assert words[0] == "commprof"
    args = make_parser().parse_args(words[1:])
    if words[1] == "run" and args.workload is not None:
        parse_spec(args.workload)


def test_there_are_commands_to_check() -> None:
    shown = set(commands())
    assert "python -m commprof.run --nproc 8" in shown
    assert "commprof report RUN --format json" in shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []
