#!/usr/bin/env python3
"""Makes a virtual environment over this one, with the packages of some of commprof's extras.

    .venv/bin/python tools/over_environment.py DIRECTORY EXTRA...

It sees all that this environment has, torch above all, and keeps what it gets on top to itself.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path


def requirements(extras: set[str]) -> Iterator[str]:
    """What these extras of the installed commprof ask for."""
    for line in metadata.requires("commprof") or []:
        requirement, _, marker = line.partition(";")
        extra = re.search(r"extra == [\"'](\w+)[\"']", marker)
        if extra and extra[1] in extras:
            yield requirement.strip()


def make(directory: Path) -> Path:
    """A new environment whose Python also looks here, editable installations included."""
    venv.create(directory, with_pip=True, clear=True)
    python = directory / "bin/python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    its_own = subprocess.check_output([python, "-c", ask], text=True).strip()
    here = sysconfig.get_path("purelib")
    Path(its_own, "over.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    return python


def main() -> None:
    directory, *extras = sys.argv[1:]
    wanted = sorted(requirements(set(extras)))
    if not wanted:
        sys.exit(f"no extra of commprof among {' '.join(extras) or 'no names'}")
    torch = f"torch=={metadata.version('torch')}"  # or fail, never another one
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    subprocess.run([make(Path(directory)), *pip, *wanted, torch], check=True)


if __name__ == "__main__":
    main()
