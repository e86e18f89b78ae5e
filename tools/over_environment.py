#!/usr/bin/env python3
"""Creates a virtual environment on top of this one, with the packages of some commprof extras.

    .venv/bin/python tools/over_environment.py DIRECTORY EXTRA...

The new environment sees all packages of this environment, such as torch. This environment does not
see the packages of the new environment.
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
    """Yields the requirements of these extras of the installed commprof."""
    for line in metadata.requires("commprof") or []:
        requirement, _, marker = line.partition(";")
        extra = re.search(r"extra == [\"'](\w+)[\"']", marker)
        if extra and extra[1] in extras:
            yield requirement.strip()


def make(directory: Path) -> Path:
    """Creates an environment that also sees the packages of this environment."""
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
        sys.exit(f"commprof has none of these extras: {' '.join(extras) or '(none was given)'}")
    torch = f"torch=={metadata.version('torch')}"  # pip must not install another torch
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    subprocess.run([make(Path(directory)), *pip, *wanted, torch], check=True)


if __name__ == "__main__":
    main()
