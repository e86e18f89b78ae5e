"""Compares every figure of reports made by two versions of commprof.

    git worktree add ../old 8668001c && cp commprof/*.so ../old/commprof
    PYTHONPATH=../old python benchmarks/scale/equal.py dump old.pickle
    PYTHONPATH=. python benchmarks/scale/equal.py dump new.pickle
    python benchmarks/scale/equal.py compare old.pickle new.pickle

``dump`` writes all figures of reports on simulated schedules (``tests/support/builders/exact``), on
random runs, and on jobs with parts removed (``tests/support/builders/removals.py``). With
``--folder``, it adds the figures of a run or recording. ``compare`` accepts a relative difference
of 1e-9. The exit code is 1 if a figure differs, or is in one file only.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

#: Largest relative difference of two figures that agree.
TOLERANCE = 1e-9
_SHOWN = 20
#: Fields that are not compared. ``timeline`` is compared under the name "drawn timeline".
_NAMES = ("directory", "path", "timeline", "drawn", "clocks_shared")

Figures = dict[str, object]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    dump = actions.add_parser("dump")
    dump.add_argument("file", type=Path)
    dump.add_argument("--schedules", type=int, default=200, help="number of exact schedules")
    dump.add_argument(
        "--random",
        type=int,
        default=60,
        help="number of random runs, and of jobs with removed parts",
    )
    dump.add_argument(
        "--most-ranks", type=int, default=64, help="largest number of ranks of a schedule"
    )
    dump.add_argument("--folder", type=Path, action="append", default=[], help="a run or recording")
    compare = actions.add_parser("compare")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    args = parser.parse_args()
    if args.action == "dump":
        made = {name: figures() for name, figures in _inputs(args)}
        args.file.write_bytes(pickle.dumps(made))
        print(f"{len(made)} inputs, {sum(map(len, made.values())):,} figures")
        return 0
    before, after = (pickle.loads(p.read_bytes()) for p in (args.before, args.after))
    wrong = list(differences(before, after))
    for line in wrong[:_SHOWN]:
        print(line)
    cells = sum(map(len, before.values()))
    print(f"{len(before)} inputs, {cells:,} figures, {len(wrong)} differ")
    return 1 if wrong else 0


def differences(before: Mapping[str, Figures], after: Mapping[str, Figures]) -> Iterator[str]:
    """Yields a line for each figure that differs, or that only one file has."""
    for name in sorted(before.keys() | after.keys()):
        one, other = before.get(name), after.get(name)
        if one is None or other is None:
            yield f"{name}: in one file only"
            continue
        for key in sorted(one.keys() | other.keys()):
            if key not in one or key not in other:
                yield f"{name} {key}: only {'before' if key in one else 'after'}"
            elif not _agree(one[key], other[key]):
                yield f"{name} {key}: {one[key]!r} -> {other[key]!r}"


def _agree(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.shape != b.shape:
            return False
        if a.dtype.kind in "fiub" and b.dtype.kind in "fiub":
            x, y = a.astype(np.float64), b.astype(np.float64)
            scale = max(float(np.nanmax(np.abs(x), initial=0.0)), 1e-300)
            return bool(np.allclose(x, y, TOLERANCE, TOLERANCE * scale * 1e-3, equal_nan=True))
        return bool((a == b).all())
    if isinstance(a, float) and isinstance(b, float):
        both_nan = math.isnan(a) and math.isnan(b)
        return both_nan or a == b or abs(a - b) <= TOLERANCE * max(abs(a), abs(b), 1e-6)
    return a == b


def _inputs(args: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Figures]]]:
    for seed in range(args.schedules):
        yield f"schedule {seed}", lambda seed=seed: _of_schedule(seed, args.most_ranks)  # type: ignore[misc]
    for seed in range(args.random):
        yield f"random {seed}", lambda seed=seed: _of_random(seed)  # type: ignore[misc]
        yield f"removed {seed}", lambda seed=seed: _of_removal(seed)  # type: ignore[misc]
    for folder in args.folder:
        yield folder.name, lambda folder=folder: _of_folder(folder)  # type: ignore[misc]


def _of_world(run: Any) -> Figures:
    from commprof.analysis.detail import world_detail
    from commprof.analysis.step.measured import measured_world
    from commprof.analysis.world import world_result

    seen = measured_world(run)
    if seen is None:
        return {}
    try:
        result = world_result(run, seen)
    # for example a run without measured steps: both versions must refuse it
    except Exception as error:
        return {"refused": type(error).__name__}
    detail = world_detail(run, seen)
    return flat({"result": result, "detail": detail, "drawn timeline": detail.timeline})


def _of_schedule(seed: int, most_ranks: int) -> Figures:
    from tests.support.builders.exact.drawn import any_job
    from tests.support.builders.exact.recorded import recorded
    from tests.support.builders.exact.simulation import simulate
    from tests.support.builders.traces import world_run

    drawn = any_job(seed, 2 if seed % 5 == 4 else 1, False, most_ranks)
    return _of_world(world_run(recorded(drawn.job, simulate(drawn.job))))


def _of_random(seed: int) -> Figures:
    from tests.support.builders.random_run import RandomRun
    from tests.support.builders.traces import world_run

    return _of_world(world_run(RandomRun(seed).ranks))


def _of_removal(seed: int) -> Figures:
    from tests.support.builders.removals import Cases

    with tempfile.TemporaryDirectory() as place:
        Cases(Path(place)).complaints(seed)
        return _of_folder(Path(place) / "rest")


def _of_folder(folder: Path) -> Figures:
    from commprof.analysis.run import analyse_in_detail
    from commprof.errors import CommprofError

    try:
        result, details = analyse_in_detail(folder)
        timelines = [detail.timeline for detail in details]
        return flat({"result": result, "details": details, "drawn timelines": timelines})
    except CommprofError as error:
        return {"refused": str(error).replace(str(folder), "")}


def flat(value: object, name: str = "") -> Figures:
    """Returns the leaves of nested dataclasses, mappings and sequences by their path."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items() if key not in _NAMES]
    elif isinstance(value, (list, tuple)):
        items = [(str(place), item) for place, item in enumerate(value)]
    else:
        if isinstance(value, (np.generic,)):
            value = value.item()
        return {name: value if isinstance(value, (int, float, str, np.ndarray)) else str(value)}
    return {k: v for key, item in items for k, v in flat(item, f"{name}.{key}").items()}


if __name__ == "__main__":
    sys.exit(main())
