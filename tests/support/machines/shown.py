"""What users are shown, as something to run: command lines, and blocks of code in the pages."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: How a command that users type is started from this Python.
_PROGRAMS = {
    "python": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "commprof": [sys.executable, "-m", "commprof"],
}
#: torchrun takes a free port in place of 29500, which other tests may have; Ray waits longer for
#: its workers, for the machine is shared.
_ENVIRONMENT = {
    **{"PET_STANDALONE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "100"},
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    #: Of the page, from the repository's root.
    page: str
    language: str
    text: str

    @property
    def first_line(self) -> str:
        """What tells it from the page's other blocks."""
        return self.text.partition("\n")[0].strip()

    def lines(self) -> list[str]:
        """The command lines: continued ones joined, comments taken away."""
        joined = re.sub(r"\\\n\s*", "", self.text)
        lines = (re.sub(r"(^|\s+)# .*", "", line).strip() for line in joined.splitlines())
        return [line.removeprefix("$ ") for line in lines if line]


def pages() -> list[Path]:
    """README, CONTRIBUTING and docs."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks() -> Iterator[Block]:
    """Of all pages."""
    for page in pages():
        for match in _FENCE.finditer(page.read_text()):
            yield Block(str(page.relative_to(ROOT)), match[1], match[2])


def run_shown(line: str, directory: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """A command line as it stands in a page, with this Python, in a directory."""
    program, *arguments = shlex.split(line)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [*_PROGRAMS.get(program, [program]), *arguments],
        cwd=directory,
        env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
