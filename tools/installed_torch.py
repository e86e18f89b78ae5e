"""Finds the torch for which commprof is built, without importing torch.

A C++ extension fits only the torch for which it was built, so it must be built for the torch of the
user's environment. pip's isolated builds hide that torch. If build-system.requires contained torch,
pip would download a second torch and build the extension for it.
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
"""Oldest torch (major, minor) that commprof runs with."""

DEFAULT = "torch==2.13.0"
"""Torch that is installed in an environment without torch."""

_PROBE = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else None)"


@dataclass(frozen=True)
class InstalledTorch:
    """A torch on disk."""

    directory: Path
    """Directory of the package, with `version.py`, `include/` and `lib/`."""
    version: str
    """Version as in `torch.__version__`, with the local part: `2.13.0+cpu`."""

    @property
    def minor(self) -> tuple[int, int]:
        """Major and minor version; torch keeps its C++ ABI within a minor version."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    @property
    def module_name(self) -> str:
        """Name of commprof's C++ module for this torch, such as `_torch213`."""
        return "_torch{}{}".format(*self.minor)

    @property
    def tune_module_name(self) -> str:
        """Name of the module of compressors and shared memory, such as `_tune213`."""
        return "_tune{}{}".format(*self.minor)


def in_target() -> InstalledTorch | None:
    """Returns the torch of the environment that commprof is being installed into.

    pip's isolated build uses the environment's interpreter with another search path. So a plain run
    of this interpreter finds the environment's torch. uv and build use another interpreter, and the
    torch of that interpreter's environment is returned.
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
    """Returns the result of in_target(), or else the torch of the build environment."""
    return in_target() or _in_this_process()


def requirement(target: InstalledTorch | None) -> str:
    """Returns a requirement of torch that keeps the installed torch `target`.

    The requirement has no upper limit, because pip would replace a newer torch by an older torch.
    `.dev0` admits pre-releases, which some vendors ship.

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
