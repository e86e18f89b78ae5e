"""Reports that agree with themselves give no finding, however they round."""

from __future__ import annotations

import json
import re

import pytest

from commprof.audit.audit import audit
from tests.support.builders.documents.honest_reports import honest_report


@pytest.mark.parametrize("seed", range(200))
def test_an_honest_report_has_no_finding(seed: int) -> None:
    name, text = honest_report(seed)
    result = audit(text)
    assert result.findings == (), f"{name}\n{text}"


def test_they_are_compared_and_not_passed_over() -> None:
    checks = [audit(honest_report(seed)[1]).checks for seed in range(40)]
    assert min(checks) >= 1
    assert sum(checks) > 400


@pytest.mark.parametrize("seed", [3, 8, 13, 18])  # commprof's own JSON
def test_a_changed_figure_of_an_honest_report_is_found(seed: int) -> None:
    value = json.loads(honest_report(seed)[1])
    value["runs"][-1]["aggregated_metrics"]["samples_per_sec"] *= 1.0001
    found = {finding.rule for finding in audit(json.dumps(value)).findings}
    assert {"throughput-from-work", "speedup-from-throughput"} <= found


def test_a_last_digit_that_no_rounding_gives_is_found() -> None:
    text = "GPUs,throughput,speedup\n1,100.0,1.00\n2,195.0,{}\n"
    assert audit(text.format("1.95")).findings == ()
    assert audit(text.format("1.94")).findings == ()  # 194.95 / 100.1, cut off
    (finding,) = audit(text.format("1.93")).findings
    assert (finding.rule, finding.row) == ("speedup-from-throughput", "2 ranks")
    assert finding.stated.text == "speed-up 1.93 (line 3)"
    assert finding.implied.text == "throughput 195.0 (line 3) / 100.0 (line 2) ="
    assert finding.implied.span.value == pytest.approx(1.95)


@pytest.mark.parametrize(
    "table",
    [
        # One experiment per strategy, in one table and in two.
        "| GPUs | Strategy | samples/s |\n|-|-|-|\n| 1 | DDP | 10 |\n| 1 | FSDP | 8 |\n"
        "| 2 | DDP | 19 |\n| 2 | FSDP | 15 |",
        "| GPUs | samples/s | speedup |\n|-|-|-|\n| 1 | 10 | 1.0 |\n| 2 | 19 | 1.9 |\n\n"
        "| GPUs | samples/s | speedup |\n|-|-|-|\n| 1 | 30 | 1.0 |\n| 2 | 45 | 1.5 |",
        # Strong scaling whose batch is the global one, and weak scaling of the same kind.
        "| GPUs | batch | samples/s | step ms | speedup |\n|-|-|-|-|-|\n"
        "| 1 | 64 | 640 | 100 | 1.0 |\n| 2 | 64 | 1067 | 60.0 | 1.67 |\n"
        "| 4 | 64 | 1600 | 40.0 | 2.5 |",
        "| GPUs | batch | samples/s | step ms | speedup |\n|-|-|-|-|-|\n"
        "| 1 | 64 | 640 | 100 | 1.0 |\n| 2 | 128 | 1067 | 120 | 1.67 |",
        # Relative to the smallest size that was run.
        "| GPUs | samples/s | speedup | efficiency |\n|-|-|-|-|\n"
        "| 8 | 800 | 1.0x | 100% |\n| 16 | 1500 | 1.9x | 94% |",
        # One column per system, whose ratio is the speed-up; and throughput of one GPU.
        "| GPUs | batch | ours img/s | theirs img/s | speedup |\n|-|-|-|-|-|\n"
        "| 1 | 32 | 100 | 80 | 1.25x |\n| 8 | 32 | 790 | 500 | 1.58x |",
        "| GPUs | batch/GPU | step ms | img/s per GPU | speedup |\n|-|-|-|-|-|\n"
        "| 1 | 32 | 100 | 320 | 1.0 |\n| 8 | 32 | 110 | 291 | 7.3 |",
        # Four batches to an update.
        "| GPUs | batch/GPU | grad accum | step ms | img/s |\n|-|-|-|-|-|\n"
        "| 1 | 8 | 4 | 100 | 320 |\n| 2 | 8 | 4 | 110 | 582 |",
        # Other efficiencies and other throughputs.
        "| GPUs | GPU efficiency | Throughput (GB/s) | latency p99 (ms) | speedup |\n|-|-|-|-|-|\n"
        "| 1 | 150% | 3 | 2 | 1 |\n| 2 | 170% | 30 | 4 | 1.9 |",
    ],
)
def test_what_only_looks_like_a_contradiction_is_none(table: str) -> None:
    assert audit(table).findings == ()


def test_words_around_the_figures_do_not_matter() -> None:
    plain = "| ranks | samples/s | speedup |\n|-|-|-|\n| 1 | 10.0 | 1.0 |\n| 2 | 19.0 | 2.5 |\n"
    dressed = re.sub(r"2\.5", "**2.5×** (best)", plain).replace("| 2 |", "| Distributed (2 GPUs) |")
    for text in (plain, dressed, plain.replace("|-|-|-|", "| :--- | ---: |:-:|")):
        assert [f.rule for f in audit(text).findings] == ["speedup-from-throughput", "super-linear"]
