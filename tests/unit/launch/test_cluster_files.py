from __future__ import annotations

import json
import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commprof.commands import main
from commprof.errors import UsageError
from commprof.launch.cluster_files import TARGETS, ClusterJob, pytorch_job, slurm, train_job

JOB = ClusterJob(
    script=("train.py", "--lr", "0.1", "--note", "it's new"),
    nodes=4,
    ranks_per_node=2,
    directory="/traces",
    name="my-job",
    interface="eth0",
    cpus_per_rank=3,
    image="example.org/train:1",
    volume_claim="shared",
)

FAKES = {
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; SLURM_NODEID=2 exec "$@"',
    "scontrol": "echo node-a; sleep 0.1; echo node-b",
    "torchrun": 'printf "%s\\n" "$@" "OUT=$COMMPROF_OUT" "IF=$GLOO_SOCKET_IFNAME"',
}


def load(text: str) -> Any:
    return pytest.importorskip("yaml").safe_load(text)


def test_the_batch_script_starts_torchrun_on_each_node(tmp_path: Path) -> None:
    for name, body in FAKES.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    script = slurm(replace(JOB, directory=str(tmp_path / "traces"), time_limit="1-02:30:00"))
    done = subprocess.run(
        ["bash", "-c", script],
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SLURM_JOB_NODELIST": "node-[a-b]",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.splitlines()
    assert words[: words.index("-m")] == [
        *("--nnodes", "4", "--nproc-per-node", "2", "--node-rank", "2"),
        *("--master-addr", "node-a", "--master-port", "29500"),
    ]
    assert words[words.index("-m") :][:7] == ["-m", "commprof.wrap", *JOB.script]
    assert f"OUT={tmp_path}/traces" in words
    assert "IF=eth0" in words
    assert (tmp_path / "traces").is_dir()


WORKLOAD = replace(JOB, script=("--workload", "mlp:layers=2", "--strategy", "ddp,fsdp"))


def started(tmp_path: Path, job: ClusterJob) -> list[str]:
    show = 'printf "%s\\n" "$@" "IF=$GLOO_SOCKET_IFNAME" "OMP=$OMP_NUM_THREADS" "OUT=$COMMPROF_OUT"'
    for name, body in {**FAKES, "python": show}.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    done = subprocess.run(
        ["bash", "-c", slurm(job)],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node-[a-b]"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_batch_script_starts_a_workload_on_each_node(tmp_path: Path) -> None:
    shared = str(tmp_path / "shared runs")
    words = started(tmp_path, replace(WORKLOAD, directory=shared))
    assert words[: words.index("--workload")] == [
        *("-m", "commprof.run", "--nnodes", "4", "--node-rank", "2", "--nproc", "2"),
        *("--rdzv-endpoint", "node-a:29500", "--output", shared),
    ]
    assert words[words.index("--workload") :][:4] == list(WORKLOAD.script)
    assert {"IF=eth0", "OMP=3", "OUT="} <= set(words)


@pytest.mark.parametrize("make", [train_job, pytorch_job])
def test_manifests_start_a_workload_on_each_node(make: Any) -> None:
    text = json.dumps(load(make(WORKLOAD)))
    command = (
        'exec python -m commprof.run --nnodes 4 --node-rank "$PET_NODE_RANK" --nproc 2 '
        '--rdzv-endpoint "$PET_MASTER_ADDR:$PET_MASTER_PORT" --output /traces/my-job '
        "--workload mlp:layers=2 --strategy ddp,fsdp"
    )
    assert json.dumps(["sh", "-c", command]) in text
    assert "COMMPROF_OUT" not in text


def test_the_batch_script_requests_the_given_nodes_cpus_and_time() -> None:
    lines = slurm(replace(JOB, time_limit="90", partition="long")).splitlines()
    assert [line for line in lines if line.startswith("#SBATCH")] == [
        "#SBATCH --job-name=my-job",
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=6",
        "#SBATCH --partition=long",
        "#SBATCH --time=90",
        "#SBATCH --output=my-job-%j.log",
    ]
    # From Slurm 22.05 on, srun does not take --cpus-per-task from sbatch.
    (srun,) = [line for line in lines if line.startswith("srun")]
    assert srun.startswith("srun --kill-on-bad-exit=1 --cpus-per-task=6 bash -c ")
    assert "cpus-per-task" not in slurm(replace(JOB, cpus_per_rank=None))


@pytest.mark.parametrize("cpus", [0, -3])
def test_fewer_than_one_cpu_per_rank_is_refused(cpus: int) -> None:
    with pytest.raises(UsageError, match=f"--cpus-per-rank {cpus} is out of range .allowed: 1 or"):
        slurm(replace(JOB, cpus_per_rank=cpus))


@pytest.mark.parametrize("limit", ["90", "2:30:00", "1-2", "1-02:30", "1-02:30:00"])
def test_time_limits_in_sbatch_format_are_accepted(limit: str) -> None:
    assert f"#SBATCH --time={limit}\n" in slurm(replace(JOB, time_limit=limit))


def test_a_train_job_has_the_given_nodes_command_and_volume() -> None:
    job = load(train_job(JOB))
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (4, 2)
    assert trainer["command"] == ["torchrun", "-m", "commprof.wrap", *JOB.script]
    assert {"name": "COMMPROF_OUT", "value": "/traces/my-job"} in trainer["env"]
    assert trainer["resourcesPerNode"]["limits"] == {"cpu": "6"}
    (patch,) = job["spec"]["runtimePatches"]
    (nodes,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = nodes["template"]["spec"]["template"]["spec"]
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "shared"}
    assert pod["containers"][0]["volumeMounts"] == [{"name": "traces", "mountPath": "/traces"}]


def test_a_train_job_matches_its_published_model() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    written = load(train_job(JOB))
    # The model would drop names that it does not know.
    assert models.TrainerV1alpha1TrainJob.from_dict(written).to_dict() == written


def test_a_pytorch_job_has_one_master_and_the_rest_as_workers() -> None:
    spec = load(pytorch_job(JOB))["spec"]
    assert spec["nprocPerNode"] == "2"
    replicas = spec["pytorchReplicaSpecs"]
    assert {role: one["replicas"] for role, one in replicas.items()} == {"Master": 1, "Worker": 3}
    container = replicas["Worker"]["template"]["spec"]["containers"][0]
    assert container["name"] == "pytorch"
    assert container["command"][3:] == list(JOB.script)
    assert "Worker" not in load(pytorch_job(replace(JOB, nodes=1)))["spec"]["pytorchReplicaSpecs"]


def test_a_pytorch_job_matches_its_published_model() -> None:
    training = pytest.importorskip("kubeflow.training")
    written = load(pytorch_job(JOB))
    reader = training.ApiClient()
    answer = SimpleNamespace(data=json.dumps(written))
    read = reader.deserialize(answer, "KubeflowOrgV1PyTorchJob")
    assert reader.sanitize_for_serialization(read) == written


def test_words_that_yaml_would_misread_stay_strings() -> None:
    others = ("run-🚀é", r"\ud83d🚀", "\x7f\x85\u2028\ufeff\t", "\udcff")
    job = replace(JOB, script=("train.py", "no", "1e3", "a: b", "", "yes", *others))
    assert train_job(job).isascii()
    assert load(train_job(job))["spec"]["trainer"]["command"][3:] == list(job.script)


@pytest.mark.parametrize("make", [train_job, pytorch_job])
def test_manifests_escape_what_kubernetes_would_replace(make: Any) -> None:
    script = ("train.py", "$(GLOO_SOCKET_IFNAME)", "a$$b", "$x$")
    text = json.dumps(load(make(replace(JOB, script=script, directory="/traces/$(A)"))))
    command = ["train.py", "$$(GLOO_SOCKET_IFNAME)", "a$$$b", "$x$"]
    assert json.dumps(["torchrun", "-m", "commprof.wrap", *command]) in text
    assert '"value": "/traces/$$(A)/my-job"' in text
    assert '"mountPath": "/traces/$(A)"' in text  # Kubernetes replaces nothing in mount paths.


@pytest.mark.parametrize(
    ("target", "change", "message"),
    [
        ("slurm", {"nodes": 0}, "--nodes 0 is out of range (allowed: 1 or more)"),
        ("slurm", {"name": "My Job"}, "--name 'My Job' cannot be a job's name"),
        ("slurm", {"time_limit": "soon"}, "--time 'soon' is not a time limit of sbatch"),
        (
            "slurm",
            {"time_limit": "2:30"},
            "'2:30' means minutes and seconds to sbatch; give 2:30:00",
        ),
        ("slurm", {"directory": "runs"}, "--output 'runs' is relative"),
        ("slurm", {"script": ()}, "no script is given"),
        ("slurm", {"port": 70000}, "--port 70000 is out of range"),
        ("slurm", {"script": ("--steps", "5")}, "--steps is not a script, and --workload is not"),
        ("slurm", {"script": ("--workload=mlp", "--nproc=4")}, "--nproc cannot be among"),
        ("k8s", {"name": "1st-run"}, "--name '1st-run' begins with a digit"),
        ("k8s-pytorchjob", {"name": "2"}, "begin the name with a lower-case letter"),
        ("k8s", {"image": None}, "--image is missing"),
        ("k8s-pytorchjob", {"volume_claim": None}, "--volume-claim is missing"),
    ],
)
def test_settings_that_a_cluster_would_reject_are_refused(
    target: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        TARGETS[target](replace(JOB, **change))
    assert message in str(caught.value)


def test_launch_files_names_the_missing_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch-files", "--target", "slurm", "--nodes", "2"]) == 2
    assert "--nproc-per-node, --output missing" in capsys.readouterr().err


def test_launch_files_does_not_overwrite_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.sbatch"
    command = ["launch-files", "--target", "slurm", "--nodes", "2", "--nproc-per-node", "4"]
    command += ["--output", "/shared/run", "-o", str(file), "--", "-m", "pkg.train", "--lr", "1"]
    assert main(command) == 0
    assert "commprof.wrap -m pkg.train --lr 1" in file.read_text()
    assert main(command) == 2
    assert "exists already" in capsys.readouterr().err


def test_launch_files_keeps_the_bytes_of_a_name_that_is_not_utf8(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    name, file = b"tr\xff\xc3\xa9.py", tmp_path / "job.sbatch"
    command = ["launch-files", "--target", "slurm", "--nodes", "2", "--nproc-per-node", "4"]
    command += ["--output", "/shared/run"]
    assert main([*command, "-o", str(file), os.fsdecode(name)]) == 0
    assert name in file.read_bytes()
    assert main([*command, os.fsdecode(name)]) == 0
    assert capsysbinary.readouterr().out == file.read_bytes()


def test_launch_files_accepts_the_options_of_a_workload(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["launch-files", "--target", "slurm", "--nodes", "2", "--nproc-per-node", "4"]
    command += ["--output", "/shared/run", "--", "--workload", "mlp"]
    assert main([*command, "--steps", "50"]) == 0
    assert "--output /shared/run --workload mlp --steps 50" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main([*command, "--stepz", "50"])
    assert ended.value.code == 2
    assert "--stepz" in capsys.readouterr().err
    assert main([*command, "train.py"]) == 2
    assert "'train.py' is read as a script" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--workload transfomer", "unknown workload 'transfomer'"),
        ("--workload mlp:wdth=3", "unknown option 'wdth'"),
        ("--workload mlp --hook foo", "unknown compressor 'foo'"),
        ("--workload mlp --strategy dp", "unknown strategy 'dp'"),
        ("--workload mlp --steps 0", "--steps 0 is out of range"),
        ("--workload mlp --bucket-cap-mb 0", "--bucket-cap-mb 0 is out of range"),
        ("--workload mlp --gradient-norms -1", "--gradient-norms -1 is out of range"),
        ("--workload mlp --check-sync 0", "--check-sync 0 is out of range"),
    ],
)
def test_launch_files_refuses_options_that_run_would_refuse(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = dict(os.environ)
    command = ["launch-files", "--target", "slurm", "--nodes", "2", "--nproc-per-node", "4"]
    assert main([*command, "--output", "/shared/run", "--", *options.split()]) == 2
    written = capsys.readouterr()
    assert message in written.err
    assert written.out == ""
    assert os.environ == before


def test_launch_files_accepts_options_that_this_machine_cannot_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["launch-files", "--target", "slurm", "--nodes", "2", "--nproc-per-node", "64"]
    command += ["--output", "/shared/run", "--", "--workload", "mlp", "--backend", "nccl"]
    assert main([*command, "--pin", "cores", "--mode", "always-on"]) == 0
    assert "--backend nccl --pin cores" in capsys.readouterr().out
    assert "COMMPROF_MODE" not in os.environ
