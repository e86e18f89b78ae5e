"""Removes random parts of recordings; counts commprof's statements that rest on a removed part.

    PYTHONPATH=. python benchmarks/attribution/removals.py --recordings 10000

The recordings are commprof's own traces and torch.profiler's files with and without a device, of
random jobs of 2 to 4 ranks; see ``tests/support/builders/removals.py``. Nothing is timed, so the
results are the same on every machine. The exit code is 1 if any statement rests on a removed part.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.judging.demands import Demand, judged, of_all
from tests.support.builders.removals import Cases

RECORDINGS = 10_000


def demands(supported: int, tried: int, wanted: int) -> list[Demand]:
    """Returns the demand: no statement about any recording rests on a removed part.

    Args:
        supported: number of recordings with no statement that rests on a removed part.
        tried: number of recordings that were made.
        wanted: number of recordings that were asked for.
    """
    return [
        of_all(
            "recordings about which no statement of commprof rests on a removed part",
            supported,
            tried,
            wanted,
        )
    ]


def main(arguments: Sequence[str]) -> int:
    """Makes the recordings; prints each kind of statement that rests on a removed part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--recordings", type=int, default=RECORDINGS)
    parser.add_argument("--first", type=int, default=0, help="seed of the first recording")
    args = parser.parse_args(arguments)
    kinds: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    supported = 0
    with tempfile.TemporaryDirectory(prefix="commprof-removals-") as folder:
        cases = Cases(Path(folder))
        for seed in range(args.first, args.first + args.recordings):
            case, found = cases.complaints(seed)
            supported += not found
            for said in found:
                kind = case.kind, re.sub(r"-?\d[\d.e+-]*", "N", said)
                kinds[kind] += 1
                examples.setdefault(kind, f"seed {seed}, without {case.removed}: {said}")
    for kind, times in kinds.most_common():
        print(f"{times} x {kind[0]}: {kind[1]}\n    {examples[kind]}")
    return judged(demands(supported, args.recordings, args.recordings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
