from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from commprof.launch import provenance
from commprof.launch.cluster_files import yaml_text
from commprof.launch.provenance import (
    command_line,
    environment,
    git_state,
    save_patch,
    versions,
)
from commprof.report.sections.reproduce import reproduce_line

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


def git(directory: Path, *words: str) -> None:
    subprocess.run([*GIT, "-C", str(directory), *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "train.py").write_text("a\nb\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_only_listed_environment_variables_without_secrets_are_kept() -> None:
    kept = {"OMP_NUM_THREADS": "2", "NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "0"}
    others = {
        "HOME": "/home/a",
        "AWS_SECRET_ACCESS_KEY": "x",
        "MY_TOKEN": "x",
        "COMMPROF_AUTH_TOKEN": "x",
        "NCCL_API_KEY": "x",
        "TORCH_PROXY": "https://me:word@example.org/",
    }
    assert environment({**kept, **others}) == kept


def test_versions_include_python_torch_and_commprof() -> None:
    found = versions()
    assert {"python", "system", "torch", "commprof", "numpy"} <= found.keys()


def test_versions_include_all_packages_that_a_workload_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provenance, "version", lambda package: f"{package} 1")
    wanted = {"transformers", "peft", "bitsandbytes", "scikit-learn", "pillow", "torchvision"}
    wanted |= {"accelerate", "datasets", "lightning", "pytorch-lightning", "ray"}
    assert {versions()[package] for package in wanted} == {f"{package} 1" for package in wanted}


def test_git_state_of_a_clean_repository_has_no_changes(repository: Path) -> None:
    found = git_state(repository)
    assert len(found["commit"]) == 40
    rest = {name: value for name, value in found.items() if name != "commit"}
    assert rest == {"branch": "main", "changed_files": 0, "diff_lines": 0}


def test_git_state_of_a_changed_repository_counts_files_and_lines(repository: Path) -> None:
    (repository / "train.py").write_text("a\nc\nd\n")
    (repository / "new.py").write_text("x\n")
    found = git_state(repository)
    # Git does not track new.py, so only ``changed_files`` counts it.
    assert (found["changed_files"], found["diff_lines"]) == (2, 3)


def test_uncommitted_changes_are_saved_as_a_patch_that_restores_them(repository: Path) -> None:
    inside, kept = repository / "folder with space", repository / "run"
    inside.mkdir()
    kept.mkdir()
    (inside / "gr\xfc\xdfe.py").write_text("x\n")
    (repository / "gone.py").write_text("y\n")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "second")
    git(repository, "config", "diff.noprefix", "true")
    (repository / "train.py").write_bytes(b"a\nc\xff\n")
    (inside / "gr\xfc\xdfe.py").write_text("x\nz")
    (repository / "gone.py").unlink()
    found = save_patch(inside, kept)
    size = (kept / "changes.patch").stat().st_size
    assert found == {
        **{"file": "changes.patch", "bytes": size, "cut": False},
        **{"binary_files": [], "left_out": ""},
    }
    git(repository, "checkout", "-q", ".")
    git(repository, "apply", "run/changes.patch")
    assert (repository / "train.py").read_bytes() == b"a\nc\xff\n"
    assert (inside / "gr\xfc\xdfe.py").read_text() == "x\nz"
    assert not (repository / "gone.py").exists()


def test_a_patch_is_cut_at_its_limit_and_omits_binary_files(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "[a]\tb.bin").write_bytes(bytes(range(256)))
    (repository / "text.txt").write_text("x\n")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "binary")
    (repository / "[a]\tb.bin").write_bytes(bytes(reversed(range(256))))
    (repository / "text.txt").write_text("y\n" * 100)
    found = save_patch(repository, repository)
    assert found["binary_files"] == ["[a]\tb.bin"]
    patch = (repository / "changes.patch").read_text()
    assert "+y\n" in patch
    assert "bin" not in patch
    git(repository, "apply", "--check", "--reverse", "changes.patch")

    monkeypatch.setattr(provenance, "PATCH_LIMIT_BYTES", 50)
    found = save_patch(repository, repository)
    assert (found["bytes"], found["cut"]) == (50, True)
    assert (repository / "changes.patch").read_text() == patch[:50]


def test_no_patch_is_saved_without_a_change_or_a_writable_directory(
    repository: Path, tmp_path: Path
) -> None:
    (repository / "new.py").write_text("x\n")
    nothing = {"file": "", "bytes": 0, "cut": False, "binary_files": [], "left_out": ""}
    assert save_patch(repository, repository) == nothing
    assert not (repository / "changes.patch").exists()
    (repository / "train.py").write_text("c\n")
    found = save_patch(repository, tmp_path / "no such directory")
    assert found["file"] == ""
    assert "No such file or directory" in found["left_out"]


def test_git_state_outside_a_repository_is_unknown(tmp_path: Path) -> None:
    assert git_state(tmp_path) == {"unknown": "it is not in a git repository"}


def test_git_state_without_git_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) == {"unknown": "git is not installed"}


def test_git_state_gives_up_on_a_git_that_hangs(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = repository / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    monkeypatch.setattr(provenance, "_GIT_TIMEOUT_S", 0.2)
    assert git_state(repository) == {"unknown": "git took longer than 0.2 s"}


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (["/opt/bin/python3", "-m", "commprof.run", "--nproc", "2"], "python -m commprof.run"),
        (
            ["/opt/bin/python3", "-u", "-m", "commprof.run", "--nproc", "2"],
            "python -m commprof.run",
        ),
        (["/opt/bin/python3", "/opt/bin/commprof", "run", "--nproc", "2"], "commprof run"),
    ],
)
def test_the_recorded_command_line_can_be_typed_again(
    words: list[str], typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", words)
    assert " ".join(command_line()) == f"{typed} --nproc 2"


def test_yaml_text_is_read_back_as_the_same_value() -> None:
    yaml = pytest.importorskip("yaml")
    value = {
        "steps": 12,
        "clip-norm": 0.5,
        "mode": "off",
        "stacks": True,
        "world-sizes": [1, 2],
        "script-args": ["--lr", "0.1", "a: b", "", "x y", "1e3"],
        "empty": [],
        "nested": {"a": [{"b": "c"}]},
    }
    assert yaml.safe_load(yaml_text(value)) == value


def test_the_reproduce_line_names_command_directory_and_commit() -> None:
    git_found = {
        "commit": "0123456789abcdef",
        "branch": "main",
        "changed_files": 1,
        "diff_lines": 7,
    }
    context = {"reproduction": {"directory": "/home/a", "git": git_found}}
    assert reproduce_line(Path("run/config.yaml"), context) == (
        f"Run it again: commprof run --config {Path.cwd()}/run/config.yaml (in /home/a; "
        "code at git "
        "0123456789 of main with 1 changed file, 7 lines)"
    )
    context["reproduction"]["git"] = {"unknown": "git is not installed"}
    assert "state of the code unknown: git is not installed" in reproduce_line(
        Path("r.yaml"), context
    )
    assert reproduce_line(Path("run"), {}) == ""
    for part, said in (
        ({}, "(state of the code unknown: not recorded)"),
        ({"git": None}, "(state of the code unknown: not recorded)"),
        ({"git": {"commit": "0123456789abcdef"}}, "(code at git 0123456789; changes not recorded)"),
    ):
        assert said in reproduce_line(Path("r.yaml"), {"reproduction": part})
    several = reproduce_line(Path("r.yaml"), {**context, "nodes": 2})
    assert "/r.yaml --output NEW --node-rank N (in " in several
