from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from commprof.forecast.costs.cost_model import CostCurve, Piece
from commprof.forecast.costs.machine_profile import LinkProfile, MachineProfile, save_profile
from commprof.monitor.monitor import address_file
from tests.support.machines.commands import RUN, start
from tests.support.machines.programs.prometheus import DEPLOY, RULES, Prometheus, target, until
from tests.support.machines.ranks import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.measures,
]
needs_prometheus = pytest.mark.needs("prometheus")

SCRIPT = """
import sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.randn(2, 64)).square().sum().backward()
    optimizer.step()
    time.sleep(float(sys.argv[2]))
"""


@dataclass(frozen=True)
class Watched:
    run: Path
    compressed: Path
    answers: dict[str, Any]
    frame: str
    exit_codes: tuple[int, int]


def expressions() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "commprof.json").read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return [expr.replace("$instance", ".+") for expr in panels] + list(rules())


def rules() -> list[str]:
    found = re.findall(r"^ +expr: (>-\n(?: {10}.*\n)+|.*\n)", RULES.read_text(), re.MULTILINE)
    return [" ".join(text.removeprefix(">-").split()) for text in found]


def profile(path: Path) -> Path:
    """Writes the profile of a machine that all-reduces without latency at 10 GB/s."""
    exact = (0.0, 0.0)
    curve = CostCurve("all_reduce", "gloo", (Piece(0.0, 0.0, 1e-10, exact, exact),), (1, 1e9), (4,))
    save_profile(MachineProfile({"same_host": LinkProfile({"all_reduce": curve})}), path)
    return path


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    place = tmp_path_factory.mktemp("live")
    runs = place / "late", place / "compressed"
    script = place / "train.py"
    script.write_text(SCRIPT)
    common = (
        *("--overhead-steps", "0"),
        *("--metrics-address", "127.0.0.1:0", "--metrics-interval", "0.5"),
    )
    jobs = (
        start(
            *RUN,
            *("--world-sizes", "4", "--steps", "20000", "--output", str(runs[0])),
            *("--workload", "timed:late_rank=2,late_ms=30,forward_ms=5,backward_ms=5,data_ms=1"),
            *("--metrics-profile", str(profile(place / "profile.json")), *common),
        ),
        start(
            *RUN,
            *("--nproc", "2", "--output", str(runs[1]), "--hook", "fp16"),
            *("--gradient-norms", "2", *common[2:], str(script), "1000000", "0.05"),
        ),
    )
    server = Prometheus(place / "prometheus", [target(run) for run in runs])
    try:
        # A rate needs two scrapes of a series.
        until(lambda: server.result("commprof_late_rank == 1"), "the late rank")
        until(lambda: server.result("rate(commprof_gradient_sent_bytes_total[1m]) > 0"), "bytes")
        until(lambda: server.result("rate(commprof_hidden_seconds_total[1m]) >= 0"), "rates")
        time.sleep(3)
        answers = {expr: server.get("query", query=expr)["result"] for expr in expressions()}
        answers["rules"] = server.get("rules")["groups"]
        frame = subprocess.run(
            [sys.executable, "-m", "commprof", "top", str(runs[0]), "--once"],
            env={**os.environ, "COLUMNS": "160"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        _kill_monitor(runs[0])
        time.sleep(1)
        alive = [job.poll() is None for job in jobs]
    finally:
        server.stop()
        for job in jobs:
            job.send_signal(signal.SIGINT)
        for job in jobs:
            job.communicate(timeout=150)
    assert alive == [True, True]
    codes = jobs[0].returncode, jobs[1].returncode
    return Watched(*runs, answers, frame, codes)


def _kill_monitor(run: Path) -> None:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"commprof.monitor" in words and os.fsencode(run) in words:
                os.kill(int(process.name), signal.SIGKILL)


@needs_prometheus
def test_every_dashboard_panel_has_data(watched: Watched) -> None:
    panels = expressions()[: len(expressions()) - len(rules())]
    assert len(panels) > 25
    empty = [expr for expr in panels if not watched.answers[expr]]
    assert empty == []


@needs_prometheus
def test_every_prometheus_rule_is_evaluated_without_error(watched: Watched) -> None:
    (group,) = watched.answers["rules"]
    assert len(group["rules"]) == len(rules()) >= 9
    assert {rule["name"]: rule["health"] for rule in group["rules"]} == {
        rule["name"]: "ok" for rule in group["rules"]
    }
    assert [rule.get("lastError") for rule in group["rules"]] == [None] * len(group["rules"])
    firing = {rule["name"] for rule in group["rules"] if rule["alerts"]}
    assert "CommprofLateRank" in firing
    expected = {"CommprofLateRank", "CommprofExposedCommunication", "CommprofLowBandwidth"}
    assert firing <= expected | {"CommprofStepSlower", "CommprofHostMemory"}


@needs_prometheus
def test_metrics_match_the_late_rank_and_compression_of_the_job(watched: Watched) -> None:
    (late,) = watched.answers['commprof_late_rank{instance=~".+"} == 1']
    assert late["metric"]["rank"] == "2"
    (cost,) = watched.answers['commprof_late_rank_wait_seconds{instance=~".+"}']
    # Rank 2 is late by 30 ms, less the delays of other ranks on a busy host.
    assert 0.002 < float(cost["value"][1]) < 0.1
    ratio = watched.answers[
        'sum by (rank) (rate(commprof_gradient_plain_bytes_total{instance=~".+"}[1m])) / '
        'sum by (rank) (rate(commprof_gradient_sent_bytes_total{instance=~".+"}[1m]))'
    ]
    assert [float(each["value"][1]) for each in ratio] == pytest.approx([2, 2], rel=0.05)
    norms = watched.answers['commprof_gradient_norm{instance=~".+"}']
    assert len({each["value"][1] for each in norms}) == 2


@needs_prometheus
def test_commprof_top_names_the_late_rank(watched: Watched) -> None:
    assert "4 ranks, gloo, full mode, at " in watched.frame
    assert "Late rank: 2, in backward" in watched.frame


@needs_prometheus
def test_interrupted_jobs_exit_with_130_and_leave_no_monitor(watched: Watched) -> None:
    assert watched.exit_codes == (130, 130)
    for run in (watched.run, watched.compressed):
        assert (run / "monitor.log").read_text() == ""
    until(lambda: not address_file(watched.compressed).exists(), "the end of the monitor")


@pytest.mark.needs("promtool")
def test_promtool_accepts_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", str(RULES)], check=True, capture_output=True)


def test_wrap_starts_the_monitor_in_a_job_of_another_launcher(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    lines, out = tmp_path / "metrics.jsonl", tmp_path / "out"
    job = start(
        *("-m", "commprof.wrap", str(tmp_path / "train.py"), "20", "0"),
        **{"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"},
        **{"MASTER_PORT": str(free_port()), "COMMPROF_OUT": str(out)},
        COMMPROF_METRICS=f"--metrics-jsonl '{lines}' --metrics-interval 0.2",
    )
    output, errors = job.communicate(timeout=150)
    assert (job.returncode, output) == (0, ""), errors
    assert errors.startswith(f"commprof: recorded to {out}; next: ")
    assert errors.count("\n") == 1

    def last() -> bool:
        return lines.exists() and json.loads(lines.read_text().splitlines()[-1])["step"] == 19

    until(last, "the last step")
    assert (out / "monitor.log").read_text() == ""
