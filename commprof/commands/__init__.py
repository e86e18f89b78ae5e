"""The command line: one file per command, listed here, and loaded when it is given."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from commprof import invocation
from commprof._version import __version__
from commprof.commands.options.parser import Parser
from commprof.errors import CommprofError
from commprof.text import printable

_DESCRIPTION = """\
Measures what a PyTorch job's communication really costs.

  commprof run --nproc 8      train at 1, 2, 4 and 8 ranks and record every collective
  commprof env -- COMMAND     record a job that torchrun, srun or anything else launches
  commprof wrap train.py      record one rank, where a launcher starts each of them
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
    """Interface of one command."""

    #: Text of the command's own --help.
    description: str

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Runs the command; returns the exit code."""


#: Name as typed: one line for the list of commands. ``launch-files`` is the class
#: ``LaunchFilesCommand`` in the file ``launch_files.py``.
COMMANDS = {
    "run": "train at several world sizes and report each",
    "env": "record a job that something else launches",
    "wrap": "record one rank's script, under torchrun or another launcher",
    "top": "watch a running job in the terminal",
    "check": "check ranks, hosts and network before training",
    "launch-files": "write a Slurm script or Kubernetes manifest for a recorded job",
    "report": "show a recorded run again",
    "trace": "write a recorded run as a timeline for Perfetto",
    "compare": "compare two recorded runs, or two microbenchmark results",
    "audit": "check a scaling report against its own arithmetic",
    "microbench": "measure collectives alone, by message size",
    "fit": "fit what collectives cost here, for predictions",
    "predict": "predict a recorded run's step in other settings",
    "chakra": "write a recorded run as Chakra execution traces",
}


def load(name: str) -> Command:
    """Imports one command, and with it what it needs: a report needs no torch."""
    module = importlib.import_module(f"commprof.commands.{name.replace('-', '_')}")
    command: Command = getattr(module, f"{name.title().replace('-', '')}Command")()
    return command


class _CommandParser(Parser):
    """The parser of one command, which loads the command when its arguments are parsed."""

    command_name = ""
    _loaded = False

    def prepare(self) -> None:
        """Adds what the command takes."""
        if self.command_name and not self._loaded:
            self._loaded = True
            command = load(self.command_name)
            self.description = invocation.examples(command.description)
            command.prepare_parser(self)
            self.set_defaults(command=command)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Loads the command first."""
        self.prepare()
        return super().parse_known_args(args, namespace)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of ``commprof`` and ``python -m commprof``."""
    return _run(make_parser(), argv)


def make_parser() -> argparse.ArgumentParser:
    """Makes the parser of all commands; parsed arguments carry theirs as ``command``."""
    parser = Parser(
        prog="commprof",
        description=invocation.examples(_DESCRIPTION),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"commprof {__version__}")
    parser.set_defaults(command=None)
    subparsers = parser.add_subparsers(metavar="COMMAND", parser_class=_CommandParser)
    for name, help_line in COMMANDS.items():
        sub = subparsers.add_parser(
            name, help=help_line, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        sub.command_name = name
    return parser


def main_of(command_name: str) -> int:
    """Main function of an entry point that is one command, such as ``python -m commprof.run``."""
    parser = _CommandParser(
        prog=f"commprof {command_name}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.command_name = command_name
    return _run(parser, None)


def _run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """The one place where an error of the user's becomes a line and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a report is for every encoding
    try:
        args = parser.parse_args(argv)
        if args.command is None:
            parser.print_help()
            return 0
        code: int = args.command.run(args)
        return code
    except CommprofError as error:
        print(f"{parser.prog}: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package == "commprof":
            raise
        print(f"{parser.prog}: {_missing(package)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (nothing is left to flush to)
        return 1


def _missing(package: str) -> str:
    """One of the packages that commprof needs is not there: another Python, or half installed."""
    return (
        f"the package {package} is not installed for {sys.executable}: {invocation.pip(package)}, "
        "or take the Python that commprof was installed for"
    )
