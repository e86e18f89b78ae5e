from __future__ import annotations

import socket
from pathlib import Path

import pytest

from commprof.commands import main
from commprof.launch.job import Job
from commprof.launch.model_memory import model_memory


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name in ("COMMPROF_STACKS", "COMMPROF_MODE"):
        monkeypatch.setenv(name, "")  # Monkeypatch then restores the variable after the test.
        monkeypatch.delenv(name)


def dry_run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    before = sorted(Path.cwd().rglob("*"))
    assert main(["run", "--dry-run", *words]) == 0
    assert sorted(Path.cwd().rglob("*")) == before
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("Dry run: this would be launched. Nothing was started or written.\n")
    return out


def test_dry_run_of_a_sweep_shows_world_sizes_directories_and_pinning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--nproc", "4", "--workload", "mlp", "--pin", "cores", "--output", "out"]
    text = dry_run(capsys, *words)
    assert "World sizes: 1, 2, 4, one after the other" in text
    assert "World size 4, strategy ddp: ranks 0 to 3 on this machine" in text
    assert "the ranks write to: out/world_4" in text
    assert "environment: OMP_NUM_THREADS=1" in text
    assert "pinned (cores):" in text
    assert "rank 0: CPUs" in text
    assert "Memory of a rank: at least" in text


def test_dry_run_creates_no_result_file(capsys: pytest.CaptureFixture[str]) -> None:
    dry_run(capsys, "--nproc", "1", "--workload", "mlp", "--json", "results/a.json")
    dry_run(capsys, "--nproc", "1", "--workload", "mlp", "--output", "out", "--json", "out/a.json")


def test_dry_run_shows_a_directory_for_each_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    text = dry_run(capsys, "--nproc", "2", "--strategy", "ddp,fsdp", "--output", "out")
    assert "the ranks write to: out/ddp/world_2" in text
    assert "the ranks write to: out/fsdp/world_2" in text


def test_dry_run_of_a_script_shows_its_command_and_environment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('started')\n")
    words = ["--nproc", "2", "--threads-per-rank", "3", "--output", "out", "train.py", "--lr", "1"]
    text = dry_run(capsys, *words)
    assert "each rank runs: python -u train.py --lr 1" in text
    assert f"environment: COMMPROF_OUT={tmp_path}/out/world_2" in " ".join(text.split())
    assert "environment: OMP_NUM_THREADS=3" in text
    assert "not known before the script runs" in text


def test_dry_run_on_one_of_several_machines_shows_its_ranks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    machines = ["--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "first-host:29500"]
    text = dry_run(capsys, *machines, "--nproc", "2", "--workload", "mlp", "--output", "out")
    assert "Machines: 2; this is machine 1, counted from 0" in text
    assert "World size 2, strategy ddp: rank 1 on this machine" in text
    assert "World size 4, strategy ddp: ranks 2 to 3 on this machine" in text
    assert "rendezvous: first-host:29501" in text


def test_dry_run_of_a_trial_shows_its_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    text = dry_run(capsys, "--nproc", "2", "--trial", "fp16,rounds=3", "--output", "out")
    assert "Trial: none,fp16,rounds=3" in text
    assert "World size 2, strategy ddp" in text


def test_dry_run_reports_more_ranks_than_cores(capsys: pytest.CaptureFixture[str]) -> None:
    text = dry_run(capsys, "--world-sizes", "512", "--workload", "mlp", "--output", "out")
    assert "more ranks than cores: 512 ranks share" in text
    assert "not pinned to CPUs: 512 ranks on" in text


def test_dry_run_shows_threads_from_omp_num_threads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    text = dry_run(capsys, "--nproc", "1", "--workload", "mlp", "--output", "out")
    assert "Threads of a rank: 2 (OMP_NUM_THREADS)" in text


def test_dry_run_refuses_an_output_directory_that_is_not_empty(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("full").mkdir()
    Path("full/file").write_text("")
    assert main(["run", "--dry-run", "--nproc", "1", "--output", "full"]) == 2
    assert "is not empty" in capsys.readouterr().err


def taken_port_after_a_free_one() -> socket.socket:
    while True:
        taken = socket.create_server(("127.0.0.1", 0))
        with socket.socket() as before:
            try:
                before.bind(("127.0.0.1", taken.getsockname()[1] - 1))
            except OSError:
                taken.close()
            else:
                return taken


@pytest.mark.parametrize("what", [("--workload", "mlp"), ("job.py",)], ids=["workload", "script"])
def test_the_port_of_each_world_size_must_be_free(
    capsys: pytest.CaptureFixture[str], what: tuple[str, ...]
) -> None:
    """With several machines, each world size of a sweep uses the next port."""
    Path("job.py").write_text("")
    with taken_port_after_a_free_one() as taken:
        port = taken.getsockname()[1]
        words = ["--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", f"127.0.0.1:{port - 1}"]
        words += ["--world-sizes", "2,4", "--output", "out", *what]
        assert main(["run", "--dry-run", *words]) == 2
    assert f"port {port} is in use on 127.0.0.1" in capsys.readouterr().err


def test_dry_run_is_equal_from_config_file_and_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("yaml")
    Path("run.yaml").write_text("workload: {mlp: {layers: 2}}\nworld-sizes: [2]\noutput: out\n")
    from_file = dry_run(capsys, "--config", "run.yaml")
    words = ["--workload", "mlp:layers=2", "--world-sizes", "2", "--output", "out"]
    assert from_file == dry_run(capsys, *words)


LINEAR = 4 * (256 * 512 + 512 + 512 * 10 + 10)


@pytest.mark.parametrize(
    ("strategy", "weights", "gradients", "moments", "buckets"),
    [("ddp", LINEAR, LINEAR, LINEAR, LINEAR), ("zero1", LINEAR, LINEAR, LINEAR // 2, LINEAR)],
)
def test_estimated_memory_of_a_replicated_model_is_exact(
    tmp_path: Path, strategy: str, weights: int, gradients: int, moments: int, buckets: int
) -> None:
    found = model_memory(Job("mlp:layers=1", 2, tmp_path, strategy=strategy))
    assert (found.weights, found.gradients) == (weights, gradients)
    assert (found.optimizer_state, found.buckets) == (moments, buckets)


def test_estimated_memory_of_a_sharded_model_is_exact(tmp_path: Path) -> None:
    whole = model_memory(Job("mlp:layers=1", 1, tmp_path, strategy="fsdp"))
    half = model_memory(Job("mlp:layers=1", 2, tmp_path, strategy="fsdp"))
    assert (half.gradients, half.buckets) == (whole.gradients // 2, 0)
    # A rank keeps half of all weights, and gathers the larger block as a whole.
    assert half.weights == LINEAR // 2 + 4 * (256 * 512 + 512)


def test_memory_of_blocks_that_are_gathered_in_16_bits_is_half(tmp_path: Path) -> None:
    found = model_memory(Job("mlp:layers=1", 2, tmp_path, strategy="fsdp", precision="bf16"))
    assert found.weights == LINEAR // 2 + 2 * (256 * 512 + 512)


def test_memory_is_estimated_for_every_workload(tmp_path: Path) -> None:
    for workload in ("transformer", "resnet50", "timed"):
        assert "at least" in model_memory(Job(workload, 2, tmp_path)).text
    adam = model_memory(Job("transformer", 2, tmp_path))
    assert adam.optimizer_state == 2 * adam.gradients


def test_each_strategy_and_world_size_has_its_own_rendezvous_port(
    capsys: pytest.CaptureFixture[str],
) -> None:
    machines = ["--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "first-host:29500"]
    words = ["--nproc", "2", "--workload", "mlp", "--strategy", "ddp,fsdp", "--output", "out"]
    text = dry_run(capsys, *machines, *words)
    ports = [line.rpartition(":")[2] for line in text.splitlines() if "rendezvous: " in line]
    assert ports == ["29500", "29501", "29502", "29503"]


def test_dry_run_shows_the_training_and_recording_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--nproc", "2", "--workload", "mlp", "--output", "out", "--scaling", "strong"]
    plain = " ".join(dry_run(capsys, *words).split())
    assert "Training: strong scaling, seed 0, backend gloo, no hook." in plain
    assert "Recording: mode full, no restarts, no watchdog, no live metrics" in plain
    words += ["--precision", "bf16", "--clip-norm", "1", "--checkpoint-activations", "--scale-lr"]
    words += ["--lr-warmup", "3", "--seed", "7", "--hook", "fp16", "--max-restarts", "2"]
    words += ["--mode", "always-on", "--watchdog", "30", "--metrics-jsonl", "m.jsonl"]
    text = " ".join(dry_run(capsys, *words).split())
    assert (
        "Training: strong scaling, seed 7, backend gloo, hook fp16, precision bf16, clip norm 1.0, "
        "checkpoint activations, scale lr, lr warmup 3."
    ) in text
    assert "Recording: mode always-on, at most 2 restarts, watchdog 30, live metrics (" in text
    assert "--metrics-jsonl" in text


def test_samples_need_py_spy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--nproc", "1", "--workload", "mlp", "--output", "out", "--samples"]
    where = "commprof.commands.running.run_checks.find_py_spy"
    monkeypatch.setattr(where, lambda: "py-spy")
    text = " ".join(dry_run(capsys, *words).split())
    assert "no restarts, no watchdog, samples by py-spy, no live metrics" in text
    monkeypatch.setattr(where, lambda: None)
    assert main(["run", "--dry-run", *words]) == 2
    assert "--samples needs py-spy in commprof's environment: " in capsys.readouterr().err


def test_dry_run_reports_a_model_that_is_too_large_for_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commprof.workloads.options.available_bytes", lambda: 10**6)
    words = ["--world-sizes", "2", "--workload", "mlp:layers=1", "--output", "out"]
    text = " ".join(dry_run(capsys, *words).split())
    needed = 2 * 4 * LINEAR / 1e9
    assert (
        f"This machine has too little memory: 2 ranks need at least {needed:.3g} GB, and 0.001 GB"
    ) in text
    monkeypatch.setattr("commprof.workloads.options.available_bytes", lambda: 10**9)
    assert "too little memory" not in dry_run(capsys, *words)


@pytest.mark.needs("peft", "transformers")
def test_dry_run_shows_the_7b_model_although_it_does_not_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commprof.workloads.options.available_bytes", lambda: 10**9)
    words = ["--world-sizes", "2", "--workload", "lora:size=7b", "--output", "out"]
    assert "This machine has too little memory: 2 ranks need" in dry_run(capsys, *words)


def test_memory_of_hsdp_depends_on_the_ranks_of_a_host(tmp_path: Path) -> None:
    job = Job("mlp:layers=1", 8, tmp_path, strategy="hsdp")
    assert model_memory(job, local_ranks=2).gradients == LINEAR // 2
    assert model_memory(job, local_ranks=8).gradients == LINEAR // 4  # HSDP shards over 4 ranks.


def test_memory_includes_all_blocks_that_are_gathered_together(tmp_path: Path) -> None:
    one, two = (
        model_memory(Job("mlp:layers=3,width=64", 2, tmp_path, strategy=f"fsdp:wrap_blocks={n}"))
        for n in (1, 2)
    )
    assert two.weights - one.weights == 4 * 64 * 65  # A block has 64 x 64 weights and 64 biases.
