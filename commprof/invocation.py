"""How to type a command of commprof, or pip, where this process runs: so that it can be copied."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

#: The distributions of modules that are called otherwise.
_DISTRIBUTIONS = {"yaml": "PyYAML", "sklearn": "scikit-learn", "PIL": "pillow"}


def command(*words: str, anywhere: bool = False) -> str:
    """Returns ``commprof WORDS`` as it is typed in this environment.

    The plain name where the shell finds it; else the path of the environment's own, and where it
    was not installed, ``python -m commprof``.

    Args:
        words: behind the name, already quoted for a shell.
        anywhere: to be typed in another directory than this one: no path is relative.
    """
    return " ".join([*_program("commprof", ("-m", "commprof"), anywhere), *words])


def module(name: str) -> str:
    """Returns ``python -m NAME`` with the Python that runs this process."""
    return " ".join([*_program("python", (), False), "-m", name])


def examples(text: str) -> str:
    """Rewrites the indented ``commprof`` examples of a help text as this environment types them."""
    return re.sub(r"(?m)(?<=^  )commprof(?= )|(?<=\$\()commprof(?= )", lambda _: command(), text)


def pip(*packages: str) -> str:
    """Returns the pip command that installs packages, named by module or distribution, here."""
    names = [shlex.quote(_DISTRIBUTIONS.get(package, package)) for package in packages]
    return " ".join([*_program("pip", ("-m", "pip"), False), "install", *names])


def _program(name: str, module: tuple[str, ...], anywhere: bool) -> list[str]:
    own = Path(sys.executable).parent  # not resolved: a virtual environment's is a link
    found = shutil.which(name)
    if found is not None and Path(found).parent == own:
        return [name]
    program = own / name
    if name == "commprof" and program.is_file():
        return [_typed(program, anywhere)]
    return [_typed(Path(sys.executable), anywhere), *module]


def quoted(word: str | os.PathLike[str]) -> str:
    """Quotes a word for a shell; unprintable bytes in bash's ``$'...'``."""
    text = os.fspath(word)
    if text.isprintable():
        return shlex.quote(text)
    shown = (
        chr(byte) if 32 <= byte < 127 and chr(byte) not in "'\\" else f"\\x{byte:02x}"
        for byte in os.fsencode(text)
    )
    return f"$'{''.join(shown)}'"


def _typed(program: Path, anywhere: bool) -> str:
    """Relative to this directory, where it lies in it."""
    try:
        near = program.relative_to(os.getcwd())
    except (ValueError, OSError):
        return quoted(program)
    return quoted(program if anywhere else near)
