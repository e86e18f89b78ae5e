from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from commprof.analysis.inspector.communicators import split_job
from commprof.analysis.inspector.transfers import transfers_of
from commprof.commands import main
from commprof.forecast.costs.machine_profile import load_profile
from commprof.recordings.inspector import read_logs
from tests.support.builders.inspector_logs import SimulatedJob, simulate

LATENCY_US, US_PER_BYTE = 5.0, 1e-4


@pytest.fixture(scope="module")
def late_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("late") / "logs"
    simulate(2, 4, 1, steps=60, late_us={5: 1800.0}, seed=6).write(folder, "v4.3")
    return folder


@pytest.fixture(scope="module")
def even_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("even") / "logs"
    simulate(2, 4, 1, steps=60, seed=7).write(folder)
    return folder


def test_the_page_and_markdown_say_what_the_text_says(late_job: Path, tmp_path: Path) -> None:
    for shown_as in ("html", "markdown"):
        file = tmp_path / f"report.{shown_as}"
        assert main(["report", str(late_job), "--format", shown_as, "-o", str(file)]) == 0
        text = file.read_text()
        assert "host000 pid 1005 makes the others wait" in text
        assert "Inspector shows the lowest bandwidth for" in text
        assert "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES".replace("_", "") in text.replace(
            "\\_", ""
        ).replace("_", "")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<table>") == 3
    assert json.loads(page.split('id="data">')[1].split("</script>")[0])["worlds"] == []


def test_rows_of_processes_and_collectives(
    late_job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(late_job), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 8
    assert [row["pid"] for row in rows if row["late"] == "True"] == ["1005"]
    assert max(rows, key=lambda row: float(row["caused_s"]))["pid"] == "1005"
    total_s = sum(float(row["waited_s"]) for row in rows)
    assert sum(float(row["caused_s"]) for row in rows) == pytest.approx(total_s, rel=1e-6)
    assert main(["report", str(late_job), "--format", "csv", "--rows", "collectives"]) == 0
    kinds = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["op"] for row in kinds} == {
        *("all_reduce", "all_to_all", "reduce_scatter", "all_gather")
    }


def test_parquet_has_the_rows_of_csv(late_job: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "ranks.parquet"
    assert main(["report", str(late_job), "--format", "parquet", "-o", str(file)]) == 0
    table = parquet.read_table(file)
    assert table.num_rows == 8
    assert table["host"].to_pylist() == ["host000"] * 8


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--format", "csv", "--rows", "steps"], "needs steps"),
        (["--format", "csv", "--rows", "worlds"], "needs steps"),
        (["--price-per-hour", "3"], "hold no step times"),
    ],
)
def test_figures_that_need_steps_are_refused_in_one_line(
    late_job: Path, words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(late_job), *words]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1


def test_two_jobs_are_compared_by_transfer_and_waiting(
    even_job: Path, late_job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(even_job), str(late_job), "--fail-above", "5%"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "B against A: 0 slower, 0 faster, 4 same." in shown
    assert "no process stands out. Waiting in B:" in shown
    assert "host000 pid 1005 makes the others wait." in shown


def test_a_slower_transfer_fails_a_comparison(even_job: Path, tmp_path: Path) -> None:
    job = SimulatedJob(dp=8, seed=1)
    slow = SimulatedJob(dp=8, seed=2)
    for made, us in ((job, 200.0), (slow, 260.0)):
        for _ in range(200):
            made.work(500.0)
            made.collective(made.data, "AllReduce", 1 << 20, us)
    job.write(tmp_path / "a")
    slow.write(tmp_path / "b")
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(["compare", *paths, "--fail-above", "10%"]) == 1
    assert main(["compare", *reversed(paths), "--fail-above", "10%"]) == 0
    assert main(["compare", paths[0], str(tmp_path / "nowhere")]) == 2
    (tmp_path / "other.json").write_text("{}")
    assert main(["compare", paths[0], str(tmp_path / "other.json")]) == 2
    assert main(["compare", *paths, "--format", "json"]) == 2


def _priced(us_per_byte: float, folder: Path) -> None:
    for ranks in (8, 16):
        job = SimulatedJob(dp=ranks, per_host=8, seed=ranks)
        for _ in range(12):
            for power in (16, 18, 20, 22, 24):
                size_bytes, steps = 1 << power, 2 * (ranks - 1)
                job.work(300.0)
                us = steps * (LATENCY_US + us_per_byte * size_bytes / ranks)
                job.collective(job.data, "AllReduce", size_bytes, us)
        job.write(folder / f"job{ranks}")


def test_transfer_costs_are_fitted_by_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _priced(US_PER_BYTE, tmp_path)
    profile, logs = tmp_path / "profile.json", [str(tmp_path / f"job{n}") for n in (8, 16)]
    assert main(["fit", *logs, "--output", str(profile)]) == 0
    shown = capsys.readouterr().out
    assert "transfers in a running job" in " ".join(shown.split())
    links = load_profile(profile).links
    for link, ranks in (("same_host", 8), ("other_host", 16)):
        curve = links[link].curves["all_reduce"]
        for size_bytes in (1 << 17, 1 << 21):
            true_s = 2 * (ranks - 1) * (LATENCY_US + US_PER_BYTE * size_bytes / ranks) / 1e6
            assert curve.time_s(size_bytes, ranks) == pytest.approx(true_s, rel=0.06)


def test_logs_with_few_sizes_are_refused_by_fit(
    late_job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", str(late_job), "--output", str(tmp_path / "p.json")]) == 1
    assert "latency and rate need 3 sizes or more" in capsys.readouterr().err


def test_hosts_that_are_not_known_are_no_link_class(tmp_path: Path) -> None:
    job = SimulatedJob(dp=2)
    for _ in range(5):
        job.collective(job.data, "AllReduce", 1 << 20, 100.0)
    job.write(tmp_path)
    for file in tmp_path.iterdir():
        text = file.read_text().replace('"host000"', '""').replace('"nnodes": 1', '"nnodes": -1')
        file.write_text(text)
    (found,) = transfers_of(split_job(read_logs(tmp_path)))
    assert found.crosses_hosts is None
    assert len(found.samples_us) == 5
