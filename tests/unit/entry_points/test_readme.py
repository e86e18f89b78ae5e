from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commprof.audit.audit import RULES
from commprof.commands import homes, load, main, make_parser
from commprof.commands.options.parser import Parser
from commprof.workloads.spec import parse_spec

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
PAGES = sorted(
    [README, ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")],
)


def test_the_report_in_the_readme_equals_the_printed_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = re.findall(r"<!-- report:[^\n]*-->\n```\n(.*?)```\n", README.read_text(), re.DOTALL)
    assert len(shown) == 1
    assert len(shown[0].splitlines()) <= 24
    assert max(map(len, shown[0].splitlines())) <= 80
    places = [place / "shared/data/profiler_traces" for place in list(ROOT.parents)[:2]]
    recordings = next((place for place in places if place.exists()), None)
    if recordings is None:
        pytest.skip("no recordings beside the repository")
    monkeypatch.chdir(recordings)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setattr(sys, "argv", ["commprof"])
    assert main(["report", "dlrm_8xV100.tar.gz"]) == 0
    assert capsys.readouterr().out == shown[0]


CONFIG = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/launching.md").read_text(), re.DOTALL)[0]


_COMMAND = r"(?:python -m )?commprof(?:\.run|\.microbench)?"


def commands() -> Iterator[str]:
    texts = [
        block
        for page in PAGES
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    ]
    texts += [make_parser().description or "", *(load(name).description for name in homes())]
    for text in texts:
        for line in re.sub(r"\\\n\s*", "", text).splitlines():
            match = re.match(rf"\s*(?:\$ )?({_COMMAND} .*)", line)
            if match:
                yield re.split(r"\s+#|\s{2,}", match[1])[0]


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_commands_shown_in_the_docs_are_accepted_by_the_parser(
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


def test_commands_are_found_in_the_docs() -> None:
    shown = set(commands())
    assert "commprof predict RUN --bucket-cap-mb 1,5,25,100" in shown
    assert "commprof report DIR" in shown


_OTHERS = {
    *("--cpu-bind", "--bind-to"),
    *("--no-build-isolation", "--strict", "--ntasks-per-node", "--python", "--lr"),
    *("--nonblocking", "--threads", "--idle", "--pid", "--unix-socket", "--only", "--write"),
}


def test_commands_and_options_named_in_the_docs_exist() -> None:
    flags = {}
    for name in homes():
        parser = Parser(prog=name)
        load(name).prepare_parser(parser)
        flags[name] = {flag for action in parser._actions for flag in action.option_strings}
    known = {flag for found in flags.values() for flag in found} | _OTHERS
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in PAGES:
        text = page.read_text()
        assert set(re.findall(r"(?<![\w-])--[a-z][\w-]+", text)) <= known, page
        for named in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text):
            if match := re.match(r"(?:python -m commprof\.|commprof )([a-z-]+)(.*)", named):
                options = re.findall(r"--[a-z][\w-]+", match[2].partition(" -- ")[0])
                assert named.startswith("python -m commprof.monitor") or (
                    flags[match[1]].issuperset(options)
                ), f"{page}: {named}"
            if match := re.match(r"make ([a-z-]+)", named):
                assert match[1] in targets, f"{page}: {named}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_in_the_docs_lead_to_existing_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_docs_pages_named_in_the_code_exist() -> None:
    named = {
        name
        for directory in ("commprof", "csrc")
        for path in (ROOT / directory).rglob("*")
        if path.suffix in (".py", ".h", ".cpp")
        for name in re.findall(r"docs/(\w+\.md)", path.read_text())
    }
    assert named
    assert [name for name in sorted(named) if not (ROOT / "docs" / name).is_file()] == []


def test_headings_linked_in_the_docs_exist() -> None:
    for page in PAGES:
        for target, heading in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            text = (page.parent / target if target else page).read_text()
            lines = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in lines]
            assert heading in slugs, f"{page.name}: {target}#{heading}"


def test_every_audit_rule_is_described_in_the_docs() -> None:
    text = (ROOT / "docs/reading.md").read_text()
    assert [rule.name for rule in RULES if rule.name not in text] == []


ROWS = re.findall(
    r"^\| (.+?) \| (`tests/.+?) \| `(make [a-z-]+)`.*\|$",
    (ROOT / "CONTRIBUTING.md").read_text(),
    re.MULTILINE,
)


def test_the_table_of_promises_is_found() -> None:
    assert len(ROWS) >= 10


@pytest.mark.parametrize(("promise", "files", "target"), ROWS)
def test_every_promise_names_existing_tests_and_the_right_make_target(
    promise: str, files: str, target: str
) -> None:
    """``make test`` leaves out each module whose ``pytestmark`` is slow."""
    slow = []
    for name in re.findall(r"`(tests/[\w/]+\.py)`", files):
        text = (ROOT / name).read_text()
        assert "def test_" in text, promise
        module = re.search(r"^pytestmark = (\[.*?^\]|.*?$)", text, re.MULTILINE | re.DOTALL)
        slow.append(module is not None and "pytest.mark.slow" in module.group())
    assert slow
    assert set(slow) == {target == "make test-all"}, promise
