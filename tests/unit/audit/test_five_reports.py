"""Five reports contradict themselves. Only their figures were copied into tests/data/audit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from commprof.audit.audit import audit
from commprof.audit.checks import Finding
from commprof.audit.findings_text import render

DATA = Path(__file__).parents[2] / "data" / "audit"
READING = Path(__file__).parents[3] / "docs" / "reading.md"


def findings(name: str) -> list[Finding]:
    return list(audit((DATA / f"{name}.md").read_text()).findings)


def rules(name: str) -> set[tuple[str, str]]:
    return {(finding.rule, finding.row) for finding in findings(name)}


def one(name: str, rule: str, row: str) -> Finding:
    found = [f for f in findings(name) if (f.rule, f.row) == (rule, row)]
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("name", "rule", "row", "stated", "implied"),
    [
        # Both runs had 640 samples, but the stated figures imply 320 and 1,281 samples.
        ("simulated_transformer", "throughput-from-work", "1 rank", "13.35", 640 / 23.96),
        ("simulated_transformer", "throughput-from-work", "4 ranks", "270.19", 640 / 4.74),
        ("simulated_transformer", "speedup-from-work", "4 ranks", "20.22x", 23.96 / 4.74),
        ("simulated_transformer", "warm-up", "1 rank", "16.1", 7.9),
        ("simulated_transformer", "ranks-in-turn", "4 ranks", "15.0", 4.74),
        ("simulated_transformer", "repeated-scaling", "4 ranks", "95%", 5.06),
        ("theoretical_resnet", "repeated-overhead", "the report", "1.7%", 0.125),
        ("theoretical_resnet", "amdahl", "8 ranks", "6.15", 1 / (0.05 + 0.95 / 8)),
        ("theoretical_resnet", "epochs", "1 rank", "2,469.67s", 2185.3),
        ("projected_deployment", "super-linear", "8 ranks", "~500-560%", 1.0),
        ("projected_deployment", "super-linear", "16 ranks", "~410-560%", 1.0),
        ("projected_deployment", "efficiency", "8 ranks", "98-111%", 42.5 / 8),
        ("projected_deployment", "efficiency", "16 ranks", "88-112%", 80 / 16),
        ("estimated_cluster", "throughput-from-latency", "64 ranks", "56,320", 64 * 64 / 0.0362),
        ("estimated_cluster", "throughput-from-latency", "128 ranks", "104,960", 128 * 64 / 0.0391),
        ("estimated_cluster", "throughput-from-latency", "256 ranks", "184,320", 256 * 64 / 0.0445),
        ("estimated_cluster", "changing-work", "64 ranks", "64", 32),
        ("estimated_cluster", "combined", "combined", "~5x", 14.1),
        ("expected_lora", "cost-per-unit", "2 ranks", "$0.060", 0.12),
        ("expected_lora", "cost-per-unit", "4 ranks", "$0.030", 0.12),
        ("expected_lora", "overhead-and-efficiency", "4 ranks", "<1%", 0.06),
    ],
)
def test_each_known_contradiction_in_the_reports_is_found(
    name: str, rule: str, row: str, stated: str, implied: float
) -> None:
    found = one(name, rule, row)
    assert stated in found.stated.text
    assert found.implied.span.value == pytest.approx(implied)


@pytest.mark.parametrize(
    ("name", "rule", "right"),
    [
        ("simulated_transformer", "throughput-from-work", {"2 ranks"}),
        ("theoretical_resnet", "amdahl", {"2 ranks", "4 ranks"}),
        ("theoretical_resnet", "efficiency", {"2 ranks", "4 ranks", "8 ranks"}),
        ("estimated_cluster", "throughput-from-latency", {f"{2**n} ranks" for n in range(1, 6)}),
        ("estimated_cluster", "cost", {f"{n} ranks" for n in (8, 16, 32, 64)}),
        ("estimated_cluster", "cost-efficiency", {f"{n} ranks" for n in (8, 16, 32, 64)}),
        ("expected_lora", "cost", {"1 rank", "2 ranks", "4 ranks"}),
        ("expected_lora", "throughput-from-work", {"1 rank", "2 ranks", "4 ranks"}),
    ],
)
def test_consistent_rows_of_the_reports_give_no_finding(
    name: str, rule: str, right: set[str]
) -> None:
    assert not {row for found, row in rules(name) if found == rule} & right


def test_every_finding_names_the_line_of_the_stated_figure() -> None:
    for path in sorted(DATA.glob("*.md")):
        for finding in findings(path.stem):
            assert "line " in finding.stated.text, finding


def test_the_finding_that_the_documentation_quotes_is_printed() -> None:
    text = (DATA / "estimated_cluster.md").read_text()
    finding = render(audit(text), "SCALING.md", 100).split("\n\n")[1]
    quoted, printed = (re.sub(r"line \d+", "line", x) for x in (READING.read_text(), finding))
    assert printed in quoted
