from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from commprof.audit.audit import audit


@pytest.mark.parametrize("seed", range(200))
def test_a_consistent_report_has_no_finding(seed: int) -> None:
    name, text = honest_report(seed)
    result = audit(text)
    assert result.findings == (), f"{name}\n{text}"


def test_the_figures_of_consistent_reports_are_actually_compared() -> None:
    checks = [audit(honest_report(seed)[1]).checks for seed in range(40)]
    assert min(checks) >= 1
    assert sum(checks) > 400


# These seeds yield commprof's own JSON.
@pytest.mark.parametrize("seed", [3, 8, 13, 18])
def test_one_changed_figure_in_a_consistent_report_is_found(seed: int) -> None:
    value = json.loads(honest_report(seed)[1])
    value["runs"][-1]["aggregated_metrics"]["samples_per_sec"] *= 1.0001
    found = {finding.rule for finding in audit(json.dumps(value)).findings}
    assert {"throughput-from-work", "speedup-from-throughput"} <= found


def test_a_speedup_that_no_rounding_of_the_throughputs_gives_is_found() -> None:
    text = "GPUs,throughput,speedup\n1,100.0,1.00\n2,195.0,{}\n"
    assert audit(text.format("1.95")).findings == ()
    # 194.95 / 100.1 is 1.9475, which a tool may truncate to 1.94.
    assert audit(text.format("1.94")).findings == ()
    (finding,) = audit(text.format("1.93")).findings
    assert (finding.rule, finding.row) == ("speedup-from-throughput", "2 ranks")
    assert finding.stated.text == "speed-up 1.93 (line 3)"
    assert finding.implied.text == "throughput 195.0 (line 3) / 100.0 (line 2) ="
    assert finding.implied.span.value == pytest.approx(1.95)


@pytest.mark.parametrize(
    "table",
    [
        "| GPUs | Strategy | samples/s |\n|-|-|-|\n| 1 | DDP | 10 |\n| 1 | FSDP | 8 |\n"
        "| 2 | DDP | 19 |\n| 2 | FSDP | 15 |",
        "| GPUs | samples/s | speedup |\n|-|-|-|\n| 1 | 10 | 1.0 |\n| 2 | 19 | 1.9 |\n\n"
        "| GPUs | samples/s | speedup |\n|-|-|-|\n| 1 | 30 | 1.0 |\n| 2 | 45 | 1.5 |",
        # The global batch is constant in strong scaling, and grows with the GPUs in weak scaling.
        "| GPUs | batch | samples/s | step ms | speedup |\n|-|-|-|-|-|\n"
        "| 1 | 64 | 640 | 100 | 1.0 |\n| 2 | 64 | 1067 | 60.0 | 1.67 |\n"
        "| 4 | 64 | 1600 | 40.0 | 2.5 |",
        "| GPUs | batch | samples/s | step ms | speedup |\n|-|-|-|-|-|\n"
        "| 1 | 64 | 640 | 100 | 1.0 |\n| 2 | 128 | 1067 | 120 | 1.67 |",
        "| GPUs | samples/s | speedup | efficiency |\n|-|-|-|-|\n"
        "| 8 | 800 | 1.0x | 100% |\n| 16 | 1500 | 1.9x | 94% |",
        # The speedup compares two systems; in the next table, the throughput is that of one GPU.
        "| GPUs | batch | ours img/s | theirs img/s | speedup |\n|-|-|-|-|-|\n"
        "| 1 | 32 | 100 | 80 | 1.25x |\n| 8 | 32 | 790 | 500 | 1.58x |",
        "| GPUs | batch/GPU | step ms | img/s per GPU | speedup |\n|-|-|-|-|-|\n"
        "| 1 | 32 | 100 | 320 | 1.0 |\n| 8 | 32 | 110 | 291 | 7.3 |",
        "| GPUs | batch/GPU | grad accum | step ms | img/s |\n|-|-|-|-|-|\n"
        "| 1 | 8 | 4 | 100 | 320 |\n| 2 | 8 | 4 | 110 | 582 |",
        "| GPUs | Time per epoch | Speedup |\n|-|-|-|\n| 1 | 1h 10m | 1.00x |\n| 2 | 36m | 1.94x |",
        "| GPUs | Time per epoch | Speedup |\n|-|-|-|\n"
        "| 1 | 3.00 days | 1.00x |\n| 4 | 19.1 hours | 3.77x |",
        "| GPUs | img/s | Speedup |\n|-|-|-|\n| 1 | 985 | 1.00x |\n| 2 | 1 950 | 1.98x |",
        "| GPUs | Cost ($) | Cost efficiency (%) |\n|-|-|-|\n"
        "| 1 | 10.00 | - |\n| 2 | 10.28 | 97.3 |",
        # An efficiency of the GPU and a throughput in GB/s are no figures of scaling.
        "| GPUs | GPU efficiency | Throughput (GB/s) | latency p99 (ms) | speedup |\n|-|-|-|-|-|\n"
        "| 1 | 150% | 3 | 2 | 1 |\n| 2 | 170% | 30 | 4 | 1.9 |",
    ],
)
def test_figures_that_only_seem_to_contradict_give_no_finding(table: str) -> None:
    assert audit(table).findings == ()


def test_markup_and_words_around_figures_do_not_change_the_findings() -> None:
    plain = "| ranks | samples/s | speedup |\n|-|-|-|\n| 1 | 10.0 | 1.0 |\n| 2 | 19.0 | 2.5 |\n"
    dressed = re.sub(r"2\.5", "**2.5×** (best)", plain).replace("| 2 |", "| Distributed (2 GPUs) |")
    for text in (plain, dressed, plain.replace("|-|-|-|", "| :--- | ---: |:-:|")):
        assert [f.rule for f in audit(text).findings] == ["speedup-from-throughput", "super-linear"]


Format = Callable[[float], str]


def honest_report(seed: int) -> tuple[str, str]:
    rng = random.Random(seed)
    rows = _measured(rng)
    name = ("markdown", "csv", "json", "commprof", "files")[seed % 5]
    if name == "json":
        return name, _json(rng, rows)
    if name == "commprof":
        return name, _commprof(rng, rows)
    if name == "files":
        return name, _files(rng, rows)
    return name, _table(rng, rows, as_csv=name == "csv")


def _measured(rng: random.Random) -> list[dict[str, float]]:
    batch, step_s = rng.choice((8, 16, 30, 32, 128)), math.exp(rng.uniform(-6, 1))
    is_strong, loss, steps = rng.random() < 0.4, rng.uniform(0.0, 0.25), rng.randint(20, 3000)
    price = rng.choice((0.6, 1.1, 3.0, 32.77))
    rows: list[dict[str, float]] = []
    for ranks in (1, 2, 4, 8, 16)[: rng.randint(2, 5)]:
        own = batch / ranks if is_strong else batch
        work_s = step_s / ranks if is_strong else step_s
        efficiency = 1 / (1 + loss * math.log2(ranks))
        step = work_s / min(1.02, efficiency * rng.gauss(1.0, 0.01))
        samples = own * ranks * steps
        row = {
            **{"ranks": ranks, "rank_batch": own, "global_batch": own * ranks, "step_s": step},
            **{"samples": samples, "duration_s": step * steps, "throughput": own * ranks / step},
            **{"price": price, "cost": ranks * step * steps / 3600 * price},
        }
        first = rows[0] if rows else row
        row["speedup"] = row["throughput"] / first["throughput"]
        row["efficiency"] = row["speedup"] / ranks
        row["cost_per_1k"] = row["cost"] / samples * 1000
        rows.append(row)
    return rows


def _number(rng: random.Random, suffix: str = "", prefix: str = "") -> Format:
    def cut(value: float) -> str:
        return f"{math.floor(value * 100) / 100:.2f}"

    ways: tuple[Format, ...] = (
        "{:.1f}".format,
        "{:.2f}".format,
        "{:,.2f}".format,
        "{:.4g}".format,
        "{:.6g}".format,
        cut,
    )
    way = rng.choice(ways)
    return lambda value: f"{prefix}{way(value)}{suffix}"


def _columns(rng: random.Random) -> list[tuple[str, Callable[[dict[str, float]], str]]]:
    def of(name: str, form: Format, scale: float = 1.0) -> Callable[[dict[str, float]], str]:
        return lambda row: form(row[name] * scale)

    batch = rng.choice(
        (
            ("Batch/GPU", "rank_batch"),
            ("batch_size", "rank_batch"),
            ("Global batch", "global_batch"),
        )
    )
    efficiency = rng.choice(
        (
            ("Efficiency", _number(rng, "%"), 100.0),
            ("efficiency (%)", _number(rng), 100.0),
            ("Scaling Efficiency", "{:.3f}".format, 1.0),
        )
    )
    step = rng.choice((("Time/Iteration (ms)", "", 1e3), ("step time", " s", 1.0)))
    duration = rng.choice((("Total time (s)", 1.0), ("duration_min", 1 / 60)))
    cost = rng.choice(("${:.4f}", "{:.6f}"))
    chosen = [
        (batch[0], of(batch[1], "{:g}".format)),
        (
            rng.choice(("Throughput (img/s)", "samples/s", "samples_per_sec")),
            of("throughput", _number(rng)),
        ),
        (step[0], of("step_s", lambda v: f"{v:.4g}{step[1]}", step[2])),
        ("Speedup", of("speedup", _number(rng, "x"))),
        (efficiency[0], of("efficiency", efficiency[1], efficiency[2])),
        ("Samples", of("samples", "{:.0f}".format)),
        (duration[0], of("duration_s", _number(rng), duration[1])),
        ("Price per GPU-hour", of("price", "${:.2f}".format)),
        ("Cost", of("cost", cost.format)),
        ("Cost per 1K samples", of("cost_per_1k", "${:.6f}".format)),
    ]
    kept = [column for column in chosen if rng.random() < 0.8]
    return [(rng.choice(("GPUs", "world_size", "Ranks")), of("ranks", "{:.0f}".format)), *kept]


def _table(rng: random.Random, rows: list[dict[str, float]], as_csv: bool) -> str:
    columns = _columns(rng)
    cells = [[header for header, _ in columns]] + [[f(row) for _, f in columns] for row in rows]
    if as_csv:
        return "\n".join(
            ",".join(f'"{cell}"' if "," in cell else cell for cell in line) for line in cells
        )
    lines = ["| " + " | ".join(line) + " |" for line in cells]
    lines.insert(1, "|" + "---|" * len(columns))
    return "# Scaling\n\nMeasured on our cluster.\n\n" + "\n".join(lines) + "\n"


def _json(rng: random.Random, rows: list[dict[str, float]]) -> str:
    places = rng.choice((2, 4, 17))
    results = [
        {
            "world_size": int(row["ranks"]),
            "total_samples": round(row["samples"]),
            "total_duration_sec": round(row["duration_s"], places),
            "throughput": round(row["throughput"], places),
            "speedup": round(row["speedup"], places),
            "efficiency": round(row["efficiency"], max(3, places)),
            "batch_size_per_gpu": row["rank_batch"],
            "step_time_ms": round(row["step_s"] * 1e3, places),
        }
        for row in rows
    ]
    return json.dumps({"model": "resnet", "results": results}, indent=rng.choice((None, 2)))


def _files(rng: random.Random, rows: list[dict[str, float]]) -> str:
    epochs, parts = rng.randint(2, 4), ["| Setting | Value |\n|---|---|\n| Batch Size | 10 |"]
    for row in rows:
        ranks, batches = int(row["ranks"]), rng.randint(5, 50)
        epoch_s = [
            10 * ranks * batches / row["throughput"] * rng.uniform(0.97, 1.03)
            for _ in range(epochs)
        ]
        total = sum(epoch_s)
        value: dict[str, Any] = {
            "num_processes": ranks,
            "num_batches_per_epoch": batches,
            "elapsed_sec": round(total + 20, 1),
            **{f"epoch_{i}": {"duration_sec": round(t, 4)} for i, t in enumerate(epoch_s)},
            **{
                f"rank_{i}": {"total_duration_sec": round(total - i / 1e3, 4)} for i in range(ranks)
            },
            "aggregated": {
                "total_duration_sec": round(total, 4),
                "throughput": round(10 * ranks * batches * epochs / total, 2),
            },
        }
        parts.append("```json\n" + json.dumps(value) + "\n```")
    return "\n\n".join(parts)


def _commprof(rng: random.Random, rows: list[dict[str, float]]) -> str:
    runs = []
    for row in rows:
        ranks = int(row["ranks"])
        times = [row["duration_s"] * rng.uniform(0.99, 1.0) for _ in range(ranks)]
        samples = [row["samples"] / ranks] * ranks
        parts = [rng.random() for _ in range(6)]
        names = ("data_ms", "forward_ms", "backward_ms", "exposed_ms", "optimizer_ms", "other_ms")
        throughput = sum(samples) / max(times)
        first = runs[0]["aggregated_metrics"]["samples_per_sec"] if runs else throughput
        metrics = {
            "avg_loss": 2.0,
            "total_duration_sec": max(times),
            "samples_per_sec": throughput,
            "step_median_ms": row["step_s"] * 1e3,
            "speedup": throughput / first,
            "efficiency": throughput / first / ranks,
            "parts": {**dict(zip(names, parts, strict=True)), "step_ms": sum(parts)},
            "overhead": {"on_over_off": {"value": 1.01, "low": 0.99, "high": 1.03}},
            "late_rank": None,
        }
        results = [
            {"rank": i, "samples": s, "duration_sec": t, "samples_per_sec": s / t}
            for i, (s, t) in enumerate(zip(samples, times, strict=True))
        ]
        runs.append(
            {"num_processes": ranks, "aggregated_metrics": metrics, "rank_results": results}
        )
    summaries = [{"num_processes": 2, "ranks": 2, "step_ms": 3.0, "efficiency": None}]
    return json.dumps({"schema_version": 1, "runs": runs, "summaries": summaries}, indent=2)
