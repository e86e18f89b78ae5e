"""Every command on run directories that are damaged or hostile, a seed for each."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from commprof.commands import main
from tests.support.builders.hostile import damage, little_memory, sound_run

_FORMATS = ("table", "json", "markdown", "html", "csv")
_MEMORY_BYTES = 1 << 30


@dataclass(frozen=True)
class Read:
    """What came of one."""

    seed: int
    #: What was done to it, and the traceback of a command that crashed on it.
    said: str
    crashed: bool


def damaged_runs(count: int, first_seed: int) -> Iterator[Read]:
    """So many, each read as soon as it is asked for."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        sound = sound_run(place / "sound")
        for seed in range(first_seed, first_seed + count):
            yield _read(seed, sound, place)


def _read(seed: int, sound: Path, place: Path) -> Read:
    chance = random.Random(seed)
    run, timeline = place / "run", place / "timeline.json"
    shutil.rmtree(run, ignore_errors=True)
    timeline.unlink(missing_ok=True)
    shutil.copytree(sound, run)
    done = [damage(run, chance) for _ in range(chance.randint(1, 3))]
    form = _FORMATS[seed % len(_FORMATS)]
    said = f"seed {seed}, {form}: {done}"
    try:
        with little_memory(_MEMORY_BYTES), _silent():
            main(["report", str(run), "--format", form, "-o", "-"])
            main(["trace", str(run), "-o", str(timeline)])
    except KeyboardInterrupt:
        raise
    except BaseException:  # whatever it is, it is a crash
        return Read(seed, f"{said}\n{traceback.format_exc()}", True)
    return Read(seed, said, False)


@contextmanager
def _silent() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
