from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commprof.trace import columns
from commprof.trace.run.run_directory import read_context, read_world
from tests.support.analysed import analyse_run
from tests.support.machines.commands import call
from tests.support.machines.ranks import free_port

SCRIPT = Path(__file__).parents[2] / "support/scripts/torchft_train.py"
pytestmark = [pytest.mark.slow, pytest.mark.needs("torchft"), pytest.mark.timeout(600)]
GRADIENT_BYTES = 4 * (256 * 256 + 256) * 4


def train(out: Path | None, tmp_path: Path, steps: int, last_before_kill: int) -> list[str]:
    """Returns each replica's last line. With ``last_before_kill`` 0, no replica is killed."""
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(
        bind="[::]:0", min_replicas=2, join_timeout_ms=3000, quorum_tick_ms=100
    )
    recorded = [] if out is None else ["-m", "commprof", "env", "--output", str(out), "--"]
    launch = ("-m", "torch.distributed.run", "--nproc-per-node=1", "--max-restarts=2")
    replicas = []
    for number, kill in enumerate(("0", str(last_before_kill))):
        command = (sys.executable, *launch, f"--master-port={free_port()}", str(SCRIPT))
        environment = {
            **{key: value for key, value in os.environ.items() if "RANK" not in key},
            **{"OMP_NUM_THREADS": "1", "TORCHFT_LIGHTHOUSE": lighthouse.address()},
            **{"REPLICA_GROUP_ID": str(number), "NUM_REPLICA_GROUPS": "2"},
            "KILLED": str(tmp_path / f"killed_{out is None}"),
        }
        words = [sys.executable, *recorded] if recorded else []
        replicas.append(
            subprocess.Popen(
                [*words, *command, str(steps), kill],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    ended = [replica.communicate(timeout=280) for replica in replicas]
    lighthouse.shutdown()
    assert [replica.returncode for replica in replicas] == [0, 0], ended
    return [said.strip().splitlines()[-1] for said, _ in ended]


def test_a_killed_replica_that_joins_again_is_in_the_one_report(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sums = train(out, tmp_path, steps=12, last_before_kill=5)
    assert sums[0] == sums[1]
    context = read_context(out)
    lives = context["replicas"]
    assert [(life["label"], life["ranks"]) for life in lives] == [
        ("0", [0]),
        ("1", []),
        ("1", [1]),
    ]
    assert lives[1]["steps"] == 5
    assert "never closed its trace" in lives[1]["ending"]
    result = analyse_run(out)
    (world,) = result.worlds
    assert (world.world_size, world.recording.missing_ranks) == (2, ())
    assert result.context["backend"] == "gloo"
    traces = read_world(out, 2).traces
    shared = set(columns.steps(traces[0]).index.tolist()) & set(
        columns.steps(traces[1]).index.tolist()
    )
    # The surviving replica may fail to commit one pass. The step then has two passes and is left
    # out.
    assert 5 <= world.timing.steps <= len(shared) <= 7
    for trace in traces.values():
        assert {group.size for group in trace.groups.values()} == {2}
        table, steps = columns.collectives(trace), columns.steps(trace)
        step = int(steps.index[-1])
        inside = (table.issue_ns >= steps.begin_ns[-1]) & (table.issue_ns < steps.end_ns[-1])
        assert (step, int(table.bytes_in[inside].sum())) == (step, GRADIENT_BYTES)
    report = call("-m", "commprof", "report", str(out), "--all", COLUMNS="400").stdout
    assert "2 replicas trained together: rank 0 is replica 0" in report
    assert "Replica 1 was started 2 times: from " in report
    assert "The job was restarted" not in report
    for untrue in ("no DDP model was trained", "needs a network interface", "backend ,"):
        assert untrue not in report


def test_replicas_train_the_same_with_and_without_commprof(tmp_path: Path) -> None:
    recorded = train(tmp_path / "out", tmp_path, steps=6, last_before_kill=0)
    plain = train(None, tmp_path, steps=6, last_before_kill=0)
    assert len({*recorded, *plain}) == 1
    assert len(list((tmp_path / "out").rglob("*.trace"))) == 2
