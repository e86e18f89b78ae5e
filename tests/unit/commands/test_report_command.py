from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from commprof.analysis.predicted import read_predictions
from commprof.commands import main, trace
from commprof.commands.options.output_file import writable_file, writable_output, write_output
from commprof.errors import CommprofError, UsageError
from commprof.forecast.costs.machine_profile import MachineProfile, save_profile
from commprof.report.sections import predicted as predicted_table
from tests.support.builders.flight_dumps import dump, entry, write_dumps
from tests.support.builders.run_directories import answer, ranks_of, write_predictions, write_run
from tests.support.builders.traces import MS


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("run")
    write_predictions(base / "p.json", answer(16, 1000.0))
    return write_run(base / "r", ranks_of(1, 9), ranks_of(2, 9))


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [
        ([], "timed: a workload. [gloo, torch "),
        (["--format", "json"], '{\n  "schema_version": 3,'),
        (["--format", "markdown"], "# commprof report\n"),
        (["--format", "csv"], "world_size,measured_steps,"),
        (["--format", "csv", "--rows", "steps"], "world_size,rank,step,step_ms,"),
        (["--format", "html", "-o", "-"], "<!doctype html>\n"),
    ],
)
def test_a_report_file_has_the_same_text_as_the_terminal(
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


def test_an_html_report_overwrites_only_the_default_file_without_force(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", str(run), "--format", "html"]
    assert main(words) == 0
    assert capsys.readouterr().out == f"Written: {run}/report.html\n"
    assert main(words) == 0
    words += ["-o", f"{run}/report.html"]
    assert main(words) == 2
    assert "exists already; give --force" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0


def test_a_report_shows_the_predictions_stored_in_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "r", ranks_of(1, 9), ranks_of(2, 9))
    words = ["report", str(run), "--format", "markdown"]
    assert main(words) == 0
    assert predicted_table.CAPTION not in capsys.readouterr().out
    write_predictions(run / "predictions.json", answer(16, 1000.0))
    assert main(words) == 0
    assert "| 16 | as recorded |" in capsys.readouterr().out
    named = write_predictions(tmp_path / "p.json", answer(32, 1000.0))
    assert main([*words, "--predictions", str(named)]) == 0
    shown = capsys.readouterr().out
    assert "| 32 | as recorded |" in shown
    assert "| 16 | as recorded |" not in shown


def test_predict_stores_its_answers_in_the_run_for_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    run = write_run(tmp_path / "r", ranks_of(2, 12))
    assert main(["predict", str(run), "--format", "json"]) == 0
    out, err = capsys.readouterr()
    file = run / "predictions.json"
    assert file.read_text() == out
    assert err == (
        f"commprof: wrote {file}; to see the predictions in a report, "
        f"run: commprof report {run} --format html\n"
    )
    assert read_predictions(file).points == ()
    assert main(["report", str(run), "--format", "markdown"]) == 0
    assert predicted_table.CAPTION not in capsys.readouterr().out
    file.unlink()
    file.mkdir()
    assert main(["predict", str(run)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Predicted from")
    assert err == f"commprof: cannot write {file}: Is a directory\n"
    assert {path.name for path in run.iterdir()} == {file.name, "run.json", "world_2"}


def test_unreadable_predictions_in_a_run_are_left_out_with_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "r", ranks_of(1, 9))
    (run / "predictions.json").write_text("[]")
    assert main(["report", str(run), "--format", "markdown"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("# commprof report")
    assert f"left out: {run}/predictions.json holds no predictions" in err
    assert main(["report", str(run), "--all"]) == 0
    assert capsys.readouterr().err == ""


def test_every_report_format_shows_the_cost_for_a_price(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    priced = ["report", str(run), "--price-per-hour", "3.6", "--price-per", "rank"]
    assert main(priced) == 0
    assert "Cost at 3.6 per hour and rank:" in capsys.readouterr().out
    assert main([*priced, "--format", "json", "--epoch-samples", "1000"]) == 0
    cost = json.loads(capsys.readouterr().out)["cost"]
    assert [row["billed"] for row in cost["rows"]] == [1, 2]
    # Each rank has 10 samples per step of 101.5 ms, and costs 0.001 per second.
    assert cost["rows"][1]["s_per_epoch"] == pytest.approx(1000 / (20 / 0.1015))
    assert cost["rows"][1]["cost_per_epoch"] == pytest.approx(0.002 * 1000 / (20 / 0.1015))
    assert main([*priced, "--format", "markdown"]) == 0
    assert "## Cost" in capsys.readouterr().out


@pytest.mark.parametrize("format", ["csv", "json", "markdown"])
def test_written_reports_pass_the_audit(
    tmp_path: Path, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "r", ranks_of(1, 9), ranks_of(2, 9, slower_ms=30))
    file = str(tmp_path / "report")
    words = ["--format", format, "-o", file, "--price-per-hour", "3.6", "--price-per", "rank"]
    assert main(["report", str(run), *words, "--epoch-samples", "1000"]) == 0
    capsys.readouterr()
    assert main(["audit", file]) == 0
    assert "no findings in" in capsys.readouterr().out


def test_predictions_from_a_given_file_are_shown_in_the_report(
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


@pytest.mark.parametrize("format", ["table", "json", "markdown", "html"])
def test_a_run_of_two_hosts_without_counters_is_reported(
    tmp_path: Path, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = ranks_of(2, 12)
    ranks[1].metadata["machine"].update(boot_id="other", hostname="h2")
    for at in (1000, 1300 * MS):
        ranks[1].clock(at, 0, 1000)
    run = write_run(tmp_path / "r", ranks)
    assert main(["report", str(run), "--format", format, "-o", "-"]) == 0
    assert "bound by" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rows", "steps"], "--rows is for --format csv and parquet, not for table"),
        (["--price-per", "rank"], "--price-per needs --price-per-hour"),
        (["--epoch-samples", "7"], "--epoch-samples needs --price-per-hour"),
        (["--price-per-hour", "0"], "--price-per-hour 0.0 is out of range"),
        (["--price-per-hour", "nan"], "--price-per-hour nan is out of range"),
        (["--price-per-hour", "1", "--epoch-samples", "0"], "--epoch-samples 0 is out of range"),
        (["--predictions", "p.json"], "--predictions is for --format html and markdown"),
        (["-o", "missing/a"], "missing is not a directory"),
    ],
)
def test_unusable_report_options_are_refused(
    run: Path, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(run), *arguments]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("format", ["table", "html", "parquet"])
def test_a_report_of_a_missing_directory_is_refused(
    tmp_path: Path, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path / "none"), "--format", format]) == 1
    assert "none does not exist; give a directory that" in capsys.readouterr().err


def test_report_diagnoses_flight_recorder_dumps(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done, waits = entry("0", 1, state="completed"), entry("0", 2)
    groups = {"0": [0, 1]}
    folder = str(write_dumps(tmp_path / "dumps", dump(groups, done, waits), dump(groups, done)))
    assert main(["report", folder]) == 0
    shown = capfd.readouterr().out
    assert "\nThe job hangs because of rank 1; 1 other rank waits for it.\n" in shown
    assert "- rank 0 waits in all_reduce number 2 of group '0' (GROUP_0) for rank 1\n" in shown
    assert main(["report", folder, "--format", "json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["cause"], [one["rank"] for one in found["culprits"]]) == ("absent", [1])
    assert main(["report", folder, "--format", "html"]) == 2
    assert "html is not for Flight Recorder dumps" in capfd.readouterr().err
    assert main(["report", folder, "--price-per-hour", "3"]) == 2
    assert "--price-per-hour is not for Flight Recorder dumps" in capfd.readouterr().err


def test_write_output_creates_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    writable_output(path, force=False)
    write_output(path, "µ")
    assert path.read_bytes() == "µ".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_an_existing_output_file_is_overwritten_only_with_force(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(UsageError, match="--force"):
        writable_output(path, force=False)
    writable_output(path, force=True)
    write_output(path, b"new")
    assert path.read_text() == "new"


@pytest.mark.parametrize("name", ["", "missing/a.txt"])
def test_an_output_path_that_cannot_be_a_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="director"):
        writable_output(tmp_path / name, force=True)


def test_a_result_file_that_would_replace_a_device_or_pipe_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (Path("/dev/null"), pipe):
        with pytest.raises(UsageError, match=f"--json {path}: it is a device or pipe"):
            writable_file(path)


def test_a_profile_or_timeline_never_replaces_a_device_or_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refused = f"cannot write {pipe}: it is a device or pipe; name another file"
    with pytest.raises(CommprofError, match=refused):
        save_profile(MachineProfile({}), pipe)
    with pytest.raises(UsageError, match=refused), trace._written(pipe):
        pass
    assert pipe.is_fifo()


def test_output_to_a_device_keeps_the_device(tmp_path: Path) -> None:
    writable_output(Path("/dev/null"), force=False)
    write_output(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(UsageError, match="cannot write /dev/full: No space left on device"):
        write_output(Path("/dev/full"), "text")
