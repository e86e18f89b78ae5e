"""Imports for type checking and imports inside functions count like all other imports."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from commprof import satellites
from tools.make_shape import (
    imports_of,
    mutual_imports,
    numbers_of_fields,
    repeated_classes,
    rules_in_two_languages,
)

ROOT = Path(__file__).parent.parent

FOUNDATION = {
    *(
        "errors",
        "units",
        "text",
        "interrupts",
        "address",
        "files",
        "field_groups",
        "invocation",
        "launched",
        "main_interpreter",
        "memory",
    ),
    *("variables", "_native", "_version", "_C", "_tune", "_reading", "ddp_parameters"),
}
ENTRY_POINTS = {"__main__", "run", "wrap", "microbench", "backend"}

MAY_IMPORT = {
    "foundation": set(),
    "satellites": {"foundation"},
    "stats": set(),
    "trace": {"foundation", "recordings"},
    "recordings": {"foundation", "trace"},
    "capture": {"foundation", "satellites", "trace", "monitor"},
    "capture.boot": {*("foundation", "satellites", "capture"), *("monitor", "monitor.watchdog")},
    "capture.integrations": {"foundation", "capture"},
    "analysis": {"foundation", "stats", "trace", "recordings"},
    "workloads": {"foundation"},
    "checks": {"foundation", "analysis"},
    "monitor": {"foundation", "satellites", "trace", "analysis"},
    "monitor.watchdog": {"foundation", "stats", "trace", "analysis", "monitor"},
    "report": {"foundation", "satellites", "stats", "analysis", "monitor"},
    "launch": {
        *("foundation", "satellites", "trace", "capture", "capture.boot", "workloads"),
        "monitor.watchdog",
    },
    "commands": {
        *("foundation", "satellites", "stats", "trace", "capture", "capture.boot", "analysis"),
        *("workloads", "report", "launch", "checks", "recordings"),
        *("monitor", "monitor.watchdog"),
    },
    "entry points": {
        *("foundation", "capture", "capture.boot", "commands", "monitor", "monitor.watchdog"),
    },
    "public names": {"foundation", "satellites"},
    "audit": {"foundation"},
    "forecast": {
        *("foundation", "satellites", "stats", "trace", "recordings", "analysis", "report"),
    },
    "forecast.commands": {
        *(
            "foundation",
            "satellites",
            "stats",
            "trace",
            "recordings",
            "analysis",
            "report",
            "capture",
        ),
        *("commands", "launch", "forecast", "forecast.microbench"),
    },
    "forecast.microbench": {
        *("foundation", "satellites", "stats", "analysis", "capture", "launch"),
    },
    "tune": {
        *("foundation", "satellites", "stats", "analysis", "trace", "report"),
        *("tune.backend", "tune.compressors", "tune.trials", "tune.trials.live"),
    },
    "tune.backend": {"foundation"},
    "tune.compressors": {"foundation", "capture", "tune.backend"},
    "tune.trials": {"foundation", "stats", "trace", "analysis", "tune.compressors"},
    "tune.trials.live": {"foundation", "tune.compressors", "capture", "tune.trials"},
}
"""Layer -> the other layers that its modules may import.

Modules of one layer may import each other, except in the foundation."""

ANALYSIS = (
    *("align", "step", "evidence", "collectives", "sweeps", "late", "checks", "inspector"),
    *("timeline", "replay", "rank_summary", "training_account", "profiler_cost", "recording"),
    *("detail", "mean_step", "summary_result", "summaries", "named_cause"),
    *(
        "world",
        "cores",
        "findings",
        "exchange",
        "loss_curves",
        "cost",
        "scaling",
        "strategies",
        "compare",
    ),
    *("predicted", "replicas", "run_command", "causes", "remarks", "next_step", "verdict", "card"),
    "run",
)
"""A folder or module of commprof/analysis may import only earlier entries."""

MOST_FIELDS = 15

SATELLITES = set(satellites.NAMES)

TORCH_FREE = {
    *("trace", "recordings", "analysis", "audit", "forecast", "report"),
    *("monitor", "monitor.watchdog", "capture.boot"),
}

MOST_RULES_IN_TWO_LANGUAGES = 9

TORCH_HEADER = re.compile(r'\s*#\s*include\s*[<"]((?:torch/|ATen/|c10/|pybind11/|Python\.h)[^>"]*)')
OWN_HEADER = re.compile(r'\s*#\s*include\s*"([^"]+)"')
MOST_FILES_TO_ADD = 3
TUNE_MAY_INCLUDE = (
    "core/record.h",
    "torch/core_functions.h",
    "torch/capture/ddp/mean_all_reduce.h",
)


def layer_of(parts: Sequence[str]) -> str | None:
    if parts[0] in FOUNDATION:
        return "foundation"
    if parts[0] in ENTRY_POINTS:
        return "entry points"
    if parts[0] == "__init__":
        return "public names"
    names = (".".join(parts[:count]) for count in (3, 2, 1))
    return next((name for name in names if name in MAY_IMPORT), None)


def violations(package: Path) -> list[str]:
    known = {path.stem for path in package.iterdir()} | FOUNDATION
    found = []
    for file in sorted(package.rglob("*.py")):
        where = file.relative_to(package)
        parts = where.with_suffix("").parts
        own_name = parts[0]
        own = "entry points" if where.name == "__main__.py" else layer_of(parts)
        if own is None:
            found.append(f"{where}: {own_name} has no place in tests/test_layers.py")
            continue
        for name in imports_of(file, package):
            top, *rest = name.split(".")
            if top == "torch" and own in TORCH_FREE:
                found.append(f"{where}: {own} imports {name}")
            if top != "commprof":
                continue
            # `from commprof import x` means the module x if this module exists, else the package.
            target = rest if rest and rest[0] in known else ["__init__"]
            if not allowed(own_name, own, target):
                found.append(f"{where}: {own} imports {name}")
    return found


def allowed(own_name: str, own: str, target: Sequence[str]) -> bool:
    if target[0] == "_native" and own in TORCH_FREE:
        return False  # _native imports torch
    if own_name == "_native":
        return target[0] in ("_C", "_tune", "variables")  # _C and _tune are type stubs
    layer = layer_of(target)
    return layer in MAY_IMPORT[own] or (layer == own and own != "foundation")


def torch_includes(csrc: Path) -> list[str]:
    return [
        f"{file.relative_to(csrc)} includes {match[1]}"
        for file in sorted(csrc.rglob("*"))
        if file.suffix in (".h", ".cpp")
        and not {"torch", "reading"}.intersection(file.relative_to(csrc).parts[:2])
        for line in file.read_text().splitlines()
        if (match := TORCH_HEADER.match(line))
    ]


def satellite_includes(csrc: Path) -> list[str]:
    return [
        f"{file.relative_to(csrc)} includes {match[1]}"
        for file in sorted(csrc.rglob("*"))
        if file.suffix in (".h", ".cpp")
        for line in file.read_text().splitlines()
        if (match := OWN_HEADER.match(line))
        and match[1] not in TUNE_MAY_INCLUDE
        and match[1].split("/")[0] not in ("base", file.relative_to(csrc).parts[0])
        and "tune" in (match[1].split("/")[0], file.relative_to(csrc).parts[0])
    ]


def test_imports_follow_the_layers() -> None:
    assert violations(ROOT / "commprof") == []


def test_the_profiler_imports_no_satellite_and_they_not_each_other() -> None:
    reached = {
        layer.partition(".")[0]: {name.partition(".")[0] for name in allowed_layers} & SATELLITES
        for layer, allowed_layers in MAY_IMPORT.items()
    }
    assert {name: found for name, found in reached.items() if found - {name}} == {}
    assert (ROOT / "commprof/satellites.py").read_text().count("import_module") == 1


def later_imports(analysis: Path) -> list[str]:
    return [
        f"{file.relative_to(analysis)} imports {target}"
        for file in sorted(analysis.rglob("[!_]*.py"))
        for name in imports_of(file, analysis.parent)
        if name.startswith("commprof.analysis.")
        and (target := name.split(".")[2])
        != (place := file.relative_to(analysis).parts[0].removesuffix(".py"))
        and target not in ANALYSIS[: ANALYSIS.index(place)]
    ]


def test_no_two_folders_import_each_other() -> None:
    assert mutual_imports(ROOT / "commprof") == []


def test_analysis_imports_in_one_order() -> None:
    analysis = ROOT / "commprof/analysis"
    assert later_imports(analysis) == []
    places = {path.stem for path in analysis.iterdir() if not path.name.startswith("_")}
    assert sorted(ANALYSIS) == sorted(places)


def test_a_planted_import_against_the_order_of_analysis_is_found(tmp_path: Path) -> None:
    for folder in ("align", "late"):
        (tmp_path / "analysis" / folder).mkdir(parents=True)
        (tmp_path / "analysis" / folder / "a.py").write_text(
            "from commprof.analysis.align.b import c\nfrom commprof.analysis.late import d\n"
        )
    assert later_imports(tmp_path / "analysis") == ["align/a.py imports late"]


def test_a_planted_mutual_import_is_found(tmp_path: Path) -> None:
    for folder, source in [
        ("trace/run", "from commprof.stats import a"),
        ("stats", "def f():\n  from commprof.trace.run.b import c"),
        ("trace", "from commprof.trace.run import b"),
        ("report", "import commprof.stats.a"),
    ]:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "a.py").write_text(source)
    assert mutual_imports(tmp_path) == ["stats trace/run"]


def test_torch_headers_stay_in_csrc_torch() -> None:
    assert torch_includes(ROOT / "csrc") == []


def test_the_profiler_includes_nothing_of_tune_and_tune_only_what_is_given_to_it() -> None:
    assert satellite_includes(ROOT / "csrc") == []
    page = (ROOT / "docs/architecture.md").read_text()
    assert [header for header in TUNE_MAY_INCLUDE if f"`csrc/{header}`" not in page] == []


def test_the_native_code_uses_no_streams() -> None:
    """If the C++ library is linked statically, streams may find the locales of another copy."""
    streams = re.compile(r"#include <(?:(?:io|[iofs])stream|locale|regex)>")
    sources = [file for file in (ROOT / "csrc").rglob("*") if file.suffix in (".h", ".cpp")]
    assert len(sources) > 100
    assert [file.name for file in sources if streams.search(file.read_text())] == []


def test_rules_in_two_languages_are_listed_with_their_tests_and_become_no_more() -> None:
    rules = rules_in_two_languages()
    assert 0 < len(rules) <= MOST_RULES_IN_TWO_LANGUAGES
    for rule, cpp, python, reason, test in rules:
        assert (ROOT / cpp).suffix == ".cpp", rule
        assert (ROOT / python).suffix == ".py", rule
        assert reason, rule
        missing = [file for file in (cpp, python, test) if not (ROOT / file).exists()]
        assert missing == [], rule


def test_what_cpp_says_of_a_rule_in_python_is_in_that_table() -> None:
    equals = re.compile(r"(?:equal those|rule is that|the rules) of commprof/([\w/]+\.py)")
    named = {
        f"commprof/{match}"
        for file in (ROOT / "csrc").rglob("*.h")
        for match in equals.findall(re.sub(r"\s*\n//\s*", " ", file.read_text()))
    }
    assert len(named) >= 3
    in_table = {python for _, _, python, _, _ in rules_in_two_languages()}
    assert {Path(file).name for file in named} - {Path(file).name for file in in_table} <= {
        "exposure.py"  # the table lists breakdown.py for the parts of a step
    }


def test_reading_imports_no_torch_at_run_time() -> None:
    modules = [
        "commprof." + ".".join(parts)
        for file in sorted((ROOT / "commprof").rglob("*.py"))
        if layer_of(parts := file.relative_to(ROOT / "commprof").with_suffix("").parts)
        in TORCH_FREE
    ]
    imports = "\n".join(f"import {module}" for module in modules)
    check = "import sys\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", f"{imports}\n{check}"], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("trace/a.py", "from commprof.capture import b", "trace imports commprof.capture.b"),
        ("trace/a.py", "def f():\n  import torch.nn", "trace imports torch.nn"),
        ("trace/a.py", "from commprof import _native", "trace imports commprof._native"),
        ("report/a.py", "from commprof import trace", "report imports commprof.trace"),
        ("report/a.py", "from ..trace import b", "report imports commprof.trace.b"),
        ("launch/a.py", "import commprof.commands", "launch imports commprof.commands"),
        ("capture/a.py", "from commprof import attach", "capture imports commprof.attach"),
        ("units.py", "from commprof.errors import X", "foundation imports commprof.errors.X"),
        ("_native.py", "import commprof.errors", "foundation imports commprof.errors"),
        ("gadgets/a.py", "", "gadgets has no place in tests/test_layers.py"),
    ],
)
def test_a_planted_import_is_found(tmp_path: Path, file: str, source: str, complaint: str) -> None:
    planted = tmp_path / file
    for name in ("capture", "trace", "commands"):
        (tmp_path / name).mkdir()
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(source)
    assert violations(tmp_path) == [f"{file}: {complaint}"]


def test_allowed_imports_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "analysis").mkdir()
    (tmp_path / "trace").mkdir()
    (tmp_path / "analysis" / "a.py").write_text(
        "import numpy\nfrom commprof import errors, trace\nfrom . import b\nfrom .b import c\n"
    )
    assert violations(tmp_path) == []


def test_a_planted_include_is_found(tmp_path: Path) -> None:
    for name in ("core", "torch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.h").write_text('#include "core/b.h"\n#  include <ATen/ATen.h>\n')
    assert torch_includes(tmp_path) == ["core/a.h includes ATen/ATen.h"]


def test_a_planted_include_across_the_border_of_tune_is_found(tmp_path: Path) -> None:
    allowed_anywhere = '#include "base/b.h"\n#include "torch/core_functions.h"\n'
    for name in ("core", "tune", "torch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.h").write_text(
            f'{allowed_anywhere}#include "tune/b.h"\n#include "core/recorder.h"\n'
        )
    assert satellite_includes(tmp_path) == [
        "core/a.h includes tune/b.h",
        "torch/a.h includes tune/b.h",
        "tune/a.h includes core/recorder.h",
    ]


def folders(root: Path) -> list[str]:
    files = [*root.rglob("*.py"), *root.rglob("*.cpp"), *root.rglob("*.h")]
    return sorted({path.parent.relative_to(ROOT).as_posix() for path in files})


def test_the_architecture_names_every_folder() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    unnamed = [
        folder
        for folder in [*folders(ROOT / "commprof"), *folders(ROOT / "csrc")]
        if folder not in text and f"`{folder.rsplit('/', 1)[1]}" not in text
    ]
    assert unnamed == []


def test_the_path_of_a_collective_names_files_that_are_there() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    path = text[text.index("## The path") : text.index("## Walks")]
    files = re.findall(r"^\| `([^`]+)` \|", path, re.M)
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert 10 < len(files) <= 20


def test_each_addition_takes_at_most_three_files_that_are_there() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    table = text.partition("<!-- where to add")[2].partition("<!-- end of where to add")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| a ")]
    assert len(rows) == 12
    for what, files, _ in rows:
        assert len(files.split("; ")) <= MOST_FILES_TO_ADD, what
        paths = re.findall(r"`([\w.]+/[\w./]+)`", files)
        assert paths, what
        assert [path for path in paths if not (ROOT / path).exists()] == [], what


def test_results_have_few_fields_or_groups_of_them() -> None:
    large = {name: number for name, number in numbers_of_fields().items() if number > MOST_FIELDS}
    assert large == {}


def test_public_names_of_classes_are_unique() -> None:
    """The callback has the same name for every training framework."""
    assert repeated_classes() == ["CommprofCallback"]
