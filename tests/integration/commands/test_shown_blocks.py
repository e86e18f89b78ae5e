from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commprof import _native
from commprof.commands import main
from commprof.launch.elastic import launch_function, stop_fork_server
from tests.support.builders.shown_scene import write_scene
from tests.support.builders.small_workloads import SMALL_OF
from tests.support.machines.commands import call, finish, fork
from tests.support.machines.programs.programs import needs
from tests.support.machines.shown import (
    ROOT,
    Block,
    blocks,
    helps,
    is_typed,
    only_reads,
    read_in_scene,
)
from tests.support.ranks.shown_python import run_block

TWO_HOSTS = "needs two hosts: tests/integration/hosts/test_between_hosts.py"
SETS_UP = "sets up an environment, as .ci/run does before these tests"
NOT_RUN = {
    "make test": "this is one of the tests",
    "make lint": SETS_UP,
    "make format": "changes this checkout",
    "make docs": "the site, which .ci/run builds",
    "make wheel": "builds the module a second time, for minutes",
    "make run": "a minute of training; python -m commprof.run is run",
    "pip install --no-build-isolation .": SETS_UP,
    "make help": SETS_UP,
    "pip install 'setuptools>=77' cmake ninja && pip install --no-build-isolation .": SETS_UP,
    "kill -USR2 PID": "needs a rank that trains: tests/integration/always_on/test_always_on.py",
    "sbatch job.sbatch": "needs a Slurm cluster",
    "commprof wrap train.py": "one rank of a launcher: torchrun -m commprof.wrap is run",
    "python -m commprof.monitor RUN --metrics": (
        "goes on: tests/integration/faults/test_live_run.py"
    ),
    "python -m commprof.monitor LOGS --metrics": (
        "goes on: tests/unit/monitor/test_inspector_live.py"
    ),
}
#: A line that begins with one of these keys is not run.
NOT_RUN_KINDS = {
    "torchrun --nnodes": TWO_HOSTS,
    "python -m commprof.run --nnodes 2": TWO_HOSTS,
    "commprof run --nnodes 2": TWO_HOSTS,
    "python -m commprof.run --nproc 8 --workload transformer:sequence=128 --batch-size 16 "
    "--steps 50": "minutes, or two hosts: tests/integration/commands/test_run_again.py",
}
NEEDS = {"--workload lora": "peft", "lora:size=7b": "peft", "data=digits": "sklearn"}
#: The keys are a page and the beginning of a block's first line.
OUTPUT = {
    ("README.md", "Recording: dlrm_8xV100.tar.gz [nccl]"): "tests/unit/entry_points/test_readme.py",
    ("docs/architecture.md", "training process"): "a picture",
    ("docs/architecture.md", "file header"): "a picture",
    ("docs/nccl.md", "export NCCL_PROFILER_PLUGIN="): (
        "needs a program with NCCL: tests/integration/devices/test_nccl_plugin.py plays its calls"
    ),
    ("docs/inspector.md", "export NCCL_PROFILER_PLUGIN="): "needs a program with NCCL",
    ("docs/reading.md", "SCALING.md: 1 finding"): "output",
    (
        "docs/reading.md",
        "SELECT world_size, origin_host, origin_rank,",
    ): "run by tests/unit/report/test_parquet_tables.py",
    (
        "docs/reading.md",
        "SELECT world_size, op, size_bytes, step - step % 100 AS from_step, count(*) AS calls,",
    ): "run by tests/unit/report/test_parquet_tables.py",
    ("docs/launching.md", "# run.yaml"): "a file, which test_readme.py reads",
    (
        "docs/monitoring.md",
        "scrape_configs:",
    ): "Prometheus's: tests/integration/faults/test_live_run.py",
    ("docs/monitoring.md", "commprof: watchdog: HANG"): "output",
    ("docs/monitoring.md", "Collective 45 of group"): "output",
}
_OURS = re.compile(r"(?:python -m )?commprof(?:\.(?P<entry>run|microbench))? (?P<rest>[^>|;$]*)$")
TORCHRUN = "-m torch.distributed.run --standalone"
_LAUNCHES = re.compile(
    r'(?P<set>(\w+=([\w-]+|"[^"]*") )*)(?P<program>torchrun|python|commprof) '
    r"(?P<rest>(?!.* -- )[^>|;$&]*)"
)
_STARTS_RANKS = re.compile(
    r"torchrun|\.py\b|commprof\.(run|microbench)\b|commprof (run|check|microbench)\b"
)
_PROGRAMS = {"python": "", "commprof": "-m commprof", "torchrun": TORCHRUN}
TINY = SMALL_OF["transformer"]
#: On a shared machine, a line with 18 s of CPU time has taken two minutes.
LIMIT_S = 300


def runs_elsewhere(block: Block) -> bool:
    """test_examples.py and test_pasted_fixes.py run the blocks of these two pages."""
    return block.page in ("docs/your_job.md", "docs/causes.md")


TYPED = [block for block in (*blocks(), *helps()) if is_typed(block)]
PYTHON = [block for block in blocks() if block.language == "python" and not runs_elsewhere(block)]


def name_of(block: Block) -> str:
    return f"{block.page}: {block.first_line[:50]}"


def library_of(text: str) -> str:
    return next((library for words, library in NEEDS.items() if words in text), "")


def reason(line: str) -> str | None:
    for start, why in NOT_RUN_KINDS.items():
        if line.startswith(start):
            return why
    library = library_of(line)
    apart = f"needs {library}: test_a_line_that_needs_a_library"
    return NOT_RUN.get(line) or (apart if library else None)


def smaller(line: str, here: Path) -> str:
    line = re.sub(r"--(nproc|nproc-per-node) [48]\b", r"--\1 2", line)
    line = re.sub(r"--nproc [\d,]+(?= -b)", "--nproc 2", line)
    line = line.replace("--world-sizes 1,2,4", "--world-sizes 1,2").replace("/shared/", f"{here}/")
    line = re.sub(r"-e 64M\b", "-e 1M" if "-b 1M" in line else "-e 64K", line)
    line = re.sub(r"--steps (50|200)\b", "--steps 8", line)
    line = line.replace("--batch-size 96", "--batch-size 8").replace("_mb=25", "_mb=1")
    line = re.sub(r"(?<=--workload )(mlp|resnet50)(?![\w:])", lambda it: SMALL_OF[it[0]], line)
    line = re.sub(r"(commprof[. ]microbench) ", r"\1 -e 4K -n 5 ", line)
    line = re.sub(r"(--metrics) ", r"\1 --metrics-address 127.0.0.1:0 ", line)
    line = re.sub(r"(--trial [^ ]+?)(,rounds=\d+)?(?= |$)", r"\1,rounds=4", line)
    given = "" if re.search(r"\.py\b|-m package", line) else f"--workload {TINY} "
    if given and "--trial" not in line:
        given += "--steps 6 --overhead-steps 0 --batch-size 2 "
    return re.sub(r"(commprof[. ]run) ", rf"\1 {given}", line)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    here = tmp_path_factory.mktemp("scene")
    write_scene(here)
    run = ("-m", "commprof.run", "--workload", TINY, "--steps", "24", "--overhead-steps", "0")
    options = ("--world-sizes", "1,2", "--output", str(here / "RUN"))
    recorded = call(*run, *options, timeout_s=LIMIT_S)
    assert recorded.returncode == 0, recorded.stderr
    for copy in ("DIR", "run1"):
        shutil.copytree(here / "RUN", here / copy)
    (here / "commprof-trace").mkdir()
    (here / "bin").mkdir()
    for name, module in _PROGRAMS.items():
        shim = here / "bin" / name
        shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module} "$@"\n')
        shim.chmod(0o755)
    yield here
    stop_fork_server()


@pytest.fixture
def here(
    request: pytest.FixtureRequest, scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    directory = tmp_path / "here"
    shutil.copytree(scene, directory)
    for made in re.findall(r"--(?:output|json) (\S+)", request.param):
        path = directory / made
        if made.startswith("/"):
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    monkeypatch.chdir(directory)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    for name, value in {
        "PYTHONPATH": path,
        "PATH": f"{directory}/bin{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "XDG_CONFIG_HOME": str(directory),
        "COMMPROF_MODE": "full",
    }.items():
        monkeypatch.setenv(name, value)
    return directory


def run_line(line: str, here: Path) -> int:
    # ``commprof env`` would replace this process by the command that follows.
    ours = None if " env " in line else _OURS.match(line)
    launched = _LAUNCHES.fullmatch(line)
    if launched and _STARTS_RANKS.search(line):
        words = shlex.split(f"{_PROGRAMS[launched['program']]} {launched['rest']}")
        env = dict(word.split("=", 1) for word in shlex.split(launched["set"]))
        done = finish(fork(*words, **env), LIMIT_S)
        print(done.stderr, file=sys.stderr)
        return done.returncode
    if ours is None:
        done = subprocess.run(["bash", "-c", line], cwd=here, timeout=LIMIT_S)
        return done.returncode
    words = shlex.split(ours["rest"])
    try:
        return main([ours["entry"], *words] if ours["entry"] else words)
    except SystemExit as end:
        return int(end.code or 0)


def cases() -> Iterator[object]:
    seen: set[str] = set()
    for block in TYPED:
        lines = [line for line in block.lines() if not reason(line)]
        made = {same(line) for line in lines if not only_reads(line)}
        run = [line for line in lines if only_reads(line) or same(line) not in seen]
        if made - seen:
            yield pytest.param(run, "\n".join(run), id=name_of(block))
        seen |= made


def same(line: str) -> str:
    return line.replace("python -m commprof.", "commprof ").replace("python -m ", "")


@pytest.mark.slow
@pytest.mark.skipif(_native.native is None, reason="some need what the Python capture lacks")
@pytest.mark.parametrize(("lines", "here"), list(cases()), indirect=["here"])
def test_commands_shown_in_pages_and_help_succeed(
    lines: list[str], scene: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for line in lines:
        if "compare A.json B.json" in line:
            # Earlier lines of the block wrote a new A.json, which has other sizes than B.json.
            shutil.copy(scene / "A.json", here / "A.json")
        check_line(line, here, capfd)


def check_line(line: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if only_reads(line):
        assert read_in_scene(line, here), f"{line}\n{capfd.readouterr().err}"
    else:
        assert run_line(smaller(line, here), here) == 0, f"{line}\n{capfd.readouterr().err}"


APART = [(block, line) for block in TYPED for line in block.lines() if library_of(line)]


@pytest.mark.slow
@pytest.mark.skipif(_native.native is None, reason="some need what the Python capture lacks")
@pytest.mark.parametrize(
    ("line", "here"),
    [
        pytest.param(line, line, id=f"{block.page}: {line[:60]}", marks=needs(library_of(line)))
        for block, line in APART
    ],
    indirect=["here"],
)
def test_a_line_that_needs_a_library(
    line: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check_line(line, here, capfd)


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", [pytest.param(b, id=name_of(b), marks=needs(library_of(b.text))) for b in PYTHON]
)
def test_python_blocks_shown_in_pages_run_on_two_ranks(block: Block, tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(block.text)
    launch_function(run_block, [str(tmp_path / "block.py")], 2, tmp_path / "logs")


def test_every_shown_block_is_run_or_listed_as_output() -> None:
    for block in blocks():
        if block in TYPED or block in PYTHON or runs_elsewhere(block):
            continue
        known = [start for page, start in OUTPUT if page == block.page]
        assert block.first_line.startswith(tuple(known)), (
            f"{name_of(block)}: run it, or say why not"
        )


def test_lists_of_blocks_that_are_not_run_have_no_stale_entries() -> None:
    lines = {line for block in TYPED for line in block.lines()}
    assert set(NOT_RUN) <= lines
    for start in NOT_RUN_KINDS:
        assert any(line.startswith(start) for line in lines), start
    shown = [(block.page, block.first_line) for block in blocks()]
    for page, start in OUTPUT:
        assert any(p == page and first.startswith(start) for p, first in shown), (page, start)
