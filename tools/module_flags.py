"""Prints the compiler flags that the modules' sources need.

`make compilers` uses them. csrc/torch/CMakeLists.txt sets the same flags.
"""

from __future__ import annotations

import sysconfig

import installed_torch


def flags() -> list[str]:
    """Returns the flags for this environment's torch; raises SystemExit without a torch."""
    torch = installed_torch.for_build()
    if torch is None:
        raise SystemExit("no torch is installed in this environment")
    include = torch.directory / "include"
    headers = [include, include / "torch/csrc/api/include", sysconfig.get_path("include")]
    return [
        *(f"-isystem{path}" for path in headers),
        f'-DTORCH_VERSION_STR="{torch.version}"',
        f"-DCOMMPROF_MODULE={torch.module_name}",
        f"-DCOMMPROF_TUNE_MODULE={torch.tune_module_name}",
        '-DCOMMPROF_CORE_HASH="none"',
    ]


if __name__ == "__main__":
    # No quotes, because a shell does not remove quotes from the output of `$(...)`.
    print(*flags())
