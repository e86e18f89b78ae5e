"""Command lines of commprof and pip that a user can copy and run in this environment."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

#: Names of distributions by name of the module, where the two names differ.
_DISTRIBUTIONS = {"yaml": "PyYAML", "sklearn": "scikit-learn", "PIL": "pillow"}


def command(*words: str, anywhere: bool = False) -> str:
    """Returns the command line ``commprof WORDS`` for this environment.

    If the shell would not find this environment's program by its name, the program's path is given.
    If commprof is not installed, ``python -m commprof`` is given.

    Args:
        words: arguments, already quoted for a shell.
        anywhere: True if the command must also work in other directories.
    """
    return " ".join([*_program("commprof", ("-m", "commprof"), anywhere), *words])


def module(name: str) -> str:
    """Returns the command line ``python -m NAME`` for the Python of this process."""
    return " ".join([*_program("python", (), False), "-m", name])


def examples(text: str) -> str:
    """Replaces ``commprof`` in a help text's indented examples by this environment's command."""
    return re.sub(r"(?m)(?<=^  )commprof(?= )|(?<=\$\()commprof(?= )", lambda _: command(), text)


def pip(*packages: str) -> str:
    """Returns the pip command that installs packages, given by module or distribution name."""
    names = [shlex.quote(_DISTRIBUTIONS.get(package, package)) for package in packages]
    return " ".join([*_program("pip", ("-m", "pip"), False), "install", *names])


def _program(name: str, module: tuple[str, ...], anywhere: bool) -> list[str]:
    # without Path.resolve: in a virtual environment, sys.executable may link to a Python elsewhere
    own = Path(sys.executable).parent
    found = shutil.which(name)
    if found is not None and Path(found).parent == own:
        return [name]
    program = own / name
    if name == "commprof" and program.is_file():
        return [_typed(program, anywhere)]
    return [_typed(Path(sys.executable), anywhere), *module]


def quoted(word: str | os.PathLike[str]) -> str:
    """Quotes a word for a shell, using bash's ``$'...'`` if it holds unprintable bytes."""
    text = os.fspath(word)
    if text.isprintable():
        return shlex.quote(text)
    shown = (
        chr(byte) if 32 <= byte < 127 and chr(byte) not in "'\\" else f"\\x{byte:02x}"
        for byte in os.fsencode(text)
    )
    return f"$'{''.join(shown)}'"


def _typed(program: Path, anywhere: bool) -> str:
    try:
        near = program.relative_to(os.getcwd())
    except (ValueError, OSError):
        return quoted(program)
    return quoted(program if anywhere else near)
