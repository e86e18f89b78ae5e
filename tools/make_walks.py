"""Writes the walks of docs/architecture.md: the folders whose functions a command calls.

    python -m tools.make_walks [FILE]

FILE: where to write the page, instead of docs/architecture.md.

Each walk runs a command of commprof in this process. The page lists the folders in the order of
their first call, with the function that is called first in each folder.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from commprof.commands import main as commprof
from tests.support.builders.profiler_traces import both
from tests.support.builders.run_directories import ranks_of, write_run

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/architecture.md"
BEGIN, END = "<!-- walks: python -m tools.make_walks -->\n", "<!-- end of walks -->\n"


def _report(place: Path) -> list[str]:
    return ["report", str(write_run(place / "run", ranks_of(2, 12))), "--all"]


def _hook(_: Path) -> list[str]:
    return ["run", "--nproc", "2", "--hook", "topk:ratio=0.01", "--dry-run"]


def _profiler(place: Path) -> list[str]:
    return ["report", str(both(place / "traces")), "--all"]


#: Title of each walk, and a function that returns the words of the walk's command. The function
#: may write files into a folder.
WALKS: dict[str, Callable[[Path], list[str]]] = {
    "From trace files to the report (`commprof report RUN --all`)": _report,
    "From `--hook topk:ratio=0.01` to the ranks' command (`commprof run --dry-run`)": _hook,
    "From a file of torch.profiler to the report (`commprof report FOLDER --all`)": _profiler,
}


def rooms(words: list[str]) -> dict[str, str]:
    """Runs a command, and returns the function that is called first in each folder.

    Raises:
        RuntimeError: the command failed.
    """
    entered: dict[str, str] = {}
    package = ROOT / "commprof"

    def called(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_name.startswith("<"):
            return
        if not code.co_filename.startswith(f"{package}/") or not code.co_flags & 0x2:
            return  # not a function of commprof, or the body of a module or class
        folder, _, name = code.co_filename[len(f"{ROOT}/") :].rpartition("/")
        if folder not in entered and not _is_importing(frame, package):
            entered[folder] = f"{name}: {code.co_name}"

    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        sys.setprofile(called)
        try:
            status = commprof(words)
        finally:
            sys.setprofile(None)
    if status:
        raise RuntimeError(f"{words} ended with {status}: {output.getvalue()}")
    return entered


def _is_importing(frame: FrameType | None, package: Path) -> bool:
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(f"{package}/"):
            return True
        frame = frame.f_back
    return False


def walks() -> str:
    """Returns the part of the page between its marks."""
    lines = []
    for title, command in WALKS.items():
        with tempfile.TemporaryDirectory() as place:
            entered = rooms(command(Path(place)))
        lines += ["", f"### {title}", "", f"{len(entered)} folders.", ""]
        lines += ["| folder | first call |", "|---|---|"]
        lines += [f"| `{folder}` | `{first}` |" for folder, first in entered.items()]
    return "\n".join([*lines, "", ""])


def page() -> str:
    """Returns the page with new walks."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + walks() + END + after


if __name__ == "__main__":
    Path(*sys.argv[1:] or [PAGE]).write_text(page())
