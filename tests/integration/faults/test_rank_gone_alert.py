from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.commands import start
from tests.support.machines.programs.prometheus import RULES, Prometheus, target, until
from tests.support.machines.ranks import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("prometheus", "promtool"),
]

#: A rank stays until the file argv[2] exists. If argv[1] is "ends", rank 1 ends after training.
SCRIPT = """
import os, pathlib, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(2, 64)).square().sum().backward()
    optimizer.step()
pathlib.Path(f"{sys.argv[2]}.{dist.get_rank()}").touch()
while not (sys.argv[1] == "ends" and dist.get_rank() == 1 or os.path.exists(sys.argv[2])):
    time.sleep(0.05)
"""


class Job:
    """Two ranks run without a launcher, so the end of a rank does not end its peer."""

    def __init__(self, place: Path, how: str) -> None:
        place.mkdir()
        (place / "train.py").write_text(SCRIPT)
        self.stop, self.traces = place / "stop", place / "out"
        port = str(free_port())
        self.ranks = [
            start(
                *("-m", "commprof.wrap", str(place / "train.py"), how, str(self.stop)),
                **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
                **{"MASTER_ADDR": "localhost", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"},
                COMMPROF_OUT=str(self.traces),
                COMMPROF_METRICS="--metrics-address 127.0.0.1:0 --metrics-interval 0.5",
            )
            for rank in (0, 1)
        ]

    def trained(self) -> bool:
        return all(self.stop.with_name(f"stop.{rank}").exists() for rank in (0, 1))

    def end(self) -> list[int]:
        self.stop.touch()
        for rank in self.ranks:
            rank.communicate(timeout=150)
        return [rank.returncode for rank in self.ranks]


def test_the_alert_fires_for_a_killed_rank_while_its_peer_runs_on(tmp_path: Path) -> None:
    jobs = {how: Job(tmp_path / how, how) for how in ("killed", "ends")}
    codes = {}
    try:
        instances = {how: target(job.traces) for how, job in jobs.items()}
        server = Prometheus(tmp_path / "prometheus", list(instances.values()))
        try:
            ended = f'commprof_rank_running{{instance="{instances["ends"]}",rank="1"}} == 0'
            until(lambda: server.result(ended), "the end of the rank that ends")
            both = f'sum(commprof_rank_running{{instance="{instances["killed"]}"}}) == 2'
            until(lambda: server.result(both), "two ranks that run")
            until(jobs["killed"].trained, "the end of training")
            # The monitor was started by rank 0 and must outlive rank 0.
            jobs["killed"].ranks[0].send_signal(signal.SIGKILL)
            alert = 'ALERTS{alertname="CommprofRankGone"}'
            (fired,) = until(
                lambda: server.result(f'{alert[:-1]},alertstate="firing"}}'), "the alert"
            )
            alerts = server.result(alert)
            failed = server.result("commprof_rank_failed")
        finally:
            server.stop()
    finally:
        codes = {how: job.end() for how, job in jobs.items()}
    assert (fired["metric"]["instance"], fired["metric"]["rank"]) == (instances["killed"], "0")
    assert [each["metric"] for each in alerts] == [fired["metric"]]
    found = {(each["metric"]["instance"], each["metric"]["rank"]): each["value"] for each in failed}
    assert {
        how: [found[instance, rank][1] for rank in ("0", "1")]
        for how, instance in instances.items()
    } == {"killed": ["1", "0"], "ends": ["0", "0"]}
    assert codes == {"killed": [-signal.SIGKILL, 0], "ends": [0, 0]}


def series(name: str, rank: int, values: str) -> dict[str, str]:
    return {"series": f'{name}{{instance="host",rank="{rank}"}}', "values": values}


ALWAYS, NEVER, FROM_20_S, UNTIL_20_S = "1+0x12", "0+0x12", "0+0x3 1+0x8", "1+0x3 0+0x8"


@pytest.mark.parametrize(
    ("running", "failed", "at", "fires"),
    [
        pytest.param((ALWAYS, UNTIL_20_S), (NEVER, FROM_20_S), "30s", False, id="not yet"),
        pytest.param((ALWAYS, UNTIL_20_S), (NEVER, FROM_20_S), "35s", True, id="after 15 s"),
        pytest.param((ALWAYS, UNTIL_20_S), (NEVER, NEVER), "60s", False, id="an orderly end"),
        pytest.param(
            (UNTIL_20_S, UNTIL_20_S), (FROM_20_S, FROM_20_S), "60s", False, id="none is left"
        ),
    ],
)
def test_the_alert_fires_only_15_s_after_a_failure_while_other_ranks_run(
    running: tuple[str, str], failed: tuple[str, str], at: str, fires: bool, tmp_path: Path
) -> None:
    given = [series("commprof_rank_running", rank, text) for rank, text in enumerate(running)]
    given += [series("commprof_rank_failed", rank, text) for rank, text in enumerate(failed)]
    expected: list[dict[str, Any]] = []
    if fires:
        labels = {"instance": "host", "rank": "1", "severity": "critical"}
        text = {
            "summary": "Rank 1 on host is gone, and others hang on",
            "description": "Its process was killed or ended by an exception. Where a launcher ends "
            "the other ranks as well, the job and its monitor are gone before this can fire, and "
            "the launcher's exit code tells.",
        }
        expected = [{"exp_labels": labels, "exp_annotations": text}]
    look = {"eval_time": at, "alertname": "CommprofRankGone", "exp_alerts": expected}
    cases = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "5s",
        "tests": [{"interval": "5s", "input_series": given, "alert_rule_test": [look]}],
    }
    (tmp_path / "cases.yml").write_text(json.dumps(cases))
    done = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "cases.yml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
