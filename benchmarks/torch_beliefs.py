"""Tests beliefs about PyTorch with real versions of torch.

    python benchmarks/torch_beliefs.py                          ask the torch of this Python
    python benchmarks/torch_beliefs.py --python PY --python PY  ask these interpreters' torch
    python benchmarks/torch_beliefs.py --only NAME,...          ask these beliefs only
    python benchmarks/torch_beliefs.py --write                  also keep the answers and the page

Each belief is a function in ``benchmarks/beliefs``, with a sentence that was written down before
the belief was tested. The function runs with torch alone, over gloo, on ranks that are forked for
it, and returns what it saw. The answers are kept in ``benchmarks/beliefs/answers.json``, one column
per version, and ``docs/pytorch_really.md`` is made from them. If an answer differs from an earlier
run's answer, the earlier answer is printed too. BELIEF_PATIENCE=10 gives each question ten times as
long, for a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

ANSWERS = ROOT / "benchmarks/beliefs/answers.json"
PAGE = ROOT / "docs/pytorch_really.md"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", action="append", metavar="PY", help="an interpreter with torch")
    parser.add_argument("--only", metavar="NAME,...", help="only these beliefs")
    parser.add_argument("--write", action="store_true", help=f"update {ANSWERS.name} and the page")
    args = parser.parse_args()
    known: dict[str, dict[str, str]] = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    changed = 0
    for python in args.python or [sys.executable]:
        told = asked(python, args.only.split(",") if args.only else [])
        version = told["torch"].partition("+")[0]  # builds for CPUs and GPUs give the same answers
        before = known.setdefault(version, {})
        for name, answer in told["answers"].items():
            if before.get(name, answer) != answer:
                changed += 1
                print(f"torch {version}: {name} was {before[name]!r} and is {answer!r}")
        before.update(told["answers"])
    if args.write:
        from benchmarks.beliefs.page import page

        ANSWERS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
        PAGE.write_text(page(known))
        return 0
    return 1 if changed else 0


def asked(python: str, names: list[str]) -> dict[str, Any]:
    """Asks one interpreter's torch; that process shows each answer on stderr at once."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [python, "-m", "benchmarks.beliefs.asking", *names]
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if ended.returncode:
        raise SystemExit(f"{python} ended with {ended.returncode}: {ended.stdout.strip()}")
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return told


if __name__ == "__main__":
    sys.exit(main())
