"""Splits a ``commprof run`` command into parts, to build the same command with other options."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from commprof import invocation

#: First words of a ``commprof run`` command, as ``run.json`` holds them.
_ENTRY_POINTS = (
    ("python", "-m", "commprof.run"),
    ("python", "-m", "commprof", "run"),
    ("commprof", "run"),
)


@dataclass(frozen=True)
class RecordedCommand:
    """The parts of a ``commprof run`` command."""

    options: tuple[str, ...]
    #: The script, or ``-m`` and a module, followed by arguments; empty if the command has none.
    script: tuple[str, ...]

    def has(self, name: str) -> bool:
        """True if commprof gets this option; options of the script do not count."""
        return any(_name(word) == name for word in self.options)

    def value(self, name: str) -> str:
        """Returns the last value that the command gives to an option of commprof; empty if none."""
        found = ""
        for word, following in zip(self.options, (*self.options[1:], ""), strict=True):
            if _name(word) == name:
                found = word.partition("=")[2] if "=" in word else following
        return found

    def without(self, names: Collection[str]) -> RecordedCommand:
        """Returns the command without these options, each of which must take one value."""
        return replace(self, options=_replaced(self.options, names, ()))

    def with_in_place(self, name: str, words: Sequence[str]) -> RecordedCommand:
        """Returns the command with ``words`` in place of the option ``name`` and its value.

        If the command lacks this option, ``words`` come before its other options.
        """
        if not self.has(name):
            return replace(self, options=(*words, *self.options))
        return replace(self, options=_replaced(self.options, (name,), words))

    @property
    def text(self) -> str:
        """The command as a shell line that runs this environment's commprof."""
        return invocation.command("run", *self._quoted)

    def typed_in(self, directory: str) -> str:
        """Returns ``(cd DIRECTORY && COMMAND)``, to run the command in ``directory``.

        Returns only the command if ``directory`` is empty, is the current directory or is missing.
        """
        if directory in ("", os.getcwd()) or not os.path.isdir(directory):
            return self.text
        command = invocation.command("run", *self._quoted, anywhere=True)
        return f"(cd {invocation.quoted(directory)} && {command})"

    @property
    def _quoted(self) -> list[str]:
        return [invocation.quoted(word) for word in (*self.options, *self.script)]


def taken_apart(command: str, script: Sequence[str] = ()) -> RecordedCommand | None:
    """Splits a command into its parts; None if it is not a ``commprof run`` of the expected form.

    Args:
        command: the command as ``run.json`` holds it.
        script: the script's words as ``run.json`` holds them. If a configuration file names the
            script, these words are not in the command.
    """
    try:
        words = tuple(shlex.split(command))
    except ValueError:
        return None
    entry = next((each for each in _ENTRY_POINTS if words[: len(each)] == each), None)
    if entry is None:
        return None
    rest, own = words[len(entry) :], tuple(script)
    if own and rest[-len(own) :] == own:
        return RecordedCommand(rest[: -len(own)], own)
    found = RecordedCommand(rest, ())
    return None if own and not found.has("--config") else found


def _replaced(
    options: Sequence[str], names: Collection[str], words: Sequence[str]
) -> tuple[str, ...]:
    """Removes options and their values; puts ``words`` in place of the first removed option."""
    kept: list[str] = []
    skip, rest = False, list(words)
    for word in options:
        if skip:
            skip = False
        elif _name(word) in names:
            skip = "=" not in word
            kept += rest
            rest = []
        else:
            kept.append(word)
    return tuple(kept)


def _name(word: str) -> str:
    return word.partition("=")[0]
