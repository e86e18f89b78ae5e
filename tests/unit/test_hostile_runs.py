"""Damaged and hostile run directories: every command reads them or refuses them in a line.

The seeds are fixed. ``benchmarks/faults.py --fuzz N`` tries N more.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from commprof.commands import main
from tests.support.hostile import damage, little_memory, sound_run

FORMATS = ("table", "json", "markdown", "html", "csv")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = sound_run(tmp_path_factory.mktemp("sound") / "run")
    # What is loaded once is loaded before memory gets short.
    for form in FORMATS:
        assert main(["report", str(run), "--format", form, "-o", "-"]) == 0
    assert main(["trace", str(run), "--output", str(run.parent / "timeline")]) == 0
    return run


# The last ones crashed a command once.
@pytest.mark.parametrize("seed", [*range(60), 1006, 1011, 1070, 1072, 3028])
def test_damaged_runs_are_read_or_refused(
    seed: int, sound: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(seed)
    run = tmp_path / "run"
    shutil.copytree(sound, run)
    said = [damage(run, chance) for _ in range(chance.randint(1, 3))]
    print(said)  # of a failing seed
    form = FORMATS[seed % len(FORMATS)]
    with little_memory(1 << 30):
        codes = [main(["report", str(run), "--format", form, "-o", "-"])]
        if seed % 3 == 0:
            codes.append(main(["trace", str(run), "--output", str(tmp_path / "timeline")]))
    assert set(codes) <= {0, 1, 2}
    output = capfd.readouterr()
    assert "\x1b" not in output.out.replace(str(said), "")
    assert "Traceback" not in output.err
