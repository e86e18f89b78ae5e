"""Builds the C++ modules with CMake for the installed torch.

A failed build does not fail the installation. The reason is stored in the
package, where `commprof._native` finds it, and capture then runs in Python. With
COMMPROF_REQUIRE_NATIVE=1, a failed build fails the installation.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).parent / "tools"))

import installed_torch
import native_build
from installed_torch import InstalledTorch
from native_build import REQUIRE_NATIVE, ROOT, NativeBuildError

ERROR_FILE = "_build_error.txt"
ERROR_LINES = 200
"""Number of lines that ERROR_FILE keeps from the end of the build's output."""


class BuildNative(build_ext):
    """Puts the C++ modules into the package, or the reason why their build failed."""

    def run(self) -> None:
        root = ROOT if self.inplace else Path(self.build_lib)
        package = root / "commprof"
        package.mkdir(parents=True, exist_ok=True)
        (package / ERROR_FILE).unlink(missing_ok=True)
        torch = installed_torch.for_build()
        try:
            if torch is None:
                raise NativeBuildError("no torch is installed, and the build is not isolated")
            modules = [*build_modules(torch), build_reading(torch), native_build.PLUGIN]
        except NativeBuildError as error:
            if REQUIRE_NATIVE:
                raise SystemExit(f"commprof: {error.args[0]}") from None
            self.warn(f"commprof: no C++ module: {error.args[0]}")
            (package / ERROR_FILE).write_text("\n\n".join(error.args) + "\n")
            # Without this, Python code would use an older module, without a warning.
            for extension in self.extensions:
                (root / self.get_ext_filename(extension.name)).unlink(missing_ok=True)
            return
        for module in modules:
            # Renamed, not overwritten: a process may have the old file mapped.
            fresh = package / f".{module.name}"
            shutil.copy2(module, fresh)
            fresh.replace(package / module.name)


PYTHON = f"py{sys.version_info[0]}{sys.version_info[1]}"


def build_modules(torch: InstalledTorch) -> list[Path]:
    """Builds the core, and then the modules that link this torch."""
    tree = native_build.TREES / f"{PYTHON}-torch{torch.version}"
    defines = {
        "Python_EXECUTABLE": sys.executable,
        "COMMPROF_CORE_DIR": str(native_build.CORE),
        "COMMPROF_TORCH_DIR": str(torch.directory),
        "COMMPROF_TORCH_VERSION": torch.version,
        "COMMPROF_MODULE": torch.module_name,
        "COMMPROF_TUNE_MODULE": torch.tune_module_name,
    }
    modules = native_build.steps(ROOT / "csrc" / "torch", tree, defines)
    for command in [*native_build.core_steps(), *modules]:
        _run(command)
    return [next(tree.glob(f"{name}.*.so")) for name in names_with(torch)]


def names_with(torch: InstalledTorch) -> list[str]:
    """Returns the names of the modules that link torch; sources may lack the second module."""
    has_tune = (ROOT / "csrc" / "tune").is_dir()
    return [torch.module_name, *([torch.tune_module_name] if has_tune else [])]


def build_reading(torch: InstalledTorch) -> Path:
    """Builds the module for reports, which needs torch's headers but does not link torch."""
    tree = native_build.TREES / f"{PYTHON}-reading"
    defines = {
        "Python_EXECUTABLE": sys.executable,
        "COMMPROF_CORE_DIR": str(native_build.CORE),
        "COMMPROF_TORCH_DIR": str(torch.directory),
    }
    for command in native_build.steps(ROOT / "csrc" / "reading", tree, defines):
        _run(command)
    return next(tree.glob("_reading.*.so"))


def _run(command: list[str]) -> None:
    """Runs a build step; raises NativeBuildError with the step's output if the step fails."""
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        raise NativeBuildError(_summary(lines), "".join(lines[-ERROR_LINES:]))


def _summary(lines: list[str]) -> str:
    """Returns the line with the reason; CMake prints the reason below a line with the place."""
    first = (i for i, line in enumerate(lines) if re.search(r"\berror:|CMake Error", line))
    said = (line.strip() for line in lines[next(first, -1) :])
    return next((line for line in said if line and not line.endswith(":")), "the build failed")


target = installed_torch.in_target()
built_for = target or installed_torch.for_build()
setup(
    install_requires=[
        installed_torch.requirement(target),
        "Jinja2>=3.1",
        "numpy>=1.24",
        "prometheus_client>=0.16",
        "PyYAML>=6",
        "rich>=13",
        "tabulate>=0.9",
    ],
    # The extensions make the wheel a platform wheel. CMake builds the modules.
    ext_modules=[
        Extension(f"commprof.{name}", [])
        for name in (*(names_with(built_for) if built_for else ["_torch"]), "_reading")
    ],
    cmdclass={"build_ext": BuildNative},
)
