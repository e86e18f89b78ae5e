from __future__ import annotations

import json
import math
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from commprof.audit.figure import Span, exact, parse_figure
from commprof.audit.json_rows import json_rows, load
from commprof.audit.quantities import classify, parse_ranks
from commprof.audit.read import facts
from commprof.audit.tables import csv_table, markdown_tables
from commprof.commands import main


@pytest.mark.parametrize(
    ("text", "low", "value", "high"),
    [
        ("1.78", 1.775, 1.78, 1.79),
        ("97.8%", 0.9775, 0.978, 0.979),
        ("1,150", 1145, 1150, 1160),
        ("104,960", 104955, 104960, 104970),
        ("100", 99.5, 100, 101),
        ("**20.22x**", 20.215, 20.22, 20.23),
        ("~360 img/s", 350, 360, 370),
        ("~0.94", 0.93, 0.94, 0.95),
        ("40-45x", 39.5, 42.5, 46),
        ("98–111%", 0.975, 1.045, 1.12),
        ("<1%", 0, 0.01, 0.01),
        ("≥3", 3, 3, math.inf),
        ("62.5 ± 0.5", 61.85, 62.5, 63.2),
        ("1.23e+03", 1225, 1230, 1240),
        ("36.2 ms", 0.03615, 0.0362, 0.0363),
        ("2 min", 90, 120, 180),
        ("10K", 9500, 10000, 11000),
        ("$0.114", 0.1135, 0.114, 0.115),
        ("2,469.67s (41.2 min)", 2469.665, 2469.67, 2469.68),
        ("1h 23m", 4950, 4980, 5040),
        ("1h 30", 5370, 5400, 5460),
        ("1h30 (est.)", 5370, 5400, 5460),
        ("2 min 05", 124.5, 125, 126),
        ("1h 30 GPUs", 1800, 3600, 7200),
        ("<1h 30m", 0, 5400, 5400),
        ("≥ 1h 30", 5400, 5400, math.inf),
        ("~2 min, 30 s", 149, 150, 151),
        ("1 day and 4 hours", 99000, 100800, 104400),
        ("1.6 days", 133920, 138240, 146880),
        ("1 150 img/s", 1145, 1150, 1160),
        ("2\u202f469\u00a0000", 2468500, 2469000, 2470000),
    ],
)
def test_a_printed_number_is_parsed_as_the_interval_that_rounds_to_it(
    text: str, low: float, value: float, high: float
) -> None:
    figure = parse_figure(text)
    assert figure is not None
    assert (figure.span.low, figure.span.value, figure.span.high) == pytest.approx(
        (low, value, high)
    )


@pytest.mark.parametrize(
    "text",
    ["", "-", ">= 3", "n/a", "Baseline", "2026-02-09", "12:50:57", "1,5", "10.0.0.1", "-3", "9-2",
     "nan", "inf", "1e999", "9" * 400, "36m"],
)  # fmt: skip
def test_text_that_is_no_number_is_not_parsed(text: str) -> None:
    assert parse_figure(text) is None


@pytest.mark.parametrize("unit", ["s", "min", "h"])
def test_m_means_minutes_in_a_column_of_times(unit: str) -> None:
    figure = parse_figure("36m", unit=unit)
    assert figure is not None
    assert (figure.text, figure.span.value) == ("36m", 2160)


@pytest.mark.parametrize("seed", range(200))
def test_the_interval_of_a_printed_number_contains_the_exact_value(seed: int) -> None:
    value = math.exp(random.Random(seed).uniform(-12, 12))
    for text in (f"{value:.2f}", f"{value:,.0f}", f"{value:.3g}", f"{value:.1e}", repr(value)):
        figure = parse_figure(text)
        assert figure is not None
        assert figure.span.low <= value <= figure.span.high
    cut = parse_figure(f"{math.floor(value * 10) / 10:.1f}")
    assert cut is not None
    assert cut.span.low <= value <= cut.span.high + 1e-9 * value


def test_span_arithmetic_covers_all_possible_results() -> None:
    a, b = Span(1.0, 2.0, 3.0), Span(2.0, 4.0, 5.0)
    assert a * b == Span(2.0, 8.0, 15.0)
    assert a / b == Span(0.2, 0.5, 1.5)
    assert a + b == Span(3.0, 6.0, 8.0)
    assert (a / exact(0.0)).high == math.inf
    assert not Span(0.0, 1.0, 1.0).meets(Span(1.1, 2.0, 3.0))


@pytest.mark.parametrize(
    ("header", "name", "unit"),
    [
        ("Throughput (img/s)", "throughput", ""),
        ("samples_per_sec", "throughput", ""),
        ("Tokens/sec", "tokens_per_s", ""),
        ("Throughput (tokens/s)", "tokens_per_s", ""),
        ("Time/Iteration (ms)", "latency", "ms"),
        ("step_time_ms", "latency", "ms"),
        ("Speedup vs 1 GPU", "speedup", ""),
        ("Speedup (Amdahl)", "amdahl_speedup", ""),
        ("Parallel fraction (Amdahl)", "parallel_share", ""),
        ("Efficiency*", "efficiency", ""),
        ("efficiency_pct", "efficiency", "%"),
        ("Cost Efficiency", "cost_efficiency", ""),
        ("Cost efficiency (%)", "cost_efficiency", "%"),
        ("Time to 90 epochs (days)", "duration", "days"),
        ("Batch/GPU", "rank_batch", ""),
        ("Effective Batch", "global_batch", ""),
        ("Batch Size", "batch", ""),
        ("Time/Epoch", "epoch_s", ""),
        ("total_duration_sec", "duration", "sec"),
        ("Wall time (s)", "duration", "s"),
        ("Price per GPU-hour", "price", ""),
        ("Cost (8 hrs @ $3/GPU-hr)", "cost", ""),
        ("num_batches_per_epoch", "epoch_batches", ""),
        ("total_samples_per_rank", "rank_samples", ""),
    ],
)
def test_column_headers_are_classified_by_quantity_and_unit(
    header: str, name: str, unit: str
) -> None:
    quantity = classify(header)
    assert quantity is not None
    assert (quantity.name, quantity.unit) == (name, unit)


@pytest.mark.parametrize(
    "header",
    [
        "Strategy",
        "Overhead Reduction",
        "GPU efficiency",
        "Throughput (GB/s)",
        "Loss",
        "Memory",
        "Amdahl limit",
        "Amdahl efficiency",
        "Amdahl speedup (P = 0.9)",
    ],
)
def test_unrelated_column_headers_are_not_classified(header: str) -> None:
    assert classify(header) is None


def test_headers_give_the_samples_or_epochs_of_a_time_or_cost() -> None:
    found = [
        classify(h) for h in ("Time for 10K samples", "Time to 90 Epochs", "Cost per 1,000 samples")
    ]
    assert [(q.per_samples, q.per_epochs) for q in found if q] == [(10000, 0), (0, 90), (1000, 0)]


@pytest.mark.parametrize(
    ("cell", "ranks"),
    [("4", 4), ("**4**", 4), ("4-process", 4), ("Baseline (1 GPU)", 1), ("2P", 2),
     ("1,024", 1024), ("1,024 GPUs", 1024), ("1 024 GPUs", None), ("8 A100 GPUs", 8),
     ("8x H100 GPU", 8), ("8 T4 GPUs", 8), ("4 RTX 3090 GPUs", 4), ("2 x 8 GPUs", 16),
     ("2x8 NVIDIA A100 80GB GPUs", 16), ("A100 GPUs", None), ("RTX 4090 GPUs", None),
     ("A100 8 GPUs", 8), ("Config 1 4 GPUs", 4), ("dgx-2 16 GPUs", 16),
     ("32 samples per GPU", None),
     ("Baseline", None), ("0", None), ("1→4 processes", None), ("123456789012", None)],
)  # fmt: skip
def test_world_sizes_are_parsed_from_cells(cell: str, ranks: int | None) -> None:
    assert parse_ranks(cell) == ranks


def test_a_report_decoded_with_the_wrong_encoding_is_still_audited(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_text(
        "- **1→4 processes:** 20.22× speedup (95% efficiency)\n".encode().decode("cp1252")
    )
    assert main(["audit", str(path)]) == 1


OF_ONE, OF_TWO = {"gpus": 1, "throughput": 10}, {"gpus": 2, "throughput": 19}


@pytest.mark.parametrize(
    ("value", "ranks"),
    [
        ({"nodes": 1, "results": [OF_ONE, OF_TWO]}, [1, 2]),
        ({"nodes": 1, "throughput": 19, "runs": {"a": OF_ONE, "b": OF_TWO}}, [1, 2]),
        ({"nodes": 1, "results": {"a": OF_ONE, "b": OF_TWO}}, [1, 2]),
        ({**OF_TWO, "config": OF_ONE, "rank_results": [OF_ONE, OF_ONE]}, [2]),
        ({**OF_TWO, "epoch_1": OF_ONE, "note": {"gpus": 1, "name": "x"}}, [2]),
        ([{"nodes": 2}, {"nodes": 2, "config": OF_TWO}], [2]),
    ],
)
def test_json_has_a_row_for_each_innermost_world_size(value: Any, ranks: list[int]) -> None:
    assert [row.ranks for row in json_rows(load(json.dumps(value)))] == ranks


GARBAGE = {
    "empty": b"",
    "prose": b"It scales well: see the figures.\n",
    "binary": bytes(range(256)),
    "nul": b"a\0b",
    "png": b"\x89PNG\r\n\x1a\n" + bytes(100),
    "cut json": b'{"num_processes": 2, "throughput": ',
    "deep json": b"[" * 100_000,
    "json without rows": b'{"a": [1, 2, {"b": 3}]}',
    "json of strings": b'["num_processes", "4"]',
    "table without ranks": b"| a | b |\n|---|---|\n| 1 | 2 |\n",
    "table without figures": b"| GPUs | name |\n|---|---|\n| 1 | x |\n",
    "csv without ranks": b"a,b\n1,2\n",
    "long line": b"|" * 3_000_000,
    "brackets": b"(" * 1_000_000 + b"\n" + b"a|" * 1_000_000,
    "huge": b"GPUs,throughput\n" + b"1,2\n" * 1_100_000,
    "single steps": b"world_size,step_ms\n" + b"8,10.5\n" * 1001,
}


def test_an_escaped_bar_does_not_end_a_cell() -> None:
    (table,) = markdown_tables([r"| GPUs | img/s \| global |", "|-|-|", "| 1 | 100 |"])
    assert table.headers == ("GPUs", "img/s | global")


def test_rows_of_a_csv_table_keep_their_line_numbers_in_the_file() -> None:
    text = '# measured\n\ngpus,throughput,note\n1,100,"one\nhost"\n# more\n\n4,300,\n'
    table = csv_table(text)
    assert table is not None
    assert [row[0] for row in table.rows] == ["1", "4"]
    assert table.rows[0][2] == "one\nhost"
    assert table.lines == (4, 8)


@pytest.mark.parametrize(
    ("line", "stated"),
    [
        ("<1% overhead vs step time", "<1%"),
        ("- ~12% overhead", "~12%"),
        ("12% communication overhead in all", "12%"),
        ("The job has 12% communication overhead.", "12%"),
        ("Estimated 9% gradient sync overhead", "9%"),
        ("Checkpointing adds 2% overhead to each epoch.", None),
        ("commprof's own cost: 0.5% overhead", None),
    ],
)
def test_only_communication_overhead_is_read_from_text(line: str, stated: str | None) -> None:
    found = [figure.text for name, figure in facts([line]) if name == "overhead"]
    assert found == ([] if stated is None else [stated])


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_file_that_is_no_report_is_refused_in_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report"
    path.write_bytes(content)
    begin = time.process_time()
    assert main(["audit", str(path)]) == 2
    assert time.process_time() - begin < 20
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert len(err) < 500
    assert str(path) in err


def test_a_missing_file_and_a_directory_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path, tmp_path / "none"):
        assert main(["audit", str(path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_report_is_audited_or_refused(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(seed)
    data = Path(__file__).parents[2] / "data" / "audit"
    text = list(rng.choice(sorted(data.glob("*.md"))).read_text())
    for _ in range(rng.randint(1, 200)):
        at = rng.randrange(len(text))
        text[at : at + rng.randint(0, 5)] = rng.choice(
            ["|", "\n", "9" * 20, "%", "-", "×", "{", "\x1b[31m", ""]
        )
    path = tmp_path / "report.md"
    path.write_text("".join(text))
    assert main(["audit", str(path)]) in (0, 1, 2)
    out, err = capsys.readouterr()
    assert err.count("\n") <= 1
    assert all(line.isprintable() for line in [*out.split("\n"), *err.split("\n")])


def test_the_audit_command_prints_findings_and_exits_with_1_if_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    path = Path("table.csv")
    path.write_text("ranks,throughput,speedup\n1,100.0,1.00\n2,150.0,1.95\n")
    assert main(["audit", str(path)]) == 1
    assert capsys.readouterr().out == (
        f"{path}: 1 finding in 2 comparisons of 2 rows\n\n"
        "2 ranks: speed-up is not the ratio of the throughputs [speedup-from-throughput]\n"
        "  stated:  speed-up 1.95 (line 3)\n"
        "  against: throughput 150.0 (line 3) / 100.0 (line 2) = 1.5x\n"
    )
    path.write_text("ranks,throughput,speedup\n1,100.0,1.00\n2,150.0,1.50\n")
    assert main(["audit", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: no findings in 2 comparisons of 2 rows\n"


def test_a_pipe_is_refused_without_waiting_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.md"
    os.mkfifo(path)
    assert main(["audit", str(path)]) == 2
    assert "it is not a regular file; give the path of a scaling report" in capsys.readouterr().err
