"""Finds the torch that commprof is built for and will run with, without importing it.

A C++ extension of torch fits one torch only, so the installer must not choose
it: pip's isolated builds hide the user's torch, and a torch pinned in
build-system.requires would be fetched a second time and built for in its place.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

MINIMUM = (2, 10)
"""Oldest torch (major, minor) commprof runs with."""

DEFAULT = "torch==2.13.0"
"""What an environment without torch gets, and gets the C++ module built for."""

_PROBE = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else None)"


@dataclass(frozen=True)
class InstalledTorch:
    """A torch on disk."""

    directory: Path
    """The package itself: holds `version.py`, `include/` and `lib/`."""
    version: str
    """As in `torch.__version__`, local part included: `2.13.0+cpu`."""

    @property
    def minor(self) -> tuple[int, int]:
        """Major and minor, the finest grain at which torch keeps its C++ ABI."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @property
    def module_name(self) -> str:
        """The name of commprof's C++ module for this torch, such as `_torch213`."""
        return "_torch{}{}".format(*self.minor)


def in_target() -> InstalledTorch | None:
    """The torch of the environment that commprof is being installed into.

    pip's isolated build runs the target's own interpreter with another search
    path, so a plain run of that interpreter tells the truth. Frontends that
    build in an environment of their own (uv, build) show only what is in that.
    """
    if not _isolated_by_pip():
        return _in_this_process()
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONNOUSERSITE")}
    probe = subprocess.run(
        [sys.executable, "-c", _PROBE],
        env=env,
        cwd=sys.prefix,  # not the source tree: `-c` puts the working directory on the path
        capture_output=True,
        text=True,
        check=True,
    )
    return _at(probe.stdout.strip())


def for_build() -> InstalledTorch | None:
    """The target's torch, else one that was fetched into the build environment."""
    return in_target() or _in_this_process()


def requirement(target: InstalledTorch | None) -> str:
    """The dependency on torch that makes the installer leave `target` as it is.

    Never capped: a cap makes pip replace a newer torch by gigabytes of an older
    one. `.dev0` admits pre-releases, which vendors ship as their torch.

    Raises:
        SystemExit: if `target` is too old; nothing has been changed by then.
    """
    if target is None:
        return DEFAULT
    minimum = ".".join(map(str, MINIMUM))
    if target.minor < MINIMUM:
        raise SystemExit(
            f"commprof needs torch {minimum} or newer; this environment has torch {target.version} "
            f"({target.directory}). Nothing was changed: upgrade torch yourself, or use another "
            f"environment ({DEFAULT} is the tested one)."
        )
    return f"torch>={minimum}.dev0"


def _isolated_by_pip() -> bool:
    return sysconfig.get_path("purelib") not in sys.path


def _in_this_process() -> InstalledTorch | None:
    spec = importlib.util.find_spec("torch")
    return _at(spec.origin if spec else None)


def _at(origin: str | None) -> InstalledTorch | None:
    version_file = Path(origin or "").parent / "version.py"
    if not origin or not version_file.is_file():
        return None
    found = re.search(r"^__version__[^=]*=\s*['\"]([^'\"]+)", version_file.read_text(), re.M)
    return InstalledTorch(version_file.parent, found[1]) if found else None
