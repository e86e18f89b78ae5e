"""Removes random parts of recordings, and counts statements that whole recordings contradict.

    PYTHONPATH=. python benchmarks/attribution/removals.py --recordings 10000

The recordings are of random jobs of 2 to 4 ranks: commprof's own traces, and torch.profiler's files
with and without a device. ``tests/support/builders/removals.py`` has the rules for statements. The
results do not depend on the machine. The exit code is 1 if a statement breaks a rule.
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
    """Returns the demand that the whole recordings support all statements.

    Args:
        supported: number of recordings whose statements are all supported.
        tried: number of recordings that were made.
        wanted: number of recordings that must be made.
    """
    return [
        of_all(
            "recordings with removed parts whose statements the whole recording supports",
            supported,
            tried,
            wanted,
        )
    ]


def main(arguments: Sequence[str]) -> int:
    """Makes the recordings, and prints each kind of unsupported statement."""
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
