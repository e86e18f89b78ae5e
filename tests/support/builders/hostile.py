from __future__ import annotations

import contextlib
import io
import json
import random
import resource
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from commprof.analysis.late.standstill import Accused
from commprof.commands import main
from commprof.monitor.watchdog.hang import Hang
from commprof.monitor.watchdog.hang_files import HangFile
from commprof.monitor.watchdog.tasks import Log
from commprof.trace.blocks import pack_block, read_blocks
from commprof.trace.run.endings import Endings, LaunchedAttempt
from commprof.trace.schema import FILE_HEADER, RECORD_DTYPE, BlockType
from tests.support.builders import trace_bytes as made
from tests.support.builders.results import incidents
from tests.support.builders.run_directories import ranks_of, write_run

_EXTREMES = (0, 1, 2, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**62, 2**63, 10**30, 1.5, float("nan"), float("inf")),
    *("", "\x1b[2J", "../../etc", "x" * 10_000, [], [[]], {}, {"a": [None]}, [0] * 100),
)


def sound_run(directory: Path) -> Path:
    run = write_run(directory, ranks_of(2, 6, late_ms=5))
    world = run / "world_2"
    first, again = LaunchedAttempt(0, 1, 2, {1: -9}, 1), LaunchedAttempt(1, 3, 4, {}, 0)
    Endings(made.metadata(), (first, again)).save(world)
    hang = Hang(
        "absent",
        (Accused(1, "was not seen", "were not seen"),),
        None,
        5.0,
        (0,),
        5.5,
        3,
        "backward",
    )
    file = HangFile(world, hang, [], 1)
    file.set_threshold("5 s")
    file.add_stack(1, "", "Thread 1", "")
    log = Log(world, quiet=True)
    log.event("anomaly", "step time rose", incidents().anomalies[0][1])
    log.event("mismatch", "not the same", incidents().mismatches[0])
    return run


def damage(run: Path, chance: random.Random, kind: str = "") -> str:
    kind = kind or chance.choice(("rank_*.trace", "*.json", "*.json*"))
    files = sorted(path for path in run.rglob(kind) if path.is_file())
    path = chance.choice(files)
    if path.suffix != ".trace":
        change = chance.choice((_cut, _flip, _damage_json, _damage_json, _damage_json))
        return f"{change.__name__} {path.name}: {change(path, chance)}"
    way = chance.choice((_cut, _flip, _change_records, _change_records, _change_document))
    return f"{way.__name__} {path.name}: {way(path, chance)}"


def _cut(path: Path, chance: random.Random) -> str:
    data = path.read_bytes()
    size = chance.randrange(len(data) or 1)
    path.write_bytes(data[:size])
    return f"to {size} bytes"


def _flip(path: Path, chance: random.Random) -> str:
    data = bytearray(path.read_bytes())
    places = [chance.randrange(len(data)) for _ in range(chance.randint(1, 8)) if data]
    for place in places:
        data[place] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(data))
    return f"bits at {places}"


def _change_records(path: Path, chance: random.Random) -> str:
    name = chance.choice(RECORD_DTYPE.names or ())
    share = chance.choice((0.02, 0.3, 1.0))
    value = chance.choice(_EXTREMES)

    def change(block_type: int, payload: bytes) -> bytes:
        if block_type != BlockType.RECORDS:
            return payload
        records = np.frombuffer(payload, RECORD_DTYPE).copy()
        chosen = np.array([chance.random() < share for _ in records])
        field = records[name]
        field[chosen] = np.uint64(value).astype(field.dtype)
        return records.tobytes()

    _rewrite(path, change)
    return f"{name}={value} in {share:.0%}"


def _change_document(path: Path, chance: random.Random) -> str:
    said = []

    def change(block_type: int, payload: bytes) -> bytes:
        if block_type == BlockType.RECORDS:
            return payload
        value = json.loads(payload)
        if isinstance(value, dict) and chance.random() < 0.5:
            said.append(_change_value(value, chance))
        return json.dumps(value).encode()

    _rewrite(path, change)
    return "; ".join(said)


def _damage_json(path: Path, chance: random.Random) -> str:
    texts = [path.read_text(errors="replace")]
    if path.suffix == ".jsonl":
        texts = texts[0].splitlines()
    said = ""
    try:
        number = chance.randrange(len(texts))
        value = json.loads(texts[number])
        said = _change_value(value, chance)
        texts[number] = json.dumps(value)
    except (ValueError, IndexError, TypeError):  # an earlier change destroyed the document
        return said
    path.write_text("\n".join(texts))
    return said


def _change_value(value: Any, chance: random.Random) -> str:
    where = []
    while True:
        key = chance.choice(sorted(value) if isinstance(value, dict) else range(len(value)))
        where.append(str(key))
        inner = value[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.7:
            value = inner
            continue
        if chance.random() < 0.1:
            del value[key]
            return f"no {'.'.join(where)}"
        value[key] = chance.choice(_VALUES)
        return f"{'.'.join(where)}={str(value[key])[:40]}"


def _rewrite(path: Path, change: Any) -> None:
    data = path.read_bytes()
    try:
        found = read_blocks(path, data)
    except Exception:  # an earlier change destroyed the trace
        return
    blocks = [pack_block(b.type, change(b.type, bytes(b.payload))) for b in found.blocks]
    path.write_bytes(data[: FILE_HEADER.size] + b"".join(blocks))


@contextmanager
def little_memory(more_bytes: int) -> Iterator[None]:
    """Limits memory, so that an allocation by an unchecked length raises MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


_FORMATS = ("table", "json", "markdown", "html", "csv")
_MEMORY_BYTES = 1 << 30


@dataclass(frozen=True)
class Read:
    seed: int
    said: str
    crashed: bool


def damaged_runs(count: int, first_seed: int) -> Iterator[Read]:
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
    except BaseException:
        return Read(seed, f"{said}\n{traceback.format_exc()}", True)
    return Read(seed, said, False)


@contextmanager
def _silent() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
