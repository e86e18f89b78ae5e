"""Tests beliefs about PyTorch with real versions of torch.

    python benchmarks/torch_beliefs.py                          ask the torch of this Python
    python benchmarks/torch_beliefs.py --python PY --python PY  ask these interpreters' torch
    python benchmarks/torch_beliefs.py --only NAME,...          ask these beliefs only
    python benchmarks/torch_beliefs.py --write                  also keep the answers and the page

Each belief is a function in ``benchmarks/beliefs``, and a sentence that was written before the
test. The function uses torch without commprof, over gloo, on forked ranks, and returns an answer.
The answers are kept by version in ``benchmarks/beliefs/answers.json``, from which
``docs/pytorch_really.md`` is made. If an answer differs from the kept answer, both are printed. On
a busy machine, BELIEF_PATIENCE=10 gives each question ten times as long.
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
    """Asks one interpreter's torch, in a process that shows each answer on stderr."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [python, "-m", "benchmarks.beliefs.asking", *names]
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if ended.returncode:
        raise SystemExit(f"{python} ended with {ended.returncode}: {ended.stdout.strip()}")
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return told


if __name__ == "__main__":
    sys.exit(main())
