"""Environment, versions and git state of a run, so that users can repeat the run.

A fact that cannot be determined is reported as unknown, and causes no error.
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

from commprof.files import replace_file

PATCH_FILE = "changes.patch"
"""File in the run directory: changes of tracked files since the commit, for ``git apply``."""
PATCH_LIMIT_BYTES = 1024 * 1024
"""Size at which the patch file is cut off."""

#: Variables that influence torch, its backends and commprof. Other variables may be secrets.
_NAMES = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "LD_PRELOAD", "MALLOC_ARENA_MAX"),
    *("PYTHONHASHSEED", "PYTHONPATH", "SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS"),
)
_PREFIXES = (
    *("COMMPROF_", "GLOO_", "GOMP_", "KMP_", "MKL_", "NCCL_", "OMP_", "OPENBLAS_"),
    *("PYTORCH_", "TORCH_", "UCX_"),
)
#: A variable is left out if its name matches the first pattern, or if its value contains
#: //user:password@.
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|(^|_)(API|ACCESS)?_?KEY(_|$)")
_SECRET_VALUE = re.compile(r"//[^/\s]*:[^/\s]*@")

#: Packages whose version influences training or measurement.
_PACKAGES = (
    *("torch", "torchvision", "numpy", "commprof", "transformers", "peft", "bitsandbytes"),
    *("accelerate", "datasets", "lightning", "pytorch-lightning", "ray"),
    *("scikit-learn", "pillow"),
)
_GIT_TIMEOUT_S = 10
#: Options that produce a diff for `git apply`, whatever the user's own git configuration is.
_DIFF = (
    *("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--submodule=short", "--ignore-submodules=dirty"),
)
_UNKNOWN = "unknown"


def environment(variables: dict[str, str] | None = None) -> dict[str, str]:
    """Returns the environment variables that influence a run, from an allow-list.

    Args:
        variables: variables to choose from; None: those of this process.
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
    """Returns the versions of Python, the system, and the installed packages of `_PACKAGES`."""
    versions_of = {"python": platform.python_version(), "system": platform.platform()}
    for package in _PACKAGES:
        try:
            versions_of[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions_of


def git_state(directory: Path) -> dict[str, Any]:
    """Returns the state of the git repository that holds a directory.

    Returns:
        ``commit``, ``branch`` (empty if detached), ``changed_files`` (with untracked files) and
        ``diff_lines`` (lines added or removed in tracked files); or ``unknown`` with the reason.
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
        return {_UNKNOWN: _reason(error)}
    return {
        "commit": commit,
        "branch": "" if branch == "HEAD" else branch,
        "changed_files": len(changed.splitlines()),
        "diff_lines": sum(map(_lines, numbers.splitlines())),
    }


def save_patch(repository: Path, directory: Path) -> dict[str, Any]:
    """Writes the uncommitted changes of tracked text files into the run directory.

    Args:
        repository: a directory in a git repository, for which `git_state` returned a commit.
        directory: the run directory, where PATCH_FILE is written if there is a difference.

    Returns:
        ``file``: the file's name, empty if none was written; ``bytes``: the file's length; ``cut``:
        True if the file was cut at PATCH_LIMIT_BYTES and so cannot be applied; ``binary_files``:
        changed binary files, which the file does not contain; ``left_out``: the reason why writing
        failed, or an empty string.
    """
    saved: dict[str, Any] = {
        "file": "",
        "bytes": 0,
        "cut": False,
        "binary_files": [],
        "left_out": "",
    }
    try:
        top = Path(_git(repository, "rev-parse", "--show-toplevel").rstrip("\n"))
        rows = _git(top, *_DIFF, "--numstat", "-z", "HEAD").split("\0")
        binary = [row.split("\t", 2)[2] for row in rows if row.startswith("-\t-\t")]
        others = [f":(top,literal,exclude){name}" for name in binary]
        patch = _git(top, *_DIFF, "--full-index", "HEAD", "--", ".", *others)
        saved["binary_files"] = [name.encode(errors="replace").decode() for name in binary]
        data = patch.encode(errors="surrogateescape")
        saved["cut"] = len(data) > PATCH_LIMIT_BYTES
        if data:
            replace_file(directory / PATCH_FILE, data[:PATCH_LIMIT_BYTES])
            saved |= {"file": PATCH_FILE, "bytes": min(len(data), PATCH_LIMIT_BYTES)}
    except subprocess.TimeoutExpired:
        saved["left_out"] = f"git took longer than {_GIT_TIMEOUT_S} s"
    except (OSError, subprocess.CalledProcessError) as error:
        saved["left_out"] = _reason(error)
    return saved


def command_line() -> list[str]:
    """Returns this process's command line as a user would type it."""
    _, *words = sys.orig_argv
    if words[:1] == ["-u"]:  # torchrun adds this option
        del words[0]
    if words and Path(words[0]).name == "commprof":
        return ["commprof", *words[1:]]
    return ["python", *words]


def _reason(error: OSError | subprocess.CalledProcessError) -> str:
    if isinstance(error, OSError):
        return error.strerror or "git cannot be started"
    message = (error.stderr or b"").decode(errors="replace")
    if "not a git repository" in message:
        return "it is not in a git repository"
    if "unknown revision" in message or "ambiguous argument" in message:
        return "its git repository has no commit"
    if "dubious ownership" in message:
        return "its git repository belongs to another user"
    return f"git ended with exit code {error.returncode}"


def _lines(numstat: str) -> int:
    """Number of changed lines of one file; 0 for a binary file."""
    return sum(int(word) for word in numstat.split("\t")[:2] if word.isdecimal())


def _git(directory: Path, *arguments: str) -> str:
    """Returns a git command's output; runs no fsmonitor that the repository configures."""
    done = subprocess.run(
        ["git", "-C", str(directory), "-c", "core.fsmonitor=false", *arguments],
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_GIT_TIMEOUT_S,
        check=True,
    )
    return done.stdout.decode(errors="surrogateescape")
