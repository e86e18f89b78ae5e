#!/usr/bin/env python3
"""Puts a fresh report into README.md, between its markers: what the main command prints here."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Of `make run`.
DEMO = re.findall(r"^DEMO := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]
COMMAND = ("-m", "commprof.run", "--nproc", "8", *DEMO.split())
#: Lines that name the temporary directory.
DROPPED = (
    "Run directory:",
    "Run it again:",
    "Page with pictures:",
    "Your own script, train.py:",
    "See everything:",
)
BLOCK = re.compile(r"(<!-- report:[^\n]*-->\n)(.*?)(<!-- end of report -->)", re.DOTALL)


def run() -> str:
    """Runs what `make run` runs."""
    programs = Path(sys.executable).parent  # or commands would hold its path
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [sys.executable, *COMMAND, "--output", "RUN"],
            cwd=directory,
            env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(f"the run ended with exit code {done.returncode}; README.md is as it was")
    return done.stdout


def replace_report(readme: str, output: str) -> str:
    """The README with `output` as its report. ValueError if it has no markers."""
    lines = [line for line in output.splitlines() if not line.startswith(DROPPED)]
    report = "\n".join(lines).strip("\n")
    text, count = BLOCK.subn(lambda match: f"{match[1]}```\n{report}\n```\n{match[3]}", readme)
    if count != 1:
        raise ValueError(f"{count} blocks between '<!-- report: -->' and '<!-- end of report -->'")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="FILE", help="take this text, run nothing"
    )
    source = parser.parse_args().source
    path = ROOT / "README.md"
    path.write_text(replace_report(path.read_text(), source.read_text() if source else run()))
    print(f"updated {path}")


if __name__ == "__main__":
    main()
