"""Files that start and record a job on a cluster: Slurm, or Kubernetes with Kubeflow's operators.

Every node runs ``torchrun -m commprof.wrap`` for a script, or ``python -m commprof.run`` for a
built-in workload. The ranks write into one directory that all nodes share, for ``commprof report``
to read. The user names the partition, image and volume.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from commprof import invocation, variables
from commprof.errors import UsageError

#: Words that must be quoted, because YAML 1.1 does not read them as strings.
_NO_STRINGS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def yaml_text(value: object, indent: str = "") -> str:
    """Returns a dictionary or list as YAML text, with one key or list item per line."""
    lines = []
    if isinstance(value, dict):
        for key, item in value.items():
            lines.append(f"{indent}{key}:{_inline_or_below(item, indent + '  ')}")
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, dict):
                body = yaml_text(item, indent + "  ")
                lines.append(f"{indent}- {body.removeprefix(indent + '  ').rstrip()}\n")
            else:
                lines.append(f"{indent}- {_scalar(item)}\n")
    return "".join(lines)


def _inline_or_below(item: object, indent: str) -> str:
    if isinstance(item, dict | list):
        return "\n" + yaml_text(item, indent) if item else f" {_json(item)}\n"
    return f" {_scalar(item)}\n"


def _scalar(value: object) -> str:
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*", value)
    return str(value) if plain and str(value).lower() not in _NO_STRINGS else _json(value)


def _json(value: object) -> str:
    """Returns the value as JSON in ASCII, with YAML's escapes."""
    return re.sub(r"[^ -~]", _escaped, json.dumps(value, ensure_ascii=False))


def _escaped(match: re.Match[str]) -> str:
    # YAML would read JSON's escape of a character beyond U+FFFF as two characters.
    code = ord(match[0])
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


#: Options of ``commprof run`` that these files fill in.
_FILLED_IN = ("--nnodes", "--node-rank", "--nproc", "--rdzv-endpoint", "--output")
#: A DNS label (RFC 1123), as Kubernetes requires for names.
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
#: Formats of sbatch's time limit (see its manual page), without minutes:seconds.
_TIME = re.compile(r"\d+|\d+(:\d{1,2}){2}|\d+-\d+(:\d{1,2}){0,2}")
_MINUTES_AND_SECONDS = re.compile(r"\d+:\d{1,2}")


@dataclass(frozen=True)
class ClusterJob:
    """A job to start on a cluster: script, nodes, ranks and directories."""

    script: tuple[str, ...]
    """The script and its arguments, or ``-m package.module ARGS``. For a built-in workload: options
    of ``commprof run``, such as ``--workload transformer --steps 50``."""
    nodes: int
    """Number of machines."""
    ranks_per_node: int
    """Number of processes per node."""
    directory: str
    """Directory for the traces, on a file system that all nodes share."""
    name: str = "commprof"
    """Name of the job."""
    interface: str | None = None
    """Network interface to which gloo binds; None: gloo's choice."""
    port: int = 29500
    """Slurm: port of the rendezvous, on the first node."""
    time_limit: str | None = None
    """Slurm: time limit, in a format of sbatch."""
    partition: str | None = None
    """Slurm: the partition."""
    cpus_per_rank: int | None = None
    """Cores that each rank gets; None: the cluster's default."""
    image: str | None = None
    """Kubernetes: container image with torch and commprof in it."""
    volume_claim: str | None = None
    """Kubernetes: PersistentVolumeClaim (ReadWriteMany) that holds ``directory``."""

    @property
    def is_workload(self) -> bool:
        """True if ``commprof run`` trains a built-in workload instead of a script."""
        return bool(self.script) and self.script[0].startswith("--")

    @property
    def of_its_own(self) -> str:
        """This run's directory inside ``directory``, where Kubernetes mounts the volume."""
        return f"{self.directory.rstrip('/')}/{self.name}"

    def check(self) -> None:
        """Raises UsageError if a value of the job is not valid."""
        for what, value in (
            ("nodes", self.nodes),
            ("nproc-per-node", self.ranks_per_node),
            ("cpus-per-rank", self.cpus_per_rank),
        ):
            if value is not None and value < 1:
                raise UsageError(f"--{what} {value} is out of range (allowed: 1 or more)")
        if not 0 < self.port < 65536:
            raise UsageError(f"--port {self.port} is out of range (allowed: 1 to 65535)")
        if not _LABEL.fullmatch(self.name):
            raise UsageError(
                f"--name {self.name!r} cannot be a job's name (allowed: at most 63 lower-case "
                "letters, digits and '-', without '-' at either end)"
            )
        if not self.script:
            raise UsageError(
                "no script is given: end the command with 'SCRIPT ARGS', '-- -m MODULE ARGS', or "
                "'-- --workload NAME' for a built-in workload"
            )
        if self.is_workload:
            self._check_options()
        if not self.directory.startswith("/"):
            raise UsageError(
                f"--output {self.directory!r} is relative; name an absolute directory that every "
                "node sees"
            )

    def _check_options(self) -> None:
        names = [word.partition("=")[0] for word in self.script]
        if "--workload" not in names:
            raise UsageError(
                f"{self.script[0]} is not a script, and --workload is not among the options "
                "(allowed: SCRIPT ARGS, or --workload NAME and other options of commprof run)"
            )
        for name in (*_FILLED_IN, "--config"):
            if name in names:
                raise UsageError(
                    f"{name} cannot be among the options of commprof run: the written file fills "
                    f"in {', '.join(_FILLED_IN)}; leave {name} out"
                )


def slurm(job: ClusterJob) -> str:
    """Returns a batch script for ``sbatch``.

    One task per node starts torchrun or commprof run. The rendezvous is on the first node.
    """
    job.check()
    if job.time_limit is not None:
        _check_time(job.time_limit)
    cpus = job.cpus_per_rank and job.cpus_per_rank * job.ranks_per_node
    options = {
        "job-name": job.name,
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": cpus,
        "partition": job.partition,
        "time": job.time_limit,
        "output": f"{job.name}-%j.log",
    }
    lines = ["#!/bin/bash"]
    lines += [f"#SBATCH --{key}={value}" for key, value in options.items() if value is not None]
    exports = {**_recorded_into(job, job.directory), **_environment(job)}
    lines += ["set -euo pipefail"]
    lines += [f"export {key}={shlex.quote(value)}" for key, value in exports.items()]
    node, first = '"$SLURM_NODEID"', '"$first"'
    command = _torchrun(job, node, first)
    if job.is_workload:
        command = _run(job, node, f"{first}:{job.port}", job.directory)
    report = invocation.command("report", shlex.quote(job.directory), anywhere=True)
    lines += [
        f"mkdir -p {shlex.quote(job.directory)}",
        'hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        "first=${hosts%%$'\\n'*}",
        "export first",
        # The shell of each node fills in the node's index. From Slurm 22.05 on, srun does not take
        # the number of cores per task from sbatch.
        f"srun --kill-on-bad-exit=1{f' --cpus-per-task={cpus}' if cpus else ''} "
        f"bash -c {shlex.quote(command)}",
        f"echo {shlex.quote(f'Report: {report}')}",
    ]
    return "\n".join(lines) + "\n"


def _check_time(limit: str) -> None:
    if _MINUTES_AND_SECONDS.fullmatch(limit):
        raise UsageError(
            f"--time {limit!r} means minutes and seconds to sbatch; give {limit}:00 for hours and "
            "minutes, or whole minutes"
        )
    if not _TIME.fullmatch(limit):
        raise UsageError(
            f"--time {limit!r} is not a time limit of sbatch (allowed: minutes, "
            "HOURS:MINUTES:SECONDS, or DAYS-HOURS[:MINUTES[:SECONDS]])"
        )


def train_job(job: ClusterJob) -> str:
    """Returns a TrainJob (trainer.kubeflow.org/v1alpha1) for Kubeflow Trainer v2.

    The runtime ``torch-distributed`` sets torchrun's PET_* variables.
    """
    image, claim = _kubernetes_needs(job)
    return yaml_text(
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": job.name},
            "spec": {
                "runtimeRef": {"name": "torch-distributed"},
                "trainer": {
                    "image": image,
                    "numNodes": job.nodes,
                    "numProcPerNode": job.ranks_per_node,
                    "command": _command(job),
                    "env": _env_list(job),
                    **_resources(job, "resourcesPerNode"),
                },
                "runtimePatches": [_mount_patch(job, claim)],
            },
        }
    )


def _mount_patch(job: ClusterJob, claim: str) -> dict[str, object]:
    """Returns a patch of Kubeflow's training runtime that mounts the volume in the training pods.

    In the runtime ``torch-distributed``, the pods' replicated job and container are named ``node``.
    """
    pod = {
        "volumes": [_volume(claim)],
        "containers": [{"name": "node", "volumeMounts": [_mount(job)]}],
    }
    replicated = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    return {
        "manager": "commprof/launch-files",
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated]}}},
    }


def pytorch_job(job: ClusterJob) -> str:
    """Returns a PyTorchJob (kubeflow.org/v1) for clusters with the Training Operator v1."""
    image, claim = _kubernetes_needs(job)
    container = {
        "name": "pytorch",  # the operator looks for this name
        "image": image,
        "command": _command(job),
        "env": _env_list(job),
        "volumeMounts": [_mount(job)],
        **_resources(job, "resources"),
    }
    template = {"spec": {"volumes": [_volume(claim)], "containers": [container]}}
    replica = {"replicas": 1, "restartPolicy": "OnFailure", "template": template}
    replicas = {"Master": replica}
    if job.nodes > 1:
        replicas["Worker"] = {**replica, "replicas": job.nodes - 1}
    return yaml_text(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": job.name},
            "spec": {
                "nprocPerNode": str(job.ranks_per_node),
                # The operator's default, which keeps pods for their logs. It is set here because
                # Kubeflow's API requires a value.
                "runPolicy": {"cleanPodPolicy": "None"},
                "pytorchReplicaSpecs": replicas,
            },
        }
    )


TARGETS: Mapping[str, Callable[[ClusterJob], str]] = {
    "slurm": slurm,
    "k8s": train_job,
    "k8s-pytorchjob": pytorch_job,
}
"""Functions that return a file's text, by the names of ``commprof launch-files --target``."""


def _torchrun(job: ClusterJob, node_rank: str, master: str) -> str:
    """Returns the shell command of one node; node_rank and master are shell words."""
    words = [
        *("torchrun", "--nnodes", str(job.nodes), "--nproc-per-node", str(job.ranks_per_node)),
        *("--node-rank", node_rank, "--master-addr", master, "--master-port", str(job.port)),
        *("-m", "commprof.wrap"),
    ]
    return "exec " + " ".join([*words, *map(shlex.quote, job.script)])


def _run(job: ClusterJob, node_rank: str, endpoint: str, directory: str) -> str:
    """Returns the shell command of a built-in workload; node_rank and endpoint are shell words."""
    words = [
        *("python", "-m", "commprof.run", "--nnodes", str(job.nodes), "--node-rank", node_rank),
        *("--nproc", str(job.ranks_per_node), "--rdzv-endpoint", endpoint),
        *("--output", shlex.quote(directory)),
    ]
    return "exec " + " ".join([*words, *map(shlex.quote, job.script)])


def _command(job: ClusterJob) -> list[str]:
    """Returns a container's command; Kubeflow's PET_* variables hold node rank and rendezvous."""
    if not job.is_workload:
        return ["torchrun", "-m", "commprof.wrap", *map(_literal, job.script)]
    endpoint = '"$PET_MASTER_ADDR:$PET_MASTER_PORT"'
    return ["sh", "-c", _literal(_run(job, '"$PET_NODE_RANK"', endpoint, job.of_its_own))]


def _literal(text: str) -> str:
    """Escapes text for a container's command or environment.

    Kubernetes would replace ``$(NAME)`` by a variable's value, and ``$$`` by ``$``.
    """
    return re.sub(r"\$(?=[$(])", "$$", text)


def _recorded_into(job: ClusterJob, directory: str) -> dict[str, str]:
    """Returns the environment variable that names the directory of a script's traces.

    A built-in workload gets the directory as ``--output`` instead.
    """
    return {} if job.is_workload else {variables.OUT: directory}


def _environment(job: ClusterJob) -> dict[str, str]:
    variables = {}
    if job.interface is not None:
        variables["GLOO_SOCKET_IFNAME"] = job.interface
    if job.cpus_per_rank is not None:
        variables["OMP_NUM_THREADS"] = str(job.cpus_per_rank)
    return variables


def _kubernetes_needs(job: ClusterJob) -> tuple[str, str]:
    job.check()
    if job.name[0].isdigit():
        raise UsageError(
            f"--name {job.name!r} begins with a digit, which both of Kubeflow's operators refuse; "
            "begin the name with a lower-case letter"
        )
    for option, value in (("--image", job.image), ("--volume-claim", job.volume_claim)):
        if not value:
            raise UsageError(
                f"{option} is missing: a container needs an image with torch and commprof, and "
                "a ReadWriteMany volume claim for the traces of all nodes"
            )
    assert job.image is not None
    assert job.volume_claim is not None
    return job.image, job.volume_claim


def _env_list(job: ClusterJob) -> list[dict[str, str]]:
    variables = {**_recorded_into(job, job.of_its_own), **_environment(job)}
    return [{"name": name, "value": _literal(value)} for name, value in variables.items()]


def _resources(job: ClusterJob, key: str) -> dict[str, object]:
    if job.cpus_per_rank is None:
        return {}
    cpus = {"cpu": str(job.cpus_per_rank * job.ranks_per_node)}
    return {key: {"requests": cpus, "limits": cpus}}


def _volume(claim: str) -> dict[str, object]:
    return {"name": "traces", "persistentVolumeClaim": {"claimName": claim}}


def _mount(job: ClusterJob) -> dict[str, str]:
    return {"name": "traces", "mountPath": job.directory}
