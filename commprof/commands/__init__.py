"""The command line: one file per command, all of them listed here."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol

from commprof.commands.audit import AuditCommand
from commprof.commands.chakra import ChakraCommand
from commprof.commands.check import CheckCommand
from commprof.commands.compare import CompareCommand
from commprof.commands.env import EnvCommand
from commprof.commands.fit import FitCommand
from commprof.commands.launch_files import LaunchFilesCommand
from commprof.commands.microbench import MicrobenchCommand
from commprof.commands.predict import PredictCommand
from commprof.commands.report import ReportCommand
from commprof.commands.run import RunCommand
from commprof.commands.top import TopCommand
from commprof.commands.trace import TraceCommand
from commprof.errors import CommprofError
from commprof.report.plain_text import printable

_DESCRIPTION = """\
Measures what a PyTorch job's communication really costs.

  commprof run --nproc 8      train at 1, 2, 4 and 8 ranks and record every collective
  commprof env -- COMMAND     record a job that torchrun, srun or anything else launches
  commprof top RUN            watch a running job: where its steps go, whom they wait for
  commprof check --nproc 4    check ranks, hosts and network before training
  commprof launch-files       write what starts a recorded job on Slurm or Kubernetes

  commprof report RUN         show a recorded run again: tables, JSON, or a page with pictures
  commprof trace RUN          write it as a timeline for Perfetto or chrome://tracing
  commprof compare A B        what changed between two runs, and what of it is chance
  commprof audit FILE         check somebody's scaling report against its own arithmetic

  commprof microbench OP      measure collectives alone, by message size
  commprof fit SOURCE...      what collectives cost here, as a profile of this machine
  commprof predict RUN        the run's step on other links, world sizes, buckets and hooks
  commprof chakra RUN --output DIR   the run as Chakra execution traces, for network simulators
"""


class Command(Protocol):
    """One command."""

    #: As typed.
    name: str
    #: One line for the list of commands.
    help: str
    #: Text of the command's own --help.
    description: str

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Does it; returns the exit code."""


COMMANDS: tuple[Command, ...] = (
    RunCommand(),
    EnvCommand(),
    TopCommand(),
    CheckCommand(),
    LaunchFilesCommand(),
    ReportCommand(),
    TraceCommand(),
    CompareCommand(),
    AuditCommand(),
    MicrobenchCommand(),
    FitCommand(),
    PredictCommand(),
    ChakraCommand(),
)


class _Parser(argparse.ArgumentParser):
    """One line for a wrong argument, where argparse prints the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {printable(message)} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of ``commprof`` and ``python -m commprof``."""
    return _run(make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    """All commands; the parsed arguments carry theirs as ``command``."""
    parser = _Parser(
        prog="commprof",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for command in COMMANDS:
        sub = subparsers.add_parser(
            command.name,
            help=command.help,
            description=command.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _prepare(sub, command)
    return parser


def main_of(command_name: str, prog: str) -> int:
    """Entry of a door that is one command, such as ``python -m commprof.run``."""
    command = next(command for command in COMMANDS if command.name == command_name)
    parser = _Parser(
        prog=prog,
        description=command.description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _prepare(parser, command)
    return _run(parser, None)


def _prepare(parser: argparse.ArgumentParser, command: Command) -> None:
    command.prepare_parser(parser)
    parser.set_defaults(command=command)


def _run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """The one place where an error of the user's becomes a line and an exit code."""
    args = parser.parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a report is for every encoding
    try:
        code: int = args.command.run(args)
        return code
    except CommprofError as error:
        print(f"{parser.prog}: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (nothing is left to flush to)
        return 1
