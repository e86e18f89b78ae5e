"""What a run needs to be repeated, besides its configuration: environment, versions, git state.

Nothing here fails a run: what cannot be found out is said to be unknown.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

#: Variables that change what torch, its backends and commprof do. All others may be secrets.
_NAMES = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "LD_PRELOAD", "MALLOC_ARENA_MAX"),
    *("PYTHONHASHSEED", "PYTHONPATH", "SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS"),
)
_PREFIXES = (
    *("COMMPROF_", "GLOO_", "GOMP_", "KMP_", "MKL_", "NCCL_", "OMP_", "OPENBLAS_"),
    *("PYTORCH_", "TORCH_", "UCX_"),
)
#: Names with one of these are left out even so, and so are values with user:password@ in them.
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|(^|_)(API|ACCESS)?_?KEY(_|$)")
_SECRET_VALUE = re.compile(r"//[^/\s]*:[^/\s]*@")

#: Packages whose version changes what is trained or measured.
_PACKAGES = (
    *("torch", "numpy", "commprof", "transformers", "peft", "bitsandbytes"),
    *("scikit-learn", "pillow"),
)
_GIT_TIMEOUT_S = 10
_UNKNOWN = "unknown"


def environment(variables: dict[str, str] | None = None) -> dict[str, str]:
    """The variables that matter for a repetition, by an allow-list.

    Args:
        variables: of the process when None.
    """
    given = dict(os.environ) if variables is None else variables
    return {
        name: value
        for name, value in sorted(given.items())
        if (name in _NAMES or name.startswith(_PREFIXES))
        and not _SECRET_NAME.search(name)
        and not _SECRET_VALUE.search(value)
    }


def versions() -> dict[str, str]:
    """Python, system, and the packages that are installed."""
    found = {"python": platform.python_version(), "system": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def git_state(directory: Path) -> dict[str, Any]:
    """Of the repository that holds a directory.

    Returns:
        ``commit``, ``branch`` (empty when detached), ``changed_files`` (untracked ones too) and
        ``diff_lines`` (added or removed in tracked ones); or ``unknown`` with the reason.
    """
    try:
        commit = _git(directory, "rev-parse", "HEAD").strip()
        branch = _git(directory, "rev-parse", "--abbrev-ref", "HEAD").strip()
        changed = _git(directory, "status", "--porcelain", "--no-renames")
        numbers = _git(directory, "diff", "--no-ext-diff", "--no-textconv", "--numstat", "HEAD")
    except FileNotFoundError:
        return {_UNKNOWN: "git is not installed"}
    except subprocess.TimeoutExpired:
        return {_UNKNOWN: f"git took longer than {_GIT_TIMEOUT_S} s"}
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", None) or str(error).encode()
        lines = output.decode(errors="replace").strip().splitlines()
        return {_UNKNOWN: lines[0] if lines else "git failed"}
    return {
        "commit": commit,
        "branch": "" if branch == "HEAD" else branch,
        "changed_files": len(changed.splitlines()),
        "diff_lines": sum(map(_lines, numbers.splitlines())),
    }


def command_line() -> list[str]:
    """This process's own, as it can be typed again."""
    _, *words = sys.orig_argv
    if words and Path(words[0]).name == "commprof":
        return ["commprof", *words[1:]]
    return ["python", *words]


def _lines(numstat: str) -> int:
    """Of one file; binary ones have no lines."""
    return sum(int(word) for word in numstat.split("\t")[:2] if word.isdecimal())


def _git(directory: Path, *arguments: str) -> str:
    """Its output; it reads only, and runs no programs that the repository configures."""
    done = subprocess.run(
        ["git", "-C", str(directory), "-c", "core.fsmonitor=false", *arguments],
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_GIT_TIMEOUT_S,
        check=True,
    )
    return done.stdout.decode(errors="surrogateescape")
