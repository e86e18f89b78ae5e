from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from commprof.capture import boot
from commprof.commands import main
from commprof.trace import columns
from commprof.trace.reader import read_trace
from tests.support.analysed import analyse_run, problems_of
from tests.support.machines.commands import TORCHRUN, call, finish, fork
from tests.support.machines.ranks import free_port

SCRIPTS = Path(__file__).parents[2] / "support" / "scripts"
ENV = ("-m", "commprof", "env", "--output")


def variables(directory: Path) -> dict[str, str]:
    printed = call(*ENV, str(directory))
    assert printed.returncode == 0, printed.stderr
    export, *words = shlex.split(printed.stdout)
    assert export == "export"
    return dict(word.split("=", 1) for word in words)


def test_env_prints_variables_that_a_shell_can_evaluate(tmp_path: Path) -> None:
    out = tmp_path / "with a space"
    found = variables(out)
    assert found["COMMPROF_OUT"] == str(out)
    first, *rest = found["PYTHONPATH"].split(os.pathsep)
    assert Path(first, "sitecustomize.py").is_file()
    assert rest == [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    shell = f'eval "$({sys.executable} {shlex.join(ENV)} {shlex.quote(str(out))})"; '
    done = subprocess.run(
        ["sh", "-c", shell + 'echo "$COMMPROF_OUT"'], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{out}\n"


def test_env_applied_twice_gives_the_same_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    once = boot.environment(Path("/out"))
    monkeypatch.setenv("PYTHONPATH", once["PYTHONPATH"])
    assert boot.environment(Path("/out")) == once


def test_env_runs_the_given_command_with_its_output_and_exit_code(tmp_path: Path) -> None:
    program = "import os, sys; print(os.environ['COMMPROF_OUT']); sys.exit(5)"
    done = call(*ENV, str(tmp_path), "--", sys.executable, "-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (5, f"{tmp_path}\n", "")
    missing = call(*ENV, str(tmp_path), "--", "no-such-program")
    assert missing.returncode == 2
    assert "cannot run 'no-such-program'" in missing.stderr


def test_a_python_without_commprof_loads_nothing_and_runs_the_users_sitecustomize(
    tmp_path: Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['MINE'] = 'ran'\n")
    found = variables(tmp_path / "out")
    found["PYTHONPATH"] = os.pathsep.join((boot._HERE, str(tmp_path)))  # commprof is not importable
    program = (
        "import os, sys, sitecustomize; print(os.environ['MINE'], sitecustomize.__file__, "
        "[m for m in sys.modules if m.split('.')[0] in ('commprof', 'torch')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, **found},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split(" ", 2)[0] == "ran"
    assert str(tmp_path / "sitecustomize.py") in done.stdout
    assert done.stdout.rstrip().endswith("[]")
    assert done.stderr == ""


@pytest.mark.parametrize("out", [True, False])
def test_ctrl_c_while_python_starts_shows_no_traceback(tmp_path: Path, out: bool) -> None:
    plant = "import os, signal; os.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "sitecustomize.py").write_text(plant)
    found = {"PYTHONPATH": os.pathsep.join((boot._HERE, str(tmp_path)))}
    if out:
        found["COMMPROF_OUT"] = str(tmp_path / "out")
    done = subprocess.run(
        [sys.executable, "-c", "print('ran')"],
        env={**os.environ, **found},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.slow
def test_a_second_job_gets_a_directory_of_its_own(tmp_path: Path) -> None:
    found = variables(tmp_path)
    for _ in range(2):
        port = free_port()
        ranks = [
            subprocess.Popen(
                [sys.executable, str(SCRIPTS / "plain.py")],
                cwd="/",
                env={
                    **os.environ,
                    **found,
                    **{"RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"},
                    **{"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)},
                },
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        errors = [process.communicate(timeout=120)[1] for process in ranks]
        assert [process.returncode for process in ranks] == [0, 0], errors
        ours = [line for error in errors for line in error.splitlines() if "commprof" in line]
        assert [line.split(" to ")[0] for line in ours] == ["commprof: recorded"]
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.trace"))
    assert names == [f"{job}rank_{rank}.trace" for job in ("job_2/", "") for rank in (0, 1)]
    for job in (tmp_path, tmp_path / "job_2"):
        (world,) = analyse_run(job).worlds
        assert (world.world_size, world.timing.steps, problems_of(world)) == (2, 12, [])
        assert sum(rank.samples for rank in world.ranks) == 8 * world.timing.measured_steps
    shown = call("-m", "commprof", "report", str(tmp_path), "--all")
    assert f"Another job in this directory: commprof report {tmp_path / 'job_2'}" in shown.stdout
    assert "samples/s counts the batches that DataLoaders returned" in shown.stdout.replace(
        "\n  ", " "
    )


NOT_FOUND = """
import os, runpy, sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in repr(f).lower()]
sys.path[:] = [p for p in sys.path if not os.path.isdir(os.path.join(p, "commprof"))]
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.slow
def test_a_job_is_recorded_by_a_checkout_outside_the_python_path(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOT_FOUND, str(SCRIPTS / "plain.py")],
        cwd="/",
        env={
            **os.environ,
            **{"COMMPROF_OUT": str(tmp_path), "PYTHONPATH": boot._HERE, "OMP_NUM_THREADS": "1"},
            **{"RANK": "0", "WORLD_SIZE": "1"},
            **{"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())},
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    said, _, told = done.stderr.partition("; next: commprof ")
    assert said == f"commprof: recorded to {tmp_path}"
    assert told.count("\n") == 1
    assert main(shlex.split(told)) == 0
    assert len(columns.steps(read_trace(tmp_path / "rank_0.trace"))) == 24


@pytest.mark.slow
@pytest.mark.parametrize(("way", "code"), [("exit", 3), ("raise", 1)])
def test_a_script_that_ends_early_leaves_closed_traces(way: str, code: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = call(
        *("-m", "commprof.run", "--nproc", "2", "--output", str(out)),
        *(str(SCRIPTS / "ends.py"), way),
        OMP_NUM_THREADS="1",
    )
    assert done.returncode == code, done.stderr
    if way == "raise":
        assert "ValueError: the script's own" in done.stderr
    for rank in range(2):
        assert len(columns.steps(read_trace(out / "world_2" / f"rank_{rank}.trace"))) == 8


@pytest.mark.slow
def test_report_salvages_the_records_of_killed_ranks(tmp_path: Path) -> None:
    """When rank 1 is killed, torchrun ends rank 0 with SIGTERM."""
    command = (sys.executable, *TORCHRUN, str(SCRIPTS / "ends.py"), "kill")
    done = call(*ENV, str(tmp_path), "--", *command, OMP_NUM_THREADS="1")
    assert done.returncode == 1
    traces = [read_trace(tmp_path / f"rank_{rank}.trace") for rank in range(2)]
    assert not any(trace.complete for trace in traces)
    assert all(rings_of(trace.metadata["ring_prefix"]) for trace in traces)

    shown = call("-m", "commprof", "report", str(tmp_path), "--all")
    assert shown.returncode == 0, shown.stderr
    assert "ranks 0, 1 never closed their traces" in shown.stdout.replace("\n  ", " ")
    for before in traces:
        assert rings_of(before.metadata["ring_prefix"]) == []
        after = read_trace(before.path)
        assert after.records.tolist() == before.records.tolist()
        assert len(columns.steps(after)) == 8


def rings_of(prefix: str) -> list[Path]:
    return sorted(Path(prefix).parent.glob(Path(prefix).name + "*"))


LEAVES = """
import sys
from sys import exit as early
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if "all" in sys.argv:
    sys.exit(5)
if dist.get_rank() == 1:
    if "raise" in sys.argv:
        raise SystemExit(4)
    if "imported" in sys.argv:
        early(6)
    sys.exit(3)
dist.barrier()
"""


@pytest.mark.parametrize(
    ("who", "said"),
    [
        ("one", ["rank 1 failed: it raised SystemExit: 3"]),
        ("raise", ["rank 1 failed: it raised SystemExit with exit code 4"]),
        ("imported", ["rank 1 failed: it raised SystemExit with exit code 6"]),
        ("all", ["ranks 0, 1 failed: each raised SystemExit: 5"]),
    ],
)
def test_ranks_that_exited_with_a_code_are_named_in_the_report(
    who: str, said: list[str], tmp_path: Path
) -> None:
    (tmp_path / "leaves.py").write_text(LEAVES)
    variables = boot.environment(tmp_path / "run")
    done = finish(fork(*TORCHRUN, str(tmp_path / "leaves.py"), who, **variables))
    assert done.returncode == 1
    report = " ".join(
        call("-m", "commprof", "report", str(tmp_path / "run"), "--all").stdout.split()
    )
    for text in said:
        assert text in report
