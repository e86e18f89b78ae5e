"""Prints what a compiler needs to read the module's sources: torch's and Python's headers, defines.

The same as in csrc/torch/CMakeLists.txt, for `make compilers`.
"""

from __future__ import annotations

import sysconfig

import installed_torch


def flags() -> list[str]:
    """For the torch of this environment; raises SystemExit where there is none."""
    torch = installed_torch.for_build()
    if torch is None:
        raise SystemExit("no torch is installed in this environment")
    include = torch.directory / "include"
    headers = [include, include / "torch/csrc/api/include", sysconfig.get_path("include")]
    return [
        *(f"-isystem{path}" for path in headers),
        f'-DTORCH_VERSION_STR="{torch.version}"',
        f"-DCOMMPROF_MODULE={torch.module_name}",
    ]


if __name__ == "__main__":
    # The shell that takes them in `$(...)` splits them, and removes no quotes.
    print(*flags())
