"""Argument parser of all commands: errors in one line, and options from a file."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from commprof import invocation
from commprof.commands.options.config_file import merged, read_config
from commprof.errors import UsageError
from commprof.text import printable
from commprof.workloads.spec import allowed


def _typed(prog: str) -> str:
    """Returns a parser's program name as a user must type it in this environment."""
    name, _, rest = prog.partition(" ")
    return invocation.command(*rest.split()) if name == "commprof" else prog


class _HelpAll(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **given: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **given)

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        if isinstance(parser, Parser):
            print(parser.format_whole_help(), end="")
        parser.exit()


class Parser(argparse.ArgumentParser):
    """An argument parser that reports a wrong argument in one line.

    A command with many options shows a few of them for ``--help``, and all for ``--help-all``.
    """

    _few: tuple[str, frozenset[str]] | None = None

    def shorten_help(self, description: str, options: Collection[str]) -> None:
        """Makes ``--help`` show only some options, and adds ``--help-all``, which shows all.

        Args:
            description: description for the short help.
            options: options to show, by argument name.
        """
        self._few = description, frozenset(options)
        self.add_argument("--help-all", action=_HelpAll, help="show all options, and exit")

    def format_help(self) -> str:
        """Returns the help text, in its short form if ``shorten_help`` was called."""
        if self._few is None:
            return super().format_help()
        description, names = self._few
        kept = {*names, "help", "help_all"}
        hidden = [a for a in self._actions if a.option_strings and a.dest not in kept]
        whole = self.description, [action.help for action in hidden]
        self.description = description
        for action in hidden:
            action.help = argparse.SUPPRESS
        try:
            return super().format_help() + f"\n{len(hidden)} more options: --help-all\n"
        finally:
            self.description = whole[0]
            for action, text in zip(hidden, whole[1], strict=True):
                action.help = text

    def format_whole_help(self) -> str:
        """Returns the help text with all options."""
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Prints a line and ends the process with exit code 2."""
        self.exit(2, f"{self.prog}: {printable(message)} (see {_typed(self.prog)} --help)\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parses the arguments; options in the file of ``--config`` serve as defaults.

        Unlike argparse, this method refuses unknown arguments. Its message names the most similar
        option of this command.
        """
        parsed, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}{self._nearest(rest[0])}")
        own = any(action.dest == "config" for action in self._actions)
        if not own or parsed.config is None:
            return parsed, rest
        try:
            values, script_args = merged(parsed, read_config(parsed.config, self._actions))
        except UsageError as error:
            self.exit(2, f"{self.prog}: {printable(str(error))}\n")
        self.set_defaults(**values)
        parsed, rest = super().parse_known_args(args, namespace)
        parsed.script_args = script_args
        return parsed, rest

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Converts a value. Error messages say "a number" instead of ``float``."""
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            if action.type not in (int, float):
                raise
            number = "a whole number" if action.type is int else "a number"
            raise argparse.ArgumentError(action, f"{arg_string!r} is not {number}") from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(
                action, f"unknown value {value!r}{allowed(str(value), names)}"
            )

    def _nearest(self, given: str) -> str:
        flags = [flag for action in self._actions for flag in action.option_strings]
        close = difflib.get_close_matches(given.partition("=")[0], flags, n=1)
        return f"; did you mean {close[0]}?" if close else ""
