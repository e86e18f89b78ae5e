"""``commprof audit``: check if the figures of a scaling report agree with each other."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from commprof.audit.audit import audit
from commprof.audit.findings_text import render
from commprof.errors import UsageError
from commprof.files import open_regular
from commprof.invocation import quoted

#: Size limit of a report; a larger file is refused.
_MOST_BYTES = 4_000_000


class AuditCommand:
    """The command ``commprof audit``."""

    description = """\
Reads a report of how a job scales, and checks that its figures agree with each other: throughput,
speed-up, efficiency, cost and others. Each finding names the row and quotes the two figures that
disagree. Nothing is run or measured.

  commprof audit result.json        JSON of `commprof run`, or JSON with num_processes or world_size
  commprof audit SCALING.md         tables, fenced JSON, sentences like `89% efficiency at 16 GPUs`
  commprof audit table.csv          one table with a column of ranks, GPUs or nodes

Exit code: 0 if there are no findings, 1 if there are findings, 2 if the file cannot be read as a
report. Differences that come from rounding or truncation are not findings. See docs/reading.md.
"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the argument."""
        parser.add_argument("file", type=Path, metavar="FILE", help="the report; - for stdin")

    def run(self, args: argparse.Namespace) -> int:
        """Reads the report, checks its figures and prints the findings."""
        text = _text_of(args.file)
        try:
            result = audit(text)
        except ValueError as error:
            raise UsageError(
                f"{quoted(args.file)} cannot be read as a scaling report: {error}"
            ) from None
        print(render(result, str(args.file), shutil.get_terminal_size((100, 24)).columns), end="")
        return 1 if result.findings else 0


def _text_of(path: Path) -> str:
    """Returns the file's text.

    Raises:
        UsageError: the file cannot be opened, is too large, or is not text.
    """
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(_MOST_BYTES + 1)
        else:
            with open_regular(path) as file:
                data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"cannot read {quoted(path)}: {error.strerror}; give the path of a scaling report"
        ) from None
    if len(data) > _MOST_BYTES:
        raise UsageError(
            f"{quoted(path)} has more than {_MOST_BYTES:,} bytes, too many for a scaling report; "
            "give a file with only the tables"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{quoted(path)} cannot be read as a scaling report: not UTF-8 text at byte "
            f"{error.start}; save the report as UTF-8"
        ) from None
    if "\0" in text:
        raise UsageError(
            f"{quoted(path)} cannot be read as a scaling report: it holds binary data; give a text "
            "file"
        )
    return text
