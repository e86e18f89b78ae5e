"""The command line of commprof. A command's module is imported when a user runs the command."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from commprof import invocation, satellites
from commprof._version import __version__
from commprof.commands.options.parser import Parser
from commprof.errors import CommprofError, UsageError
from commprof.launched import script_first
from commprof.text import listed, printable

_DESCRIPTION = """\
Measures what a PyTorch job's communication really costs.

  commprof run --nproc 8      train at 1, 2, 4 and 8 ranks and record every collective
  commprof env -- COMMAND     record a job that torchrun, srun or anything else launches
  commprof wrap train.py      record one rank's script, under a launcher that starts each rank
  commprof top RUN            watch a running job: where step time goes, which rank others wait for
  commprof check --nproc 4    check ranks, hosts and network before training
  commprof launch-files       write a Slurm script or Kubernetes manifest for a recorded job

  commprof report RUN         show a recorded run again: tables, JSON, or a page with pictures
  commprof trace RUN          write a recorded run as a timeline for Perfetto or chrome://tracing
  commprof compare A B        show what changed between two runs, and if it is more than noise
"""


class Command(Protocol):
    """Interface of one command."""

    #: Text of the command's own --help.
    description: str

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Runs the command; returns the exit code."""


#: Help lines of this package's commands, by command name. The command ``launch-files`` is the class
#: ``LaunchFilesCommand`` in the file ``launch_files.py``.
_OWN_COMMANDS = {
    "run": "train at several world sizes and report each",
    "env": "record a job that something else launches",
    "wrap": "record one rank's script, under torchrun or another launcher",
    "top": "watch a running job in the terminal",
    "check": "check ranks, hosts and network before training",
    "launch-files": "write a Slurm script or Kubernetes manifest for a recorded job",
    "report": "show a recorded run again",
    "trace": "write a recorded run as a timeline for Perfetto",
    "compare": "compare two recorded runs, or two microbenchmark results",
}


def homes() -> dict[str, tuple[str, str]]:
    """Returns the help line and the ``module:class`` of each command, by command name."""
    result = {}
    for name, help_line in _OWN_COMMANDS.items():
        module = f"commprof.commands.{name.replace('-', '_')}"
        result[name] = help_line, f"{module}:{name.title().replace('-', '')}Command"
    for seam in satellites.all_commands():
        result |= seam.COMMANDS
    return result


def load(name: str) -> Command:
    """Imports one command, without the packages of other commands.

    Raises:
        UsageError: the command does not exist, or its optional package is not installed.
    """
    if name not in (known := homes()):
        raise UsageError(
            f"this installation of commprof has no command {name} (it has {listed(known)})"
        )
    module, _, class_name = known[name][1].partition(":")
    command: Command = getattr(importlib.import_module(module), class_name)()
    return command


class _CommandParser(Parser):
    """Parser of one command. It imports the command only when it parses arguments."""

    command_name = ""
    _loaded = False

    def prepare(self) -> None:
        if self.command_name and not self._loaded:
            self._loaded = True
            command = load(self.command_name)
            self.description = invocation.examples(command.description)
            command.prepare_parser(self)
            self.set_defaults(command=command)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        self.prepare()
        return super().parse_known_args(args, namespace)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``commprof`` and ``python -m commprof``."""
    return _run(make_parser(), _of_wrap(sys.argv[1:] if argv is None else argv))


def _of_wrap(words: Sequence[str]) -> Sequence[str]:
    """Moves a launcher's ``--local_rank=N`` behind the script that ``wrap`` runs.

    ``deepspeed --no_python commprof wrap train.py`` starts ``commprof --local_rank=0 wrap ...``.
    """
    command, *rest = script_first(words) or [""]
    return ["wrap", *script_first(rest)] if command == "wrap" else words


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands. The chosen command is stored as ``args.command``."""
    parser = Parser(
        prog="commprof",
        description=invocation.examples(_overview()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"commprof {__version__}")
    parser.set_defaults(command=None)
    subparsers = parser.add_subparsers(metavar="COMMAND", parser_class=_CommandParser)
    for name, (help_line, _) in homes().items():
        sub = subparsers.add_parser(
            name, help=help_line, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        sub.command_name = name
    return parser


def _overview() -> str:
    return "\n".join([_DESCRIPTION, *(seam.OVERVIEW for seam in satellites.all_commands())])


def main_of(command_name: str) -> int:
    """Runs one command, for modules such as ``python -m commprof.run``; returns the exit code."""
    parser = _CommandParser(
        prog=f"commprof {command_name}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.command_name = command_name
    return _run(parser, None)


def _run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A report may contain characters that the output's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        args = parser.parse_args(argv)
        if args.command is None:
            parser.print_help()
            return 0
        code: int = args.command.run(args)
        # If the pipe is closed, this raises BrokenPipeError, which is handled below.
        sys.stdout.flush()
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
    except PermissionError as error:
        if error.filename is None:
            raise
        shown = invocation.quoted(str(error.filename))
        advice = "change its permissions, or name another path"
        print(f"{parser.prog}: no permission to use {shown}; {advice}", file=sys.stderr)
        return UsageError.exit_code
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (nothing is left to flush to)
        return 1


def _open_closed_streams() -> None:
    """Opens the null device in place of each closed standard stream.

    Python replaces a closed stream by None, which has no ``isatty()``. The ranks inherit the null
    device.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = open(os.devnull, mode)  # noqa: SIM115  (stays open until the process ends)
            os.set_inheritable(null.fileno(), True)
            setattr(sys, name, null)


def _missing(package: str) -> str:
    return (
        f"the package {package} is not installed for {sys.executable}: {invocation.pip(package)}, "
        "or use the Python that commprof was installed for"
    )
