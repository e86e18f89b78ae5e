"""``benchmarks/faults.py --fuzz N`` tries N more seeds."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest

from commprof.commands import main
from tests.support.builders.hostile import damage, little_memory, sound_run
from tests.support.builders.run_directories import ranks_of, write_run

FORMATS = ("table", "json", "markdown", "html", "csv")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = sound_run(tmp_path_factory.mktemp("sound") / "run")
    # The commands import their modules here, before a test limits the memory.
    for form in FORMATS:
        assert main(["report", str(run), "--format", form, "-o", "-"]) == 0
    assert main(["trace", str(run), "--output", str(run.parent / "timeline")]) == 0
    return run


# The last five seeds once crashed a command.
@pytest.mark.parametrize("seed", [*range(60), 1006, 1011, 1070, 1072, 3028])
def test_damaged_runs_are_read_or_refused(
    seed: int, sound: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(seed)
    run = tmp_path / "run"
    shutil.copytree(sound, run)
    said = [damage(run, chance) for _ in range(chance.randint(1, 3))]
    print(said)
    form = FORMATS[seed % len(FORMATS)]
    with little_memory(1 << 30):
        codes = [main(["report", str(run), "--format", form, "-o", "-"])]
        if seed % 3 == 0:
            codes.append(main(["trace", str(run), "--output", str(tmp_path / "timeline")]))
    assert set(codes) <= {0, 1, 2}
    output = capfd.readouterr()
    assert "\x1b" not in output.out.replace(str(said), "")
    assert "Traceback" not in output.err


@pytest.mark.parametrize("name", ["nodes", "scaling", "strategy", "training", "reproduction"])
def test_a_null_setting_of_a_run_counts_as_not_given(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", ranks_of(2, 9), **{name: None})
    assert main(["report", str(run), "--all"]) == 0
    assert "None" not in capsys.readouterr().out


_READERS = (
    *("report", "report --format json", "report --format html -o -", "trace", "fit", "predict"),
    *("chakra --output {out}", "top --once", "compare {sound}"),
)


def _planted(place: Path, kind: str) -> None:
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        place.symlink_to("/dev/zero")
    elif kind == "directory":
        place.mkdir()
    elif kind == "nested":
        place.write_text("[" * 200_000)
    else:
        with place.open("wb") as file:
            file.truncate(200 << 30)


@pytest.mark.parametrize("kind", ["pipe", "device", "sparse", "directory", "nested"])
@pytest.mark.parametrize(
    "name",
    [
        *("run.json", "predictions.json", "world_2/rank_0.trace", "world_2/rank_0.json"),
        *("world_2/endings.json", "world_2/hang_1.json"),
    ],
)
def test_pipes_and_huge_files_in_a_run_neither_block_nor_exhaust_memory(
    name: str,
    kind: str,
    sound: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = tmp_path / "run"
    shutil.copytree(sound, run)
    _planted(run / name, kind)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    with little_memory(1 << 30):
        for command in _READERS:
            verb, *options = command.format(out=tmp_path / "out", sound=sound).split()
            assert main([verb, str(run), *options]) in (0, 1, 2), command
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["pipe", "nested", "sparse"])
def test_a_profile_or_sweep_that_is_no_regular_json_file_is_refused(
    kind: str, sound: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    planted = tmp_path / "planted.json"
    _planted(planted, kind)
    assert main(["predict", str(sound), "--profile", str(planted)]) == 1
    assert main(["top", str(sound), "--once", "--profile", str(planted)]) == 1
    if kind != "pipe":
        assert main(["fit", str(planted)]) == 2
        assert main(["compare", str(planted), str(planted)]) == 2
    assert str(planted) in capfd.readouterr().err


def test_no_command_prints_terminal_control_characters(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b[2J\x1b]0;title\x07\0" + "x" * 100_000
    ranks = ranks_of(2, 12, group=evil)
    for rank in ranks:
        rank.metadata |= {"backend": evil, "command": [evil], "hook": evil}
    run = str(write_run(tmp_path / "run", ranks, command=evil, backend=evil, description=evil))
    for command in _READERS:
        verb, *options = command.format(out=tmp_path / "out", sound=run).split()
        main([verb, run, *options, *(["--output", str(tmp_path / "p")] if verb == "fit" else [])])
        written = capfd.readouterr()
        for text in (written.out, written.err):
            assert not {"\x1b", "\0", "\x07"} & set(text), command
    assert main(["fit", run, "--output", str(tmp_path / "p")]) == 0
    assert max(map(len, capfd.readouterr().out.splitlines())) < 1000


@pytest.mark.parametrize("command", ["report", "trace"])
def test_a_run_directory_without_read_permission_is_refused(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    denied, look_at = tmp_path / "denied", os.stat
    denied.mkdir()

    def refuse(path: Path, **_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(path))

    def looked_at(path: Any, **values: Any) -> os.stat_result:
        is_within = isinstance(path, str | Path) and denied in Path(path).parents
        return refuse(Path(path)) if is_within else look_at(path, **values)

    monkeypatch.setattr(os, "stat", looked_at)
    monkeypatch.setattr(Path, "iterdir", refuse)
    assert main([command, str(denied)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    said = f"[Errno 13] Permission denied: '{denied}/run.json'"
    assert line == f"commprof: {denied} cannot be read: {said}"
