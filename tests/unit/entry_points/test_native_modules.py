from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from benchmarks.own_cost.mapped_code import mapped_code, measured
from commprof import _native
from tests.support.elf import sections, symbols
from tests.support.machines.commands import finish, fork

pytestmark = pytest.mark.skipif(_native.native is None, reason="needs the C++ module")
ROOT = Path(__file__).parents[3]

#: Matches the mangled names of the namespaces in csrc/tune.
TUNE = re.compile(r"8commprof(?:4tune|8compress|7kernels|3shm|3net)")


needs_tune = pytest.mark.skipif(
    not (ROOT / "csrc/tune").is_dir(), reason="the sources of compressors are left out"
)


def core_file() -> Path:
    return Path(_native.native.__file__)


def tune_file() -> Path:
    return core_file().with_name(core_file().name.replace("_torch", "_tune", 1))


def test_every_source_of_tune_is_in_a_namespace_that_the_next_test_looks_for() -> None:
    spaces = {
        space
        for suffix in ("cpp", "h")
        for file in (ROOT / "csrc/tune").rglob(f"*.{suffix}")
        for space in re.findall(r"^namespace (commprof\S*) \{$", file.read_text(), re.M)
    }
    # A file of tune may declare a type of the core in the namespace ``commprof``.
    mangled = {"".join(f"{len(part)}{part}" for part in space.split("::")) for space in spaces}
    assert {space for space in mangled if not TUNE.match(space)} <= {"8commprof"}
    assert len(mangled) >= 4


@needs_tune
def test_the_core_module_has_no_symbol_of_compressors_or_shared_memory() -> None:
    of_core = {symbol.name for symbol in symbols(core_file()) if symbol.is_defined}
    of_tune = {symbol.name for symbol in symbols(tune_file()) if symbol.is_defined}
    assert [name for name in of_core if TUNE.search(name)] == []
    assert len([name for name in of_tune if TUNE.search(name)]) > 300
    assert any("8commprof8Recorder" in name for name in of_core)


@needs_tune
def test_the_tune_module_has_no_recorder_of_its_own() -> None:
    # A second recorder would record into a trace that nobody opened.
    names = {symbol.name for symbol in symbols(tune_file())}
    core_only = re.compile(r"8commprof(?:8Recorder|8RingPool|9groupInfo|15bracketFinalize)")
    assert [name for name in names if core_only.search(name)] == []


_OTHER_CORE = """
import sys
import types
import torch

core, tune = sys.argv[1:]
assert f"commprof.{tune}" not in sys.modules
other = types.ModuleType(f"commprof.{core}")
other.CORE_FUNCTIONS = object()
sys.modules[other.__name__] = other
__import__(f"commprof.{tune}")
"""


@needs_tune
def test_the_tune_module_refuses_the_core_of_another_build() -> None:
    names = [file.name.split(".")[0] for file in (core_file(), tune_file())]
    done = finish(fork("-c", _OTHER_CORE, *names, spare_count=0))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: this module was built with another version of commprof than the core module "
        "in this process"
    )


def test_an_elf_file_is_read_as_its_header_says() -> None:
    by_name = {section.name: section for section in sections(core_file())}
    assert {".text", ".dynsym", ".dynstr"} <= set(by_name)
    module = f"PyInit_{core_file().name.split('.')[0]}"
    assert [s.name for s in symbols(core_file()) if s.name == module and s.is_defined]
    with pytest.raises(ValueError, match="no 64-bit little-endian ELF file"):
        sections(ROOT / "setup.py")


def test_mapped_code_counts_executable_mappings_of_commprof_only() -> None:
    maps = (
        "7f0000000000-7f0000001000 r--p 00000000 00:20 1 /a/commprof/_torch213.so\n"
        "7f0000001000-7f0000081000 r-xp 00001000 00:20 1 /a/commprof/_torch213.so\n"
        "7f0000100000-7f0000101000 r-xp 00001000 00:20 1 /a/commprof/x/_tune213.c.so\n"
        "7f0000101000-7f0000103000 r-xp 00003000 00:20 1 /a/commprof/x/_tune213.c.so\n"
        "7f0000200000-7f0000300000 r-xp 00001000 00:20 1 /a/torch/lib/libc10.so\n"
        "7f0000300000-7f0000400000 r-xp 00001000 00:20 1 /commprof/.venv/torch/_C.so\n"
    )
    assert mapped_code(maps, Path("/a/commprof")) == {"_torch213": 524.288, "_tune213": 12.288}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_only_records_does_not_map_the_tune_module() -> None:
    code = measured()
    core, tune = (file.name.split(".")[0] for file in (core_file(), tune_file()))
    assert set(code["recorded"]) == {core}
    if tune_file().exists():
        assert set(code["with a compressor"]) == {core, tune}
        assert code["with a compressor"][tune] > code["recorded"][core] / 4
